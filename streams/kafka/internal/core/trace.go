package core

import (
	"context"
	"errors"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/retry"
)

// Headers of a W3C trace context.
const (
	headerTraceParent = "traceparent"
	headerTraceState  = "tracestate"
)

// carrierOf returns the headers that a span needs.
func carrierOf(headers []kgo.RecordHeader) propagation.MapCarrier {
	c := propagation.MapCarrier{}
	for _, h := range headers {
		switch h.Key {
		case headerTraceParent, headerTraceState, schemas.HeaderID:
			c[h.Key] = string(h.Value)
		}
	}
	return c
}

func noopEnd(error) {}

// Span starts the span of one call of the handler with ir, as a child of the span in ir's headers. The handler
// is called with the returned context, and end with the handler's error. Outputs of ir carry the context of
// the span from then on. Without a tracer, span does nothing and allocates nothing.
func (r *Router) Span(ctx context.Context, ir *Record) (_ context.Context, end func(error)) {
	if r.Config.Tracer == nil {
		return ctx, noopEnd
	}
	in := carrierOf(ir.Raw.Headers)
	ctx = propagation.TraceContext{}.Extract(ctx, in)
	kind := trace.WithSpanKind(trace.SpanKindConsumer)
	ctx, span := r.Config.Tracer.Start(ctx, string(r.Role)+" handle", kind, trace.WithAttributes(
		attribute.String("messaging.system", "kafka"),
		attribute.String("messaging.operation.name", "handle"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.consumer.group.name", r.Config.Group(r.Role, client.ClassOf(ir.Topic.Entry, r.Role))),
		attribute.String("messaging.destination.name", ir.Raw.Topic),
		attribute.String("messaging.destination.partition.id", strconv.Itoa(int(ir.Raw.Partition))),
		attribute.Int64("messaging.kafka.offset", ir.Raw.Offset),
		attribute.String("messaging.message.id", in[schemas.HeaderID]),
		attribute.Int("millrace.attempt", r.RetryHeaders(ir).Attempts+1),
	))
	ir.trace = InjectTrace(ctx)
	return ctx, func(err error) {
		if err != nil {
			class := retry.ClassOf(err).String()
			span.SetAttributes(attribute.String("error.type", class))
			span.RecordError(err)
			span.SetStatus(codes.Error, class)
		}
		span.End()
	}
}

// Spans starts spans of records that are stored together, and returns a function that ends them. It covers
// only sampled traces, because the number of records is high.
func (r *Router) Spans(ctx context.Context, records []*Record) (end func(error)) {
	if r.Config.Tracer == nil {
		return noopEnd
	}
	ends := map[*Record]func(error){}
	for _, ir := range records {
		of := propagation.TraceContext{}.Extract(ctx, carrierOf(ir.Raw.Headers))
		if trace.SpanContextFromContext(of).IsSampled() {
			_, ends[ir] = r.Span(ctx, ir)
		}
	}
	return func(err error) {
		for ir, end := range ends {
			if err == nil && ir.Disposition == metrics.DispositionDead {
				end(errNotStored)
			} else {
				end(err)
			}
		}
	}
}

// errNotStored is the error of the span of a record that was rejected individually.
var errNotStored = retry.Permanent(errors.New("record cannot be stored"))

// InjectTrace returns the headers that name the span of ctx, or nil if it has none.
func InjectTrace(ctx context.Context) []kgo.RecordHeader {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	var out []kgo.RecordHeader
	for _, key := range []string{headerTraceParent, headerTraceState} {
		if value := carrier[key]; value != "" {
			out = append(out, kgo.RecordHeader{Key: key, Value: []byte(value)})
		}
	}
	return out
}

// traceHeaders returns the trace headers for ir's outputs: those of its span or, without a span, its own.
func (ir *Record) traceHeaders() (out []kgo.RecordHeader) {
	if ir.trace != nil {
		return ir.trace
	}
	for _, h := range ir.Raw.Headers {
		if h.Key == headerTraceParent || h.Key == headerTraceState {
			out = append(out, h)
		}
	}
	return out
}
