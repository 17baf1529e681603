package steward

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// A repair that a copier holds waits until there is a decision about its list, or about it alone. Meanwhile no check
// orders another one.
func TestHeldRepair(t *testing.T) {
	listed := func(w *harness, result string) *pb.DuplicationResult {
		order := proto.CloneOf(w.orders[0])
		order.Id = "listed"
		r := w.repairResult(order, result)
		r.Cause = "repairs-1"
		return r
	}
	for name, tt := range map[string]struct {
		then   []func(*harness) schemas.Body
		state  pb.IncidentState
		last   string
		orders int
	}{
		"it waits": {nil, awaiting, stepHeld, 1},
		"a check finds it again": {[]func(*harness) schemas.Body{
			func(w *harness) schemas.Body { return w.result(8) }}, awaiting, stepSeenAgain, 1},
		"it is held once more": {[]func(*harness) schemas.Body{
			func(w *harness) schemas.Body { return w.repairResult(w.orders[0], "awaiting-approval") }}, awaiting, stepHeld, 1},
		"a check finds it again after a day": {[]func(*harness) schemas.Body{func(w *harness) schemas.Body {
			w.clock += 24 * 60
			return w.result(8)
		}}, repairing, stepOrdered, 2},
		"the list was approved": {[]func(*harness) schemas.Body{
			func(w *harness) schemas.Body { return listed(w, "repaired") },
			func(w *harness) schemas.Body { return w.result(1) }}, shut, stepClosed, 1},
		"the list was approved, and its good copy is bad": {[]func(*harness) schemas.Body{
			func(w *harness) schemas.Body { return listed(w, "repair-moot") },
			func(w *harness) schemas.Body { return w.result(8) }}, repairing, stepOrdered, 2},
		"the copy alone was approved": {[]func(*harness) schemas.Body{
			func(w *harness) schemas.Body { return w.approval(kindMissing) }}, repairing, stepOrdered, 2},
		"it is back": {[]func(*harness) schemas.Body{
			func(w *harness) schemas.Body { return w.result(1) }}, shut, stepClosed, 1},
		"a result of another list": {[]func(*harness) schemas.Body{func(w *harness) schemas.Body {
			r := listed(w, "repair-moot")
			r.Cause = "rewrites-1"
			return r
		}}, awaiting, stepHeld, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.handle(w.result(8))
			w.handle(w.repairResult(w.orders[0], "awaiting-approval"))
			for _, then := range tt.then {
				body := then(w)
				w.handle(body)
				w.handle(body)
			}
			distinct := map[string]bool{}
			for _, o := range w.orders {
				distinct[o.GetId()] = true
			}
			i := w.topic[key(kindMissing)]
			if got := i.GetSteps()[len(i.GetSteps())-1].GetAction(); i.GetState() != tt.state || got != tt.last ||
				len(distinct) != tt.orders {
				t.Errorf("%v after %s with %d orders, want %v after %s with %d", i.GetState(), got, len(distinct), tt.state,
					tt.last, tt.orders)
			}
		})
	}
}

// A repair that a person has decided not to do is ordered again by checks, up to the limit, and none is done.
func TestRepairThatIsKept(t *testing.T) {
	w := newHarness(t)
	for range 4 {
		w.handle(w.result(8))
		w.handle(w.repairResult(w.orders[len(w.orders)-1], "kept"))
	}
	if i := w.topic[key(kindMissing)]; i.GetState() != open || i.GetRepairs() != 3 || !hasStep(i, stepExhausted) {
		t.Errorf("got %v", i)
	}
}

// Incidents of lists are those of the board.
func TestKindsOfLists(t *testing.T) {
	w := newHarness(t)
	w.record(&pb.Incident{Account: at.Account, Store: at.Store, Space: at.Space, Kind: incident.RepairsHeld, State: open})
	if w.steward.table.of(at.WithoutItem()) != nil {
		t.Error("the steward has the incident of a list")
	}
}

// A checksum that the provider has computed closes no incident.
func TestComputedClosesNothing(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(8))
	w.handle(w.result(1, func(r *pb.FixityResult) { r.EvidenceLevel = 3 }))
	w.checkIncident(kindMissing, repairing, "opened", "repair-ordered")
}
