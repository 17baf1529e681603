package steward

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// approveLate approves held repairs, whose approvals of children are published and not handled yet.
func (w *harness) approveLate(about incident.Subject) {
	w.t.Helper()
	w.handle(w.decide(ActionApprove, about.Key()))
	w.update()
	if len(w.actions) == 0 {
		w.t.Fatal("no approvals of children")
	}
}

// age makes the decision about held repairs older.
func (w *harness) age(about incident.Subject, by time.Duration) {
	w.t.Helper()
	i := proto.CloneOf(w.topic[about.Key()])
	for _, s := range i.Steps {
		if s.GetAction() == stepApproved {
			s.Time = timestamppb.New(s.GetTime().AsTime().Add(-by))
		}
	}
	w.record(i)
}

// Approvals of children that have had no effect when the parent is closed have none, also if the parent was opened
// again before they are handled, and whatever the clocks of the checker and of the command say.
func TestWithdrawnWhateverTheClocksSay(t *testing.T) {
	for name, withdraw := range map[string]func(*harness){
		"opened again": func(w *harness) {
			w.closeParent(photos)
			w.lose("b", 1)
			w.update()
			w.checkParent(photos, open)
		},
		"the clock of the command is behind": func(w *harness) { w.closeParent(photos) },
		"the clock of the checker is ahead":  func(w *harness) { w.close(photos) },
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
			w.update()
			w.approveLate(photos)
			withdraw(w)
			w.deliver()
			w.checkState("a1", awaiting, stepOutdated)
			if got := w.ordered(); !slices.Equal(got, []string{"a0"}) {
				t.Errorf("repairs of %q are ordered", got)
			}
		})
	}
}

// The same holds for approvals of spaces that follow from that of their store.
func TestWithdrawnFromSpaces(t *testing.T) {
	w := newHarness(t)
	w.live = 10
	w.emptied(10, "s1", "s2")
	store := incident.Subject{Account: "acme", Store: "2", Kind: incident.RepairsHeld}
	w.approveLate(store)
	w.closeParent(store)
	w.emptied(10, "s3")
	w.update()
	w.checkParent(store, open)
	before := len(w.orders)
	w.deliver()
	w.update()
	w.deliver()
	for _, space := range []string{"s1", "s2"} {
		w.checkParent(heldOf(schemas.Copy{Account: "acme", Store: "2", Space: space}), open)
	}
	if len(w.orders) != before {
		t.Errorf("%d repairs were ordered", len(w.orders)-before)
	}
}

// The approval of a store covers the incident of a space, also if that is opened again, until a person has closed it,
// or for a round over the space.
func TestApprovalOfStoreEndsWithTheSpace(t *testing.T) {
	for name, end := range map[string]func(*harness, incident.Subject){
		"closed by a person": func(w *harness, s1 incident.Subject) { w.closeParent(s1) },
		"expired": func(w *harness, s1 incident.Subject) {
			w.steward.config.Round = func(c schemas.Copy) time.Duration {
				if c.Space == "" {
					return 90 * 24 * time.Hour
				}
				return 7 * 24 * time.Hour
			}
			w.age(s1, 8*24*time.Hour)
			w.age(incident.ParentOf(s1), 8*24*time.Hour)
			w.steward.Assigned()
			w.update()
			w.checkParent(s1, shut)
			w.setClosed(s1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.live = 10
			w.emptied(10, "s1", "s2")
			store := incident.Subject{Account: "acme", Store: "2", Kind: incident.RepairsHeld}
			w.approveLate(store)
			w.deliver() // to the spaces, and not to the copies
			s1 := heldOf(schemas.Copy{Account: "acme", Store: "2", Space: "s1"})
			w.checkParent(s1, repairing)
			for k := range 10 { // all copies are there again, and some are lost: the approval covers them
				w.handle(w.result(1, of("a"+strconv.Itoa(k)), inSpace("s1")))
			}
			w.steward.Assigned()
			w.update()
			w.checkParent(s1, shut)
			w.emptied(9, "s1")
			for range 2 {
				w.update()
				w.deliver()
			}
			w.checkParent(s1, repairing)
			w.checkParent(store, repairing)
			end(w, s1)
			w.hasGood("s1", "b0")
			w.handle(w.result(8, of("b0"), inSpace("s1")))
			for range 3 {
				w.steward.Assigned()
				w.update()
				w.deliver()
			}
			w.checkParent(s1, open)
			w.checkParent(store, open) // it waits for another approval
			if slices.ContainsFunc(w.orders, func(o *pb.DuplicationCommand) bool { return o.GetItem() == "b0" }) {
				t.Error("the repair is ordered")
			}
			w.approveLate(store)
			for range 2 {
				w.deliver()
				w.update()
			}
			if i := w.topic[schemas.Key(at.Account, at.Store, "s1", "b0", kindMissing)]; i.GetState() != repairing {
				t.Errorf("after another approval: %v", i)
			}
		})
	}
}

