package kafka

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
	"github.com/millrace/millrace/streams/retry"
)

// The headers of a W3C trace context.
const (
	headerTraceParent = "traceparent"
	headerTraceState  = "tracestate"
)

// traced are headers in the form in which propagators want them.
type headerCarrier []kgo.RecordHeader

// Get implements propagation.TextMapCarrier.
func (t *headerCarrier) Get(key string) string {
	for _, h := range *t {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (t *headerCarrier) Set(key, value string) {
	for i := range *t {
		if (*t)[i].Key == key {
			(*t)[i].Value = []byte(value)
			return
		}
	}
	*t = append(*t, kgo.RecordHeader{Key: key, Value: []byte(value)})
}

// Keys implements propagation.TextMapCarrier.
func (t *headerCarrier) Keys() (keys []string) {
	for _, h := range *t {
		keys = append(keys, h.Key)
	}
	return keys
}

func noopEnd(error) {}

// span begins the span of one call of the handler with l, a child of what l's headers name.
// The handler is called with the context that it returns, and end with what the handler
// returned. Outputs of l carry the span's context from then on. Without a tracer it does
// nothing, and allocates nothing.
func (r *router) span(ctx context.Context, l *inflightRecord) (_ context.Context, end func(error)) {
	if r.cfg.Tracer == nil {
		return ctx, noopEnd
	}
	in := headerCarrier(l.rec.Headers)
	ctx = propagation.TraceContext{}.Extract(ctx, &in)
	ctx, span := r.cfg.Tracer.Start(ctx, string(r.role)+" handle", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String("messaging.system", "kafka"),
		attribute.String("messaging.operation.name", "handle"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.consumer.group.name", r.groupOf(l)),
		attribute.String("messaging.destination.name", l.rec.Topic),
		attribute.String("messaging.destination.partition.id", strconv.Itoa(int(l.rec.Partition))),
		attribute.Int64("messaging.kafka.offset", l.rec.Offset),
		attribute.String("messaging.message.id", in.Get(schemas.HeaderID)),
		attribute.Int("millrace.attempt", r.retryHeaders(l).attempts+1),
	))
	if out := injectTrace(ctx); out != nil {
		l.trace = &out
	}
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

// spans begins spans of letters that are stored together, and returns what ends them: of those
// that stand in a trace which is recorded, since the others are too many to begin one each.
func (r *router) spans(ctx context.Context, records []*inflightRecord) (end func(error)) {
	if r.cfg.Tracer == nil {
		return noopEnd
	}
	ends := map[*inflightRecord]func(error){}
	for _, l := range records {
		in := headerCarrier(l.rec.Headers)
		if trace.SpanContextFromContext(propagation.TraceContext{}.Extract(ctx, &in)).IsSampled() {
			_, ends[l] = r.span(ctx, l)
		}
	}
	return func(err error) {
		for l, end := range ends {
			if err == nil && l.disposition == fateDead {
				end(errNotStored)
			} else {
				end(err)
			}
		}
	}
}

// errNotStored is what a span says of a record that was refused by itself.
var errNotStored = retry.Permanent(errors.New("it cannot be stored"))

// group is the consumer group that l was read in.
func (r *router) groupOf(l *inflightRecord) string {
	if e, ok := schemas.Lookup(r.cfg.bare(l.rec.Topic)); ok {
		return r.cfg.group(r.role, classOf(e, r.role))
	}
	return r.cfg.group(r.role, schemas.High)
}

// traceOf returns the headers that name ctx's span; none where it has none.
func injectTrace(ctx context.Context) headerCarrier {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	var out headerCarrier
	propagation.TraceContext{}.Inject(ctx, &out)
	return out
}

// traced returns the headers that l's outputs carry: those of its span or, without one,
// its own, as they are.
func (l *inflightRecord) traceHeaders() (out []kgo.RecordHeader) {
	if l.trace != nil {
		return *l.trace
	}
	for _, h := range l.rec.Headers {
		if h.Key == headerTraceParent || h.Key == headerTraceState {
			out = append(out, h)
		}
	}
	return out
}
