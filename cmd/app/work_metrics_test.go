package app

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The bytes of checks and copies are counted by account and store: of a check those that it has read, of a copy those
// that were written, if it has written any.
func TestWorkMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m := newWorkMetrics(registry)
	check := func(store string, bytes int64) *pb.FixityResult {
		return &pb.FixityResult{Account: "acme", Store: store, BytesRead: bytes}
	}
	copied := func(outcome pb.Outcome, bytes int64) *pb.DuplicationResult {
		return &pb.DuplicationResult{Account: "acme", SourceStore: "1", DestinationStore: "2", Outcome: outcome, Bytes: bytes}
	}
	handle := func(err error, bodies ...schemas.Body) {
		t.Helper()
		out, got := m.counting(func(context.Context, *schemas.Delivery) (out []schemas.Message, _ error) {
			for _, b := range bodies {
				out = append(out, schemas.Message{Body: b})
			}
			return out, err
		})(t.Context(), nil)
		if !errors.Is(got, err) || len(out) != len(bodies) {
			t.Errorf("returned %d messages and %v, want %d and %v", len(out), got, len(bodies), err)
		}
	}
	handle(nil, check("1", 7), &pb.Change{Account: "acme", Store: "1", Size: 100})
	handle(nil, check("1", 5), &pb.FixityTask{Account: "acme", Store: "1", Size: 100})
	handle(nil, check("2", 0)) // nothing was read
	handle(nil, copied(pb.Outcome_OUTCOME_DONE, 11), &pb.Change{Account: "acme", Store: "2", Size: 11})
	handle(nil, copied(pb.Outcome_OUTCOME_NOTHING, 100))
	handle(nil, copied(pb.Outcome_OUTCOME_FAILED, 100))
	handle(nil, copied(pb.Outcome_OUTCOME_HANDED_ON, 100))
	handle(errUnavailable)
	families, err := registry.Gather()
	must(t, err)
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, l := range metric.GetLabel() {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			got[name] = metric.GetCounter().GetValue()
		}
	}
	want := map[string]float64{"millrace_checked_bytes_total account=acme store=1": 12,
		"millrace_checked_bytes_total account=acme store=2": 0,
		"millrace_copied_bytes_total account=acme store=2":  11}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
