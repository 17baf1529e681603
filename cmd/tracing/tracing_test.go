package tracing

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A collected is a span as a collector receives it.
type collected struct{ service, name, parent string }

// receiver is a collector of spans.
type receiver struct {
	mu    sync.Mutex
	paths []string
	spans []collected
	errs  []error
}

func (c *receiver) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paths = append(c.paths, r.URL.Path)
	var req collector.ExportTraceServiceRequest
	z, err := gzip.NewReader(r.Body)
	if err == nil {
		var b []byte
		if b, err = io.ReadAll(z); err == nil {
			err = proto.Unmarshal(b, &req)
		}
	}
	if err != nil {
		c.errs = append(c.errs, err)
	}
	for _, rs := range req.GetResourceSpans() {
		var service string
		for _, a := range rs.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, collected{service, s.GetName(),
					trace.SpanID(append(s.GetParentSpanId(), make([]byte, 8)...)[:8]).String()})
			}
		}
	}
}

// A span of a traced message reaches the collector at the latest when the process stops. Messages
// without a trace are sampled as the variables of OpenTelemetry say.
func TestTracing(t *testing.T) {
	const parent = "00f067aa0ba902b7"
	for name, tt := range map[string]struct {
		sampler, path string
		want          []collected
	}{
		"all": {"parentbased_always_on", "", []collected{{"millrace", "planner handle", "0000000000000000"},
			{"millrace", "planner handle", parent}}},
		"none": {"parentbased_always_off", "/v1/traces", []collected{{"millrace", "planner handle", parent}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_SAMPLER", tt.sampler)
			var c receiver
			srv := httptest.NewServer(&c)
			defer srv.Close()
			var logged logtest.Lines
			tr := New(config.Trace{Endpoint: srv.URL + tt.path}, "v1", "host", logged.Log())
			must(t, tr.Start(t.Context()))
			b := kafkatest.New(t, kafkatest.Options{RealTime: true})
			change := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "maps", Item: "a", Version: "1",
				Time: timestamppb.New(time.Unix(1e9, 0))}
			change.Id = schemas.ChangeID(change)
			rec, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: change})
			must(t, err)
			fresh := kafkatest.Record{Record: rec, Partition: -1}
			rec.Headers = append(slices.Clone(rec.Headers),
				schemas.Header{Key: "traceparent", Value: []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-" + parent + "-01")})
			b.Write(fresh, kafkatest.Record{Record: rec, Partition: -1})
			cfg := b.Config()
			cfg.Tracer = tr.Tracer()
			ctx, cancel := context.WithCancel(t.Context())
			n := 0
			g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
				func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
					if n++; n == 2 {
						cancel()
					}
					return nil, nil
				})
			must(t, err)
			must(t, g.Run(ctx))
			tr.Stop(ctx) // ctx is done
			c.mu.Lock()
			defer c.mu.Unlock()
			slices.SortFunc(c.spans, func(a, b collected) int { return strings.Compare(a.parent, b.parent) })
			if !slices.Equal(c.spans, tt.want) || len(c.errs) > 0 {
				t.Errorf("got %v (%v), want %v", c.spans, c.errs, tt.want)
			}
			if slices.ContainsFunc(c.paths, func(p string) bool { return p != "/v1/traces" }) {
				t.Errorf("got %q, want /v1/traces", c.paths)
			}
			if n := logged.Count("level"); n > 0 {
				t.Errorf("%d lines logged", n)
			}
		})
	}
}

func TestTracingOff(t *testing.T) {
	tr := New(config.Trace{}, "v1", "host", nil)
	if tr != nil || tr.Tracer() != nil {
		t.Errorf("got %v and %v, want none", tr, tr.Tracer())
	}
	if err := tr.Start(t.Context()); err != nil {
		t.Error(err)
	}
	tr.Stop(t.Context())
}

// A collector that is unavailable, refuses, or hangs delays neither the work nor the stop, and is
// logged.
func TestTracingWithoutCollector(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	for name, tt := range map[string]struct {
		handler     http.HandlerFunc
		unavailable bool
		want        string // in the log
	}{
		"unavailable": {handler: func(http.ResponseWriter, *http.Request) {}, unavailable: true, want: "drop spans"},
		"refuses": {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
			want: "drop spans"},
		"hangs": {handler: func(http.ResponseWriter, *http.Request) { <-hang }, want: "flush spans"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(tt.handler)
			t.Cleanup(srv.Close)
			if name == "hangs" {
				t.Cleanup(func() { close(hang) }) // before the server is closed, which waits for it
			}
			if tt.unavailable {
				srv.Close()
			}
			var logged logtest.Lines
			tr := New(config.Trace{Endpoint: srv.URL}, "v1", "host", logged.Log())
			if tr.flush != 5*time.Second {
				t.Errorf("stop may take %v, want 5 s", tr.flush)
			}
			tr.flush = 200 * time.Millisecond
			must(t, tr.Start(t.Context()))
			began := time.Now()
			for range 20_000 { // ten times what fits the queue
				_, span := tr.Tracer().Start(t.Context(), "planner handle")
				span.End()
			}
			tr.Stop(t.Context())
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("work and stop took %v", took)
			}
			if n := logged.Count(tt.want); n != 1 {
				t.Errorf("%q is logged %d times, want once", tt.want, n)
			}
		})
	}
}

type failing struct{ err error }

func (f *failing) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return f.err }

func (f *failing) Shutdown(context.Context) error { return nil }

// Dropped spans are logged once a minute.
func TestLossyExporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged logtest.Lines
		f := &failing{errors.New("connection refused")}
		p := &lossyExporter{SpanExporter: f, url: "http://collector", log: logged.Log()}
		for i, want := range []int{1, 1, 1, 1, 2, 2, 2, 2, 3} {
			must(t, p.ExportSpans(t.Context(), make([]sdktrace.ReadOnlySpan, 2)))
			if got := logged.Count("drop spans"); got != want {
				t.Errorf("after %d s: %d lines, want %d", i*15, got, want)
			}
			time.Sleep(15 * time.Second)
		}
		if n := logged.Count("spans=8"); n != 2 {
			t.Errorf("%d lines tell of the 8 spans lost in a minute, want 2", n)
		}
		f.err = nil
		time.Sleep(time.Hour)
		err := p.ExportSpans(t.Context(), make([]sdktrace.ReadOnlySpan, 2))
		if err != nil || logged.Count("drop spans") != 3 {
			t.Errorf("got %v, and a complaint about nothing", err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
