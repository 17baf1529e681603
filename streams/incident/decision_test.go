package incident

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Of two decisions about a list one counts, as often as it is recorded. Its work was ordered only when that is
// recorded, and a new incident of the key has no decision.
func TestDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l topic
		s := Subject{Account: "acme", Store: "2", Space: "photos", Kind: DeletesHeld, Name: "brake-1"}
		b := l.board()
		decide := func(d Decision, want bool) {
			t.Helper()
			if counts, err := b.Decide(t.Context(), s, d); err != nil || counts != want {
				t.Errorf("decision %+v counts: %t (%v), want %t", d, counts, err, want)
			}
		}
		phase := func(want Phase, wantRefused bool) {
			t.Helper()
			if p, refused := b.PhaseOf(s); p != want || refused != wantRefused {
				t.Errorf("phase %d, refused %t; want %d, %t", p, refused, want, wantRefused)
			}
		}
		ann, bob := Decision{By: "ann", Ref: "1", Reason: "no", Refused: true}, Decision{By: "bob", Ref: "2", Reason: "yes"}
		must(t, b.Ordered(t.Context(), s, "nothing was decided"))
		must(t, b.Open(t.Context(), s, "why"))
		phase(Undecided, false)
		l.fail = errors.New("no answer")
		if counts, err := b.Decide(t.Context(), s, ann); err == nil || counts {
			t.Errorf("got %t, %v", counts, err)
		}
		decide(ann, true)
		decide(bob, false)
		decide(ann, true)
		phase(Decided, true)
		must(t, b.Update(t.Context(), s, "1 of 2"))
		for range 2 {
			must(t, b.Ordered(t.Context(), s, "2 orders"))
		}
		phase(Ordered, true)
		decide(ann, true)
		l.checkNewest(t, pb.IncidentState_INCIDENT_STATE_REPAIRING, 4,
			"opened why", "refused no", "seen-again 1 of 2", "ordered 2 orders")
		if got := b.RefusedIn("acme", "2", "photos"); !slices.Equal(got, []Subject{s}) {
			t.Errorf("refused: %v", got)
		}
		if got := b.RefusedIn("acme", "1", "photos"); len(got) > 0 {
			t.Errorf("refused in another store: %v", got)
		}
		must(t, b.Close(t.Context(), s, "done"))
		if got := b.RefusedIn("acme", "2", "photos"); len(got) > 0 {
			t.Errorf("refused, and closed: %v", got)
		}
		decide(bob, false)
		decide(ann, true) // again, after a kill before the result of the decision
		phase(Undecided, false)
		must(t, b.Open(t.Context(), s, "again"))
		phase(Undecided, false)
		decide(bob, true)
		phase(Decided, false)
		if got := b.RefusedIn("acme", "2", "photos"); len(got) > 0 {
			t.Errorf("approved: %v", got)
		}
		must(t, b.CloseBy(t.Context(), s.Key(), &pb.AdminAction{Who: "ann"}))
		decide(bob, false) // closed before its work was ordered
		must(t, b.Open(t.Context(), s, "once more"))
		if !slices.Equal(b.OpenOf(DeletesHeld), []Subject{s}) {
			t.Error("not open")
		}
	})
}

// A list that is worked off for many months, because a store is away, remains decided: its record has the newest steps
// only, and a daily reminder does not push the decision out.
func TestDecisionOutlivesReminders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l topic
		s := Subject{Account: "acme", Store: "2", Space: "photos", Kind: DeletesHeld, Name: "brake-1"}
		b := l.board()
		must(t, b.Open(t.Context(), s, "why"))
		ann, bob := Decision{By: "ann", Ref: "1", Reason: "no", Refused: true}, Decision{By: "bob", Ref: "2", Reason: "yes"}
		if counts, err := b.Decide(t.Context(), s, ann); err != nil || !counts {
			t.Fatal(counts, err)
		}
		must(t, b.Ordered(t.Context(), s, "2 orders"))
		for day := range 3 * maxSteps {
			time.Sleep(24 * time.Hour)
			detail := fmt.Sprintf("%d of many", day)
			must(t, b.Update(t.Context(), s, detail))
			must(t, b.Remind(t.Context(), s, 24*time.Hour, detail))
			if p, refused := b.PhaseOf(s); p != Ordered || !refused {
				t.Fatalf("day %d: phase %d, refused %t", day, p, refused)
			}
		}
		if counts, err := b.Decide(t.Context(), s, bob); err != nil || counts {
			t.Errorf("another decision counts: %t, %v", counts, err)
		}
		if i := b.get(s.Key()); len(i.GetSteps()) > maxSteps {
			t.Errorf("%d steps", len(i.GetSteps()))
		}
	})
}
