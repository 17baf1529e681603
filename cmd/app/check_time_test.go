package app

import (
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/sweep"
)

// A dry run says how many checks of how many bytes a request leads to, and how long they take by the checks on record
// and by the budgets. It requests nothing. The time is unknown as long as the store was not checked.
func TestCheckTime(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 4)
	dry := func() []FixityRound {
		t.Helper()
		rounds, err := s.a.SweepFixity(t.Context(), FixityRequest{Account: "acme", Store: "1", Space: "photos",
			Begun: s.begun.Add(time.Minute), All: true, DryRun: true})
		if err != nil || len(rounds) != 1 || rounds[0].Counts[sweep.Requested] != 4 ||
			rounds[0].Counts[sweep.RequestedBytes] != 28 {
			t.Fatalf("dry run: %+v, %v", rounds, err)
		}
		return rounds
	}
	check := func(name string, rounds []FixityRound, want float64) { // want < 0: unknown
		t.Helper()
		got, err := s.a.CheckTime(t.Context(), rounds)
		if err != nil || (got == nil) != (want < 0) || got != nil && *got != want {
			t.Errorf("%s: got %v, %v; want %v", name, got, err, want)
		}
	}
	rounds := dry()
	check("no check is on record", rounds, -1)
	if n := len(s.b.Bodies(schemas.FixityHigh)) + len(s.b.Bodies(schemas.Checkpoints)); n != 0 {
		t.Errorf("the dry run has published %d records", n)
	}
	_, tasks := s.sweep(0, false)
	s.pass(tasks, s.begun.Add(-time.Second)) // 4 checks of 28 bytes in a minute
	rounds = dry()
	check("at the rate of the checks on record", rounds, 60)
	half := rounds[0]
	half.Counts = map[string]int64{sweep.Requested: 2, sweep.RequestedBytes: 280}
	check("at the rate of the bytes on record", []FixityRound{half}, 600)
	check("the rounds of a store add up", append(rounds, half), 660)
	other := half
	other.Store = "2"
	check("another store was not checked", append(rounds, other), -1)
	other.Counts = nil
	check("another store has none to check", append(rounds, other), 60)
	check("nothing is checked", nil, 0)
	s.a.cfg.Fixity.Budgets = []config.StoreBudget{{Stores: "acme", Items: 8}}
	check("by a budget of items", rounds, 12*60*60)
	s.a.cfg.Fixity.Budgets = []config.StoreBudget{{Stores: "acme", Items: 8, Bytes: 14}}
	check("by a budget of bytes", rounds, 48*60*60)
}
