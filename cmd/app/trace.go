package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/cmd/config"
)

const (
	traceFlush  = 5 * time.Second
	traceExport = 10 * time.Second
	traceLog    = time.Minute // between two complaints about the collector
)

// A tracing sends spans to a collector. Nothing waits for it: spans that the collector does
// not take in time are dropped.
type tracing struct {
	url      string
	flush    time.Duration // how long stop may take
	log      *slog.Logger
	provider *sdktrace.TracerProvider
}

// newTracing returns nil where spans are off. Nothing is sent before start, nor made.
func newTracing(c config.Trace, log *slog.Logger) *tracing {
	if c.Endpoint == "" {
		return nil
	}
	return &tracing{
		url: spansURL(c.Endpoint), flush: traceFlush, log: log,
		provider: sdktrace.NewTracerProvider(
			sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(float64(c.Percent)/100))),
			sdktrace.WithResource(resource.NewSchemaless(
				attribute.String("service.name", "millrace"), attribute.String("service.version", Version),
				attribute.String("host.name", hostname()))),
		),
	}
}

// spansURL is where a collector takes spans: its URL has no path, or the whole one.
func spansURL(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil || strings.Trim(u.Path, "/") != "" {
		return endpoint // config.Validate has refused what is no URL
	}
	return u.JoinPath("v1", "traces").String()
}

// tracer returns what makes spans; nil where they are off.
func (t *tracing) tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("github.com/millrace/millrace")
}

// start begins to send. The caller calls stop.
func (t *tracing) start(ctx context.Context) error {
	if t == nil {
		return nil
	}
	to, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(t.url), otlptracehttp.WithTimeout(traceExport),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: time.Second, MaxInterval: 5 * time.Second, MaxElapsedTime: traceExport}))
	if err != nil {
		return fmt.Errorf("send spans to %s: %w", t.url, err)
	}
	t.provider.RegisterSpanProcessor(sdktrace.NewBatchSpanProcessor(&lossyExporter{SpanExporter: to, url: t.url, log: t.log},
		sdktrace.WithExportTimeout(traceExport)))
	return nil
}

// stop sends the spans that are left, for as long as that may take, though ctx be done.
func (t *tracing) stop(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.flush)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("not all spans were sent", "url", t.url, "err", err)
	}
}

// A patient exporter makes light of a collector that does not answer: it says so once in a
// while, and drops the spans.
type lossyExporter struct {
	sdktrace.SpanExporter
	url string
	log *slog.Logger

	mu         sync.Mutex // guards the rest
	lastLogged time.Time
	lost       int // spans since
}

// ExportSpans implements sdktrace.SpanExporter. It never fails.
func (p *lossyExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := p.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost += len(spans)
	if now := time.Now(); p.lastLogged.IsZero() || now.Sub(p.lastLogged) >= traceLog {
		p.log.Warn("spans are lost", "url", p.url, "spans", p.lost, "err", err)
		p.lastLogged, p.lost = now, 0
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (p *lossyExporter) Shutdown(ctx context.Context) error { return p.SpanExporter.Shutdown(ctx) }
