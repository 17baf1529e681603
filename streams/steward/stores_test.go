package steward

import (
	"bytes"
	"log/slog"
	"slices"
	"strconv"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// Several missing spaces of a store have a parent until none is missing, one has none. Another process, or a second
// call, changes nothing.
func TestMissingSpacesOfAStore(t *testing.T) {
	w := newHarness(t)
	of := func(space string) incident.Subject {
		return incident.Subject{Account: "acme", Store: "2", Space: space, Kind: incident.SpaceMissing}
	}
	parent := incident.ParentOf(of("a"))
	lose := func(space string) {
		t.Helper()
		if err := w.board.Open(t.Context(), of(space), "it is gone"); err != nil {
			t.Fatal(err)
		}
	}
	back := func(space string) {
		t.Helper()
		if err := w.board.Close(t.Context(), of(space), "it is back"); err != nil {
			t.Fatal(err)
		}
	}
	lose("a")
	if !w.steward.ParentsDue() {
		t.Error("no update is due")
	}
	w.update()
	w.checkParent(parent, pb.IncidentState_INCIDENT_STATE_UNSPECIFIED)
	lose("b")
	w.update()
	for range 2 {
		i := w.checkParent(parent, open)
		if d := i.GetSteps(); len(d) != 1 || d[0].GetDetail() != "2 spaces of the store are missing" {
			t.Errorf("the parent is %v", i)
		}
		for _, space := range []string{"a", "b"} {
			if got := w.topic[of(space).Key()]; got.GetParent() != i.GetId() {
				t.Errorf("%s is no child: %v", space, got)
			}
		}
		w.restart()
		w.steward.Assigned()
		w.update()
	}
	back("a")
	w.update()
	w.checkParent(parent, open)
	back("b")
	w.update()
	w.checkParent(parent, shut)
	for _, space := range []string{"a", "b"} {
		lose(space)
	}
	err := w.steward.UpdateParents(t.Context(), func(key string) bool { return false }) // of another process
	if err != nil {
		t.Fatal(err)
	}
	w.checkParent(parent, shut)
}

// inSpace makes a result one of another space.
func inSpace(space string) with { return func(r *pb.FixityResult) { r.Space = space } }

// emptied has n items of each of some spaces missing, each with a good copy in store 1. Spaces are checked in turns.
func (w *harness) emptied(n int, spaces ...string) {
	w.t.Helper()
	for k := range n {
		for _, space := range spaces {
			item := "a" + strconv.Itoa(k)
			w.hasGood(space, item)
			w.handle(w.result(8, of(item), inSpace(space)))
		}
		if k%20 == 0 {
			w.update()
		}
	}
	w.update()
}

// missingStates counts the incidents of the missing copies by state.
func (w *harness) missingStates() map[pb.IncidentState]int {
	all := map[pb.IncidentState]int{}
	for _, i := range w.topic {
		if i.GetKind() == kindMissing {
			all[i.GetState()]++
		}
	}
	return all
}

// roots returns the keys of the open incidents that have no open parent.
func (w *harness) roots() (keys []string) {
	open := map[string]bool{}
	for _, i := range w.topic {
		open[i.GetId()] = i.GetState() != shut
	}
	for key, i := range w.topic {
		if i.GetState() != shut && !open[i.GetParent()] {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// A store that has lost all of its spaces has one incident. Its approval is that of all spaces, also of one whose
// copies are found missing later. Each can be approved by itself. Nothing is deleted.
func TestEmptiedStore(t *testing.T) {
	var log bytes.Buffer
	w := newHarness(t)
	w.log = slog.New(slog.NewTextHandler(&log, nil))
	w.live = 300
	w.restart()
	spaces := []string{"s1", "s2", "s3", "s4"}
	w.emptied(300, spaces...)
	w.steward.ReportAll()
	store := incident.Subject{Account: "acme", Store: "2", Kind: incident.RepairsHeld}
	i := w.checkParent(store, open)
	if got := w.roots(); !slices.Equal(got, []string{store.Key()}) {
		t.Errorf("the incidents without a parent are %q", got)
	}
	const detail = "too many copies of 4 spaces of the store are missing; the repairs of 4 spaces wait for approval"
	if d := i.GetSteps(); d[len(d)-1].GetDetail() != detail && d[0].GetDetail() != detail {
		t.Errorf("the parent is %v", i)
	}
	if got, limit := len(w.orders), 4*30; got > limit {
		t.Errorf("%d repairs are ordered, want at most %d", got, limit)
	}
	if n := warnings(&log, "report incident") + warnings(&log, "publish incident"); n != 1+4+1 {
		t.Errorf("%d reports, want those of the group, of the held repairs of each space, since the store's has no open"+
			" parent yet, and of the store:\n%s", n, log.String())
	}
	one := heldOf(schemas.Copy{Account: "acme", Store: "2", Space: "s1"})
	w.handle(w.decide(ActionApprove, one.Key()))
	w.update()
	w.deliver()
	if got := w.missingStates(); got[awaiting] != 3*270 {
		t.Errorf("after the approval of one space: %v", got)
	}
	approval := w.decide(ActionApprove, store.Key())
	approval.Id = schemas.NewID()
	if r, err := schemas.Encode(schemas.Message{Topic: schemas.Admin, Body: approval}); err != nil ||
		string(r.Key) != parentKey(store) {
		t.Errorf("a decision has the key %q (%v), want that of the parent, %q", r.Key, err, parentKey(store))
	}
	w.handle(approval)
	w.update()
	approvals := len(w.actions)
	w.update()
	if approvals != 3 || len(w.actions) != 3 {
		t.Fatalf("%d and %d approvals of spaces, want 3", approvals, len(w.actions))
	}
	if r := w.actions[0].GetReason(); r != "approved with acme/2///repairs-held: the disk is new" {
		t.Errorf("the reason is %q", r)
	}
	w.deliver()
	w.restart() // another process goes on
	w.steward.Assigned()
	for range 3 {
		w.update()
		w.deliver()
	}
	if got := w.missingStates(); got[repairing] != 4*300 {
		t.Errorf("after the approval of the store: %v", got)
	}
	w.emptied(100, "s5")
	for range 2 {
		w.update()
		w.deliver()
	}
	if got := w.missingStates(); got[repairing] != 4*300+100 || len(w.deletes) > 0 {
		t.Errorf("after the loss of a further space: %v, %d deletes", got, len(w.deletes))
	}
	for _, space := range append(spaces, "s5") {
		for k := range 300 {
			w.handle(w.result(1, of("a"+strconv.Itoa(k)), inSpace(space)))
		}
	}
	for range 2 {
		w.steward.Assigned()
		w.update()
	}
	if got := w.roots(); len(got) > 0 {
		t.Errorf("open after the repairs: %q", got)
	}
}

// The approvals of spaces that have had no effect when the parent of the store is closed have none.
func TestApprovalOfStoreWithdrawn(t *testing.T) {
	w := newHarness(t)
	w.live = 10
	w.emptied(10, "s1", "s2")
	store := incident.Subject{Account: "acme", Store: "2", Kind: incident.RepairsHeld}
	w.handle(w.decide(ActionApprove, store.Key()))
	w.update()
	w.close(store)
	before := len(w.orders)
	w.deliver()
	w.update()
	for _, space := range []string{"s1", "s2"} {
		i := w.checkParent(heldOf(schemas.Copy{Account: "acme", Store: "2", Space: space}), open)
		if !hasStep(i, stepOutdated) {
			t.Errorf("the steps are %q", actions(i))
		}
	}
	if w.checkParent(store, shut); len(w.orders) != before {
		t.Errorf("%d repairs were ordered", len(w.orders)-before)
	}
}
