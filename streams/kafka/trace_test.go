package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

const (
	remoteTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	remoteSpan  = "00f067aa0ba902b7"
	remote      = "00-" + remoteTrace + "-" + remoteSpan + "-01"
	unsampled   = "00-" + remoteTrace + "-" + remoteSpan + "-00"
	vendor      = "acme=1,other=2"
)

// tracedRecord returns a record of changes that belongs to a trace.
func tracedRecord(t *testing.T, item, parent, state string) kafkatest.Record {
	t.Helper()
	rec, err := schemas.Encode(parttest.Change(item))
	must(t, err)
	if parent != "" {
		rec.Headers = append(rec.Headers, schemas.Header{Key: "traceparent", Value: []byte(parent)})
	}
	if state != "" {
		rec.Headers = append(rec.Headers, schemas.Header{Key: "tracestate", Value: []byte(state)})
	}
	return kafkatest.Record{Record: rec, Partition: -1}
}

// tracer records spans in memory.
func tracer(t *testing.T, o ...sdktrace.TracerProviderOption) (trace.Tracer, *tracetest.InMemoryExporter) {
	t.Helper()
	mem := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(append(o, sdktrace.WithSyncer(mem))...)
	return tp.Tracer("test"), mem
}

// fails makes each item end as its name says.
func fails(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	switch d.Body.(*pb.Change).GetItem() {
	case "bad":
		return nil, retry.Permanent(errors.New("no good"))
	case "later":
		return nil, retry.Wait(errors.New("not yet"), time.Time{})
	}
	return parttest.Plan(ctx, d)
}

func tracedPool(t *testing.T, cfg client.Config, h kafka.Handler) *kafka.Pool {
	t.Helper()
	g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
		Workers: 1}, h)
	must(t, err)
	return g
}

// Without a tracer a trace is passed on unchanged, whatever it contains.
func TestTraceIsPassedOn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ parent, state string }{
		"both":      {remote, vendor},
		"no state":  {remote, ""},
		"not valid": {"what is this", vendor},
		"none":      {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				for _, item := range []string{"good", "bad", "later"} {
					b.Write(tracedRecord(t, item, tt.parent, tt.state))
				}
				must(t, parttest.Run(t, time.Minute, tracedPool(t, b.Config(), fails)))
				for _, topic := range []schemas.Topic{schemas.DuplicationHigh, schemas.Dead, schemas.Delay("30s")} {
					recs := b.Read(topic)
					if len(recs) != 1 {
						t.Fatalf("%d records in %s, want 1", len(recs), topic)
					}
					got := [2]string{recs[0].Header("traceparent"), recs[0].Header("tracestate")}
					if want := [2]string{tt.parent, tt.state}; got != want {
						t.Errorf("%s: got %q, want %q", topic, got, want)
					}
				}
			})
		})
	}
}

func TestTraceOfPoolThatRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		cfg := b.Config()
		var mem *tracetest.InMemoryExporter
		cfg.Tracer, mem = tracer(t)
		for _, item := range []string{"good", "bad", "later"} {
			b.Write(tracedRecord(t, item, remote, vendor))
		}
		b.Write(tracedRecord(t, "fresh", "", ""))
		seen := map[string]string{} // one worker: the messages are handled in order
		err := parttest.Run(t, time.Minute, tracedPool(t, cfg,
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				seen[d.Body.(*pb.Change).GetItem()] = trace.SpanContextFromContext(ctx).SpanID().String()
				return fails(ctx, d)
			}))
		must(t, err)
		spans := map[string]tracetest.SpanStub{}
		for i, s := range mem.GetSpans() {
			item := []string{"good", "bad", "later", "fresh"}[i]
			spans[item] = s
			if s.Name != "planner handle" || s.SpanKind != trace.SpanKindConsumer ||
				s.SpanContext.SpanID().String() != seen[item] {
				t.Errorf("%s: got %q %v %v, want that which the handler saw: %s", item, s.Name, s.SpanKind,
					s.SpanContext.SpanID(), seen[item])
			}
			if item == "fresh" {
				if s.Parent.IsValid() {
					t.Errorf("a message without a trace got parent %v", s.Parent)
				}
			} else if s.Parent.TraceID().String() != remoteTrace || s.Parent.SpanID().String() != remoteSpan ||
				!s.Parent.IsRemote() || s.SpanContext.TraceState().String() != vendor {
				t.Errorf("%s: got parent %v, want %s", item, s.Parent, remote)
			}
		}
		if len(spans) != 4 {
			t.Fatalf("%d spans, want 4", len(spans))
		}
		id, _ := schemas.Encode(parttest.Change("good"))
		want := []string{
			"messaging.consumer.group.name=millrace.planner", "messaging.destination.name=millrace.changes",
			"messaging.destination.partition.id=0",
			"messaging.kafka.offset=0", "messaging.message.id=" + string(id.Headers[1].Value), "messaging.operation.name=handle",
			"messaging.operation.type=process", "messaging.system=kafka", "millrace.attempt=1",
		}
		if got := attributes(spans["good"].Attributes); !slices.Equal(got, want) {
			t.Errorf("attributes:\ngot  %q\nwant %q", got, want)
		}
		for item, class := range map[string]string{"bad": "permanent", "later": "wait"} {
			s := spans[item]
			if s.Status.Code != codes.Error || s.Status.Description != class || len(s.Events) != 1 ||
				!slices.Contains(attributes(s.Attributes), "error.type="+class) {
				t.Errorf("%s: got %v with %d events and %q, want an error of class %s", item, s.Status, len(s.Events),
					attributes(s.Attributes), class)
			}
		}
		outputs := map[string]string{}
		for i, body := range b.Bodies(schemas.DuplicationHigh) {
			outputs[body.(*pb.DuplicationCommand).GetItem()] = b.Read(schemas.DuplicationHigh)[i].Header("traceparent")
		}
		for _, item := range []string{"good", "fresh"} {
			sc := spans[item].SpanContext
			if want := fmt.Sprintf("00-%s-%s-01", sc.TraceID(), sc.SpanID()); outputs[item] != want {
				t.Errorf("output of %s: got %q, want %q", item, outputs[item], want)
			}
		}
		for _, topic := range []schemas.Topic{schemas.Dead, schemas.Delay("30s")} {
			if got := b.Read(topic)[0].Header("traceparent"); got != remote {
				t.Errorf("%s: got %q, want the message's own, %q", topic, got, remote)
			}
		}
	})
}

