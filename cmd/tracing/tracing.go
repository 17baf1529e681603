// Package tracing sends the spans of a process to an OpenTelemetry collector.
package tracing

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
	traceLog    = time.Minute // between two warnings about the collector
)

// A Tracing sends spans to a collector. It never blocks: spans that the collector does not accept
// in time are dropped.
type Tracing struct {
	url      string
	flush    time.Duration // maximum time of Stop
	log      *slog.Logger
	provider *sdktrace.TracerProvider
}

// New returns the Tracing of a version of the program on a host; nil if tracing is off. Nothing is sent before Start.
func New(c config.Trace, version, host string, log *slog.Logger) *Tracing {
	if c.Endpoint == "" {
		return nil
	}
	return &Tracing{
		url: spansURL(c.Endpoint), flush: traceFlush, log: log,
		provider: sdktrace.NewTracerProvider(
			sdktrace.WithResource(resource.NewSchemaless(
				attribute.String("service.name", "millrace"), attribute.String("service.version", version),
				attribute.String("host.name", host))),
		),
	}
}

// spansURL returns the URL of the collector for traces. endpoint has no path, or the complete one.
func spansURL(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil || strings.Trim(u.Path, "/") != "" {
		return endpoint // the configuration has refused invalid URLs
	}
	return u.JoinPath("v1", "traces").String()
}

// Tracer returns the tracer; nil if tracing is off.
func (t *Tracing) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("github.com/millrace/millrace")
}

// Start starts sending. The caller calls Stop.
func (t *Tracing) Start(ctx context.Context) error {
	if t == nil {
		return nil
	}
	to, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(t.url), otlptracehttp.WithTimeout(traceExport),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: time.Second, MaxInterval: 5 * time.Second, MaxElapsedTime: traceExport,
		}))
	if err != nil {
		return fmt.Errorf("send spans to %s: %w", t.url, err)
	}
	t.provider.RegisterSpanProcessor(sdktrace.NewBatchSpanProcessor(
		&lossyExporter{SpanExporter: to, url: t.url, log: t.log}, sdktrace.WithExportTimeout(traceExport)))
	return nil
}

// Stop sends the remaining spans for at most the flush time, also after ctx is done.
func (t *Tracing) Stop(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.flush)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("flush spans", "url", t.url, "err", err)
	}
}

// A lossyExporter drops the spans that the collector does not accept, and logs that at intervals.
type lossyExporter struct {
	sdktrace.SpanExporter
	url string
	log *slog.Logger

	mu         sync.Mutex // guards the rest
	lastLogged time.Time
	lost       int // spans dropped since then
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
		p.log.Warn("drop spans", "url", p.url, "spans", p.lost, "err", err)
		p.lastLogged, p.lost = now, 0
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (p *lossyExporter) Shutdown(ctx context.Context) error { return p.SpanExporter.Shutdown(ctx) }
