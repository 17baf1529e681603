package core

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
)

// Without a tracer and a trace context no span is created.
func TestSpanNil(t *testing.T) {
	r := NewRouter(client.Config{}, schemas.RolePlanner, 0)
	headers := []kgo.RecordHeader{{Key: "ce_id", Value: []byte("1")}}
	ir := &Record{Raw: &kgo.Record{Topic: "changes", Headers: headers}}
	ctx := t.Context()
	allocs := testing.AllocsPerRun(100, func() {
		in, end := r.Span(ctx, ir)
		end(nil)
		if in != ctx || ir.traceHeaders() != nil || InjectTrace(in) != nil {
			t.Error("a span out of nothing")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}