func attributes(kvs []attribute.KeyValue) (s []string) {
	for _, kv := range kvs {
		s = append(s, string(kv.Key)+"="+kv.Value.String())
	}
	slices.Sort(s)
	return s
}

// The decision not to sample a trace is kept, and the trace is passed on.
func TestUnsampledTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		cfg := b.Config()
		var mem *tracetest.InMemoryExporter
		cfg.Tracer, mem = tracer(t, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())))
		b.Write(tracedRecord(t, "good", unsampled, ""))
		must(t, parttest.Run(t, time.Minute, tracedPool(t, cfg, parttest.Plan)))
		if n := len(mem.GetSpans()); n != 0 {
			t.Errorf("%d spans of a trace that is not recorded", n)
		}
		got := b.Read(schemas.DuplicationHigh)[0].Header("traceparent")
		if !strings.HasPrefix(got, "00-"+remoteTrace) || !strings.HasSuffix(got, "-00") {
			t.Errorf("got %q, want the same trace, not sampled", got)
		}
	})
}

func TestTraceOfProducer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		p, err := kafka.NewProducer(b.Config(), "test")
		must(t, err)
		defer p.Close()
		tr, _ := tracer(t)
		ctx, span := tr.Start(t.Context(), "upload")
		defer span.End()
		must(t, p.Publish(ctx, parttest.Change("a")))
		sc := span.SpanContext()
		if got, want := b.Read(schemas.Changes)[0].Header("traceparent"),
			fmt.Sprintf("00-%s-%s-01", sc.TraceID(), sc.SpanID()); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		later := parttest.Command(parttest.Change("a").Body.(*pb.Change))
		must(t, p.Publish(t.Context(), later))
		if got := b.Read(schemas.DuplicationHigh)[0].Header("traceparent"); got != "" {
			t.Errorf("got %q without a span", got)
		}
	})
}

// In a batch, the records of sampled traces have a span for each attempt to store them.
func TestTraceOfBatchGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		cfg := b.Config()
		var mem *tracetest.InMemoryExporter
		cfg.Tracer, mem = tracer(t)
		b.Write(tracedRecord(t, "good", remote, ""), tracedRecord(t, "bad", remote, ""), tracedRecord(t, "fresh", "", ""),
			tracedRecord(t, "quiet", unsampled, ""))
		tb := &memoryTable{poison: "bad", fail: []fault{{errors.New("unavailable"), false}}}
		g, err := kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleState,
			Topics: []schemas.Topic{schemas.Changes}}, tb)
		must(t, err)
		must(t, parttest.Run(t, time.Minute, g))
		var got []string
		for _, s := range mem.GetSpans() {
			got = append(got, s.Name+" "+s.Parent.SpanID().String()+" "+s.Status.Code.String()+" "+s.Status.Description)
		}
		slices.Sort(got)
		want := []string{"state handle " + remoteSpan + " Error permanent", "state handle " + remoteSpan + " Error transient",
			"state handle " + remoteSpan + " Error transient", "state handle " + remoteSpan + " Unset "}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if dead := b.Read(schemas.Dead); len(dead) != 1 || dead[0].Header("traceparent") != remote {
			t.Errorf("got %v, want one dead letter with its own trace", dead)
		}
	})
}
