package steward

import (
	"testing"

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