// The approval of a store does not cover a space whose incident a person has closed since, also if the approval of the
// space had not arrived by then.
func TestSpaceClosedBeforeItsApprovalArrives(t *testing.T) {
	for name, arrive := range map[string]func(*harness){
		"while it is closed":      (*harness).deliver,
		"when it is opened again": func(*harness) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.live = 10
			w.emptied(10, "s1", "s2")
			store := incident.Subject{Account: "acme", Store: "2", Kind: incident.RepairsHeld}
			s1 := heldOf(schemas.Copy{Account: "acme", Store: "2", Space: "s1"})
			w.approveLate(store)
			w.closeParent(s1)
			arrive(w)
			w.hasGood("s1", "b0")
			w.handle(w.result(8, of("b0"), inSpace("s1")))
			before := len(w.orders)
			for range 3 {
				w.steward.Assigned()
				w.update()
				w.deliver()
			}
			w.checkParent(s1, open)
			w.checkParent(store, open) // it waits for another approval
			if slices.ContainsFunc(w.orders[before:], func(o *pb.DuplicationCommand) bool { return o.GetSpace() == "s1" }) {
				t.Error("repairs of the space are ordered")
			}
		})
	}
}

// An approval of a store counts for a space whose incident was closed by a command whose clock is ahead, and opened
// again.
func TestSpaceClosedByAClockAhead(t *testing.T) {
	w := newHarness(t)
	w.live = 10
	w.emptied(10, "s1", "s2")
	store := incident.Subject{Account: "acme", Store: "2", Kind: incident.RepairsHeld}
	s1 := heldOf(schemas.Copy{Account: "acme", Store: "2", Space: "s1"})
	w.closeParent(s1)
	i := proto.CloneOf(w.topic[s1.Key()])
	i.Steps[len(i.Steps)-1].Time = timestamppb.New(time.Now().Add(time.Hour))
	i.Closed = i.Steps[len(i.Steps)-1].Time
	w.record(i)
	w.handle(w.result(8, of("b0"), inSpace("s1")))
	w.update()
	w.checkParent(s1, open)
	w.approveLate(store)
	for range 2 {
		w.deliver()
		w.update()
	}
	w.checkParent(store, repairing)
	w.checkParent(s1, repairing)
}

// The approval of a space that follows from that of its store is about one opening, whatever the clock of the steward
// of the store says.
func TestApprovalOfAnEarlierOpeningOfASpace(t *testing.T) {
	w := newHarness(t)
	w.live = 10
	w.emptied(10, "s1", "s2")
	store := incident.Subject{Account: "acme", Store: "2", Kind: incident.RepairsHeld}
	s1 := heldOf(schemas.Copy{Account: "acme", Store: "2", Space: "s1"})
	w.handle(w.decide(ActionApprove, store.Key()))
	w.age(store, -time.Hour) // by a clock that is ahead
	w.update()
	late := w.actions // of the spaces
	if w.actions = nil; len(late) != 2 {
		t.Fatalf("approvals of spaces: %v", late)
	}
	w.closeParent(store)
	if err := w.board.Close(t.Context(), s1, "no incident of it is open any more"); err != nil {
		t.Fatal(err)
	}
	w.emptied(10, "s3")
	w.checkParent(store, open)
	w.checkParent(s1, open)
	w.actions = late
	before := len(w.orders)
	w.deliver()
	w.update()
	w.deliver()
	if i := w.checkParent(s1, open); !hasStep(i, stepOutdated) || len(w.orders) != before {
		t.Errorf("the steps are %q, and %d repairs are ordered", actions(i), len(w.orders)-before)
	}
}

// A copy whose approval ended with the incident of its space gets another one when the approval of the store covers the
// space again.
func TestApprovedAgainInTheNextWave(t *testing.T) {
	w := newHarness(t)
	w.live = 10
	w.emptied(10, "s1", "s2")
	store := incident.Subject{Account: "acme", Store: "2", Kind: incident.RepairsHeld}
	s1 := heldOf(schemas.Copy{Account: "acme", Store: "2", Space: "s1"})
	w.approveLate(store)
	w.deliver()
	w.update()
	late := w.actions // of the copies
	w.actions = nil
	if err := w.board.Close(t.Context(), s1, "no incident of it is open any more"); err != nil {
		t.Fatal(err)
	}
	w.actions = late
	w.deliver()
	for range 3 {
		w.steward.Assigned()
		w.update()
		w.deliver()
	}
	w.checkParent(s1, repairing)
	if got := w.missingStates(); got[awaiting] > 0 {
		t.Errorf("copies wait: %v", got)
	}
}

// An approval ends after a round also if nothing has happened since.
func TestExpiredApprovalOrdersNothing(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	w.update()
	w.approveLate(photos)
	w.deliver()
	w.checkState("a1", repairing, stepOrdered)
	w.age(photos, 2*w.steward.config.Round(at.WithoutItem()))
	w.lose("b", 1)
	w.checkState("b0", awaiting, stepHeld)
	w.update()
	w.deliver()
	w.checkState("b0", awaiting, stepHeld)
	w.checkParent(photos, shut)
	w.update()
	w.checkParent(photos, open)
}

