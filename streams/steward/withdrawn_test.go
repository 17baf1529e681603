package steward

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Approvals of copies that have had no effect when the incident of the held repairs is closed have none, also if it was
// opened again before they are handled, and whatever the clocks of the checker and of the command say.
func TestWithdrawnWhateverTheClocksSay(t *testing.T) {
	for name, withdraw := range map[string]func(*harness){
		"closed": func(w *harness) { w.close(photos) },
		"opened again": func(w *harness) {
			w.close(photos)
			w.lose("b", 1)
			w.checkHold(photos, open)
		},
		"the clock of the command is behind": func(w *harness) { w.close(photos); w.setDecided(photos) },
		"the clock of the checker is ahead":  func(w *harness) { w.close(photos) },
		"no repair waited, and another one does": func(w *harness) {
			if err := w.board.Close(t.Context(), photos, "no repair waits any more"); err != nil {
				t.Fatal(err)
			}
			w.update()
			w.checkHold(photos, open)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.live = 2
			w.lose("a", 1)
			w.hasGood(at.Space, "a1")
			w.handle(w.result(8, of("a1"), func(r *pb.FixityResult) {
				if name == "the clock of the checker is ahead" {
					r.Finished = timestamppb.New(time.Now().Add(time.Hour))
				}
			}))
			w.approve(photos)
			withdraw(w)
			w.deliver()
			w.checkState("a1", awaiting, stepOutdated)
			if got := w.ordered(); !slices.Equal(got, []string{"a0"}) {
				t.Errorf("repairs of %q are ordered", got)
			}
		})
	}
}

// The approval of held repairs reaches a copy that a checker has found missing whose clock is an hour ahead, also after
// a check by the clock of the others, which is older by these times.
func TestApprovalOfCopyFoundAhead(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 1)
	now := time.Now()
	found := func(at time.Time) {
		r := w.result(8, of("a1"))
		r.Started, r.Finished = timestamppb.New(at), timestamppb.New(at.Add(time.Second))
		w.handle(r)
	}
	w.hasGood(at.Space, "a1")
	found(now.Add(time.Hour))
	found(now)
	w.checkState("a1", awaiting, stepOlder)
	w.approve(photos)
	w.deliver()
	w.checkState("a1", repairing, stepOrdered)
}

// An approval of held repairs is about the loss that the operator saw. When the tables are behind, the incident may
// have been closed, and opened again for another loss.
func TestApprovalOfAnEarlierLossThatWasRead(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	seen := proto.CloneOf(w.checkHold(photos, open))
	for k := range 2 {
		w.handle(w.result(1, of([]string{"a0", "a1"}[k])))
	}
	w.update()
	w.checkHold(photos, shut)
	w.lose("b", 3)
	w.checkHold(photos, open)
	a := w.decide(ActionApprove, photos.Key())
	a.Seen = Seen(seen)
	w.approveAs(a, seen)
	w.deliver()
	if i := w.checkHold(photos, open); hasStep(i, stepApproved) {
		t.Errorf("the steps are %q", actions(i))
	}
	w.checkState("b2", awaiting, stepOutdated)
	w.approve(photos)
	w.deliver()
	w.checkState("b2", repairing, stepOrdered)
}