// Approvals that have no effect since repairs are off in one store do not delay those of another one.
func TestApprovalsOfStoreWithoutRepairs(t *testing.T) {
	w := newHarness(t)
	w.fill(2*approvalsAtOnce, 2*approvalsAtOnce)
	w.update()
	w.handle(w.decide(ActionApprove, photos.Key()))
	w.update()
	w.modes[at.Store] = Off
	w.deliver()
	w.live = 2
	for k := range 2 {
		item := "a" + strconv.Itoa(k)
		w.hasGood(at.Space, item)
		w.handle(w.result(8, of(item), func(r *pb.FixityResult) { r.Store = "3" }))
	}
	other := heldOf(schemas.Copy{Account: at.Account, Store: "3", Space: at.Space})
	w.update()
	w.handle(w.decide(ActionApprove, other.Key()))
	w.update()
	w.deliver()
	if i := w.topic[schemas.Key(at.Account, "3", at.Space, "a1", kindMissing)]; i.GetState() != repairing ||
		len(i.GetSteps()) < 3 || i.GetSteps()[2].GetAction() != stepApproved {
		t.Errorf("the copy in the other store is %v", i)
	}
	w.modes[at.Store] = Auto
	for range 3 {
		w.steward.Assigned()
		w.update()
		w.deliver()
	}
	if got := w.missingStates(); got[awaiting] > 0 {
		t.Errorf("after repairs are on: %v", got)
	}
}

// A storm after a person has closed the parent of an earlier one is reported, also if the clock of the checker is
// behind so that it dates the storm before the close.
func TestStormAfterCloseByPerson(t *testing.T) {
	for name, tt := range map[string]struct {
		about incident.Subject
		storm func(w *harness, prefix string)
	}{
		"group": {incident.Subject{Account: "acme", Store: "2", Space: "photos", Kind: incident.Grouped, Name: kindCorrupt},
			func(w *harness, prefix string) { w.corrupt(prefix, groupAfter+10) }},
		"held repairs": {photos, func(w *harness, prefix string) {
			w.live = 2
			w.lose(prefix, 3)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			tt.storm(w, "a")
			w.update()
			err := w.board.CloseBy(t.Context(), tt.about.Key(), w.decide(ActionClose, tt.about.Key())) // now: after the storms
			if err != nil {
				t.Fatal(err)
			}
			w.restart()
			w.steward.Assigned()
			w.update()
			w.checkParent(tt.about, shut)
			tt.storm(w, "b")
			w.restart()
			w.steward.Assigned()
			w.update()
			w.checkParent(tt.about, open)
		})
	}
}

// The approval of a parent reaches a copy that a checker has found missing whose clock is an hour ahead, also after a
// check by the clock of the others, which is older by these times.
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
	w.update()
	w.approveLate(photos)
	w.deliver()
	w.checkState("a1", repairing, stepOrdered)
}

// An approval of a parent is about the loss that the operator saw. When the tables are behind, the parent may have been
// closed, and opened again for another loss.
func TestApprovalOfAnEarlierLossThatWasRead(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	w.update()
	seen := proto.CloneOf(w.checkParent(photos, open))
	for k := range 2 {
		w.handle(w.result(1, of("a"+strconv.Itoa(k))))
	}
	w.update()
	w.checkParent(photos, shut)
	w.setClosed(photos)
	w.lose("b", 3)
	w.update()
	w.checkParent(photos, open)
	a := w.decide(ActionApprove, photos.Key())
	a.Seen = Seen(seen)
	w.handle(a)
	w.update()
	w.deliver()
	if i := w.checkParent(photos, open); !hasStep(i, stepOutdated) {
		t.Errorf("the steps are %q", actions(i))
	}
	w.checkState("b2", awaiting, stepHeld)
	w.approveLate(photos)
	w.deliver()
	w.checkState("b2", repairing, stepOrdered)
}

// A parent that a person has closed stays closed, also if the clock of the checker that has found its children is
// ahead.
func TestClosedParentOfChildrenFoundAhead(t *testing.T) {
	for name, tt := range map[string]struct {
		about incident.Subject
		row   int32
	}{
		"group": {incident.Subject{Account: "acme", Store: "2", Space: "photos", Kind: incident.Grouped,
			Name: kindCorrupt}, 2},
		"held repairs": {photos, 8},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.live = 2
			ahead := timestamppb.New(time.Now().Add(time.Hour))
			find := func(prefix string, row int32) {
				for k := range groupAfter + 5 {
					item := prefix + strconv.Itoa(k)
					w.hasGood(at.Space, item)
					w.handle(w.result(row, of(item), func(r *pb.FixityResult) { r.Started, r.Finished = ahead, ahead }))
				}
				w.update()
			}
			for _, row := range [...]int32{tt.row, 1, tt.row} { // the second time after a good check, which is ahead, too
				find("a", row)
			}
			w.checkParent(tt.about, open)
			time.Sleep(2 * time.Millisecond) // an incident opens a millisecond after the one before at the earliest
			w.close(tt.about)
			w.steward.Assigned()
			w.update()
			w.checkParent(tt.about, shut)
			find("b", tt.row)
			w.checkParent(tt.about, open)
		})
	}
}
