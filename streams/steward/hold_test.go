package steward

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

var photos = heldOf(at.WithoutItem())

// missing handles the result of a check that has found an item missing, and returns the outputs.
func (w *harness) missing(item string) []schemas.Message {
	w.t.Helper()
	return w.handle(w.result(8, of(item)))
}

// of makes a result one of another item, which has good copies.
func of(item string) with { return func(r *pb.FixityResult) { r.Item = item } }

// hasGood has a good copy of an item in store 1.
func (w *harness) hasGood(space, item string) {
	w.records[schemas.Copy{Account: at.Account, Store: "1", Space: space, Item: item}] = live(want)
}

// lose has n items missing, each with a good copy in store 1. Their names begin with prefix.
func (w *harness) lose(prefix string, n int) {
	w.t.Helper()
	for k := range n {
		item := prefix + strconv.Itoa(k)
		w.hasGood(at.Space, item)
		w.missing(item)
	}
}

func (w *harness) missingKey(item string) string {
	return schemas.Key(at.Account, at.Store, at.Space, item, kindMissing)
}

// state returns the state and the last step of the incident of a missing item.
func (w *harness) state(item string) string {
	i := w.topic[w.missingKey(item)]
	steps := i.GetSteps()
	if len(steps) == 0 {
		return "none"
	}
	return fmt.Sprint(i.GetState(), " ", steps[len(steps)-1].GetAction())
}

func (w *harness) checkState(item string, state pb.IncidentState, last string) {
	w.t.Helper()
	if got, want := w.state(item), fmt.Sprint(state, " ", last); got != want {
		w.t.Errorf("%s is %s, want %s", item, got, want)
	}
}

// parent checks the state of the incident about the repairs of the space and returns it.
func (w *harness) checkParent(about incident.Subject, state pb.IncidentState) *pb.Incident {
	w.t.Helper()
	i := w.topic[about.Key()]
	if i.GetState() != state {
		w.t.Errorf("%s is %v, want %v", about.Key(), i.GetState(), state)
	}
	return i
}

// update calls UpdateParents as the owner of all partitions.
func (w *harness) update() {
	w.t.Helper()
	if err := w.steward.UpdateParents(w.t.Context(), func(string) bool { return true }); err != nil {
		w.t.Fatal(err)
	}
}

// deliver handles the approvals of children.
func (w *harness) deliver() {
	w.t.Helper()
	actions := w.actions
	w.actions = nil
	for _, a := range actions {
		w.handle(a)
	}
}

// decide returns an operator's decision about the incident with a key.
func (w *harness) decide(action, key string) *pb.AdminAction {
	i := w.topic[key]
	at := w.next()
	if i.GetItem() == "" { // the board has the time of the machine
		at = timestamppb.Now()
	}
	return &pb.AdminAction{
		Id: "admin-" + strconv.Itoa(w.clock), Time: at, Who: "eve", Action: action, Target: key, Reason: "the disk is new",
		Account: i.GetAccount(), Store: i.GetStore(), Space: i.GetSpace(), Item: i.GetItem(),
		Incident: i.GetId(), Seen: Seen(i),
	}
}

// closeParent closes a parent as the command does, at the time of the tests.
func (w *harness) closeParent(about incident.Subject) {
	w.t.Helper()
	w.close(about)
	w.setClosed(about)
}

// close is closeParent by the clock of the command.
func (w *harness) close(about incident.Subject) {
	w.t.Helper()
	if err := w.board.CloseBy(w.t.Context(), about.Key(), w.decide(ActionClose, about.Key())); err != nil {
		w.t.Fatal(err)
	}
}

// setClosed sets the time at which a parent was closed to that of the tests.
func (w *harness) setClosed(about incident.Subject) {
	w.t.Helper()
	i := proto.CloneOf(w.checkParent(about, shut))
	i.Closed = w.next()
	w.record(i)
}

// ordered returns the items of the repair orders so far, without repetitions.
func (w *harness) ordered() (items []string) {
	for _, o := range w.orders {
		items = append(items, o.GetItem())
	}
	slices.Sort(items)
	return slices.Compact(items)
}

// Repairs are ordered one by one until more copies are missing than the share. Further ones wait for one approval,
// which orders all of them, each once.
func TestHeldRepairs(t *testing.T) {
	w := newHarness(t)
	w.lose("a", 100)
	w.update()
	if got := len(w.ordered()); got != 100 || w.topic[photos.Key()] != nil {
		t.Fatalf("with the share exactly, %d repairs are ordered, and the parent is %v", got, w.topic[photos.Key()])
	}
	w.lose("b", 3)
	w.checkState("b0", awaiting, stepHeld)
	w.checkState("a7", repairing, stepGrouped)
	if got := len(w.ordered()); got != 100 {
		t.Fatalf("%d repairs are ordered", got)
	}
	w.update()
	i := w.checkParent(photos, open)
	const detail = "103 copies of the space are missing, more than sweep.max_missing or all of it;" +
		" 3 repairs wait for approval"
	if d := i.GetSteps()[0].GetDetail(); d != detail {
		t.Errorf("the parent says %q, want %q", d, detail)
	}
	w.handle(w.decide(ActionApprove, photos.Key()))
	w.update()
	if i := w.checkParent(photos, repairing); !hasStep(i, stepApproved) {
		t.Errorf("the parent is %v", i)
	}
	w.checkState("b0", awaiting, stepHeld)
	if len(w.actions) != 3 || w.actions[0].GetWho() != "eve" ||
		w.actions[0].GetReason() != "approved with acme/2/photos//repairs-held: the disk is new" {
		t.Errorf("approvals of children: %v", w.actions)
	}
	w.deliver()
	w.checkState("b0", repairing, stepOrdered)
	w.lose("c", 2) // under the approved parent
	w.checkState("c1", repairing, stepOrdered)
	if got := len(w.ordered()); got != 105 || len(w.deletes) > 0 {
		t.Errorf("%d repairs and %d deletes are ordered", got, len(w.deletes))
	}
	w.update()
	if len(w.actions) != 0 {
		t.Errorf("approved again: %v", w.actions)
	}
	for _, prefix := range []string{"a", "b", "c"} {
		for k := range map[string]int{"a": 100, "b": 3, "c": 2}[prefix] {
			w.handle(w.result(1, of(prefix+strconv.Itoa(k))))
		}
	}
	w.update()
	w.setClosed(photos)
	w.missing("d") // the repairs before count no more
	w.update()
	w.checkParent(photos, shut)
	w.checkState("d", open, stepNoCopy)
}

// Checks whose results are handled at the same time count each other.
func TestHeldRepairsAtOnce(t *testing.T) {
	w := newHarness(t)
	w.live = 8
	var results []*pb.FixityResult
	for k := range w.live {
		item := "a" + strconv.FormatInt(k, 10)
		w.hasGood(at.Space, item)
		results = append(results, w.result(8, of(item)))
	}
	var g errgroup.Group
	for _, r := range results {
		g.Go(func() error {
			_, err := w.steward.Handle(t.Context(), &schemas.Delivery{Body: r})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if all := w.steward.table.childCounts(); len(all) != 1 || all[0].awaiting == 0 {
		t.Error("the whole space is repaired")
	}
}

// Repairs that were ordered and have ended count for a round, so that a store that loses its copies slowly, or whose
// repairs are fast, is noticed.
func TestRepairedCopiesCount(t *testing.T) {
	w := newHarness(t)
	for k := range 100 {
		item := "a" + strconv.Itoa(k)
		w.lose(item, 1)
		w.handle(w.result(1, of(item+"0")))
	}
	w.lose("b", 1)
	w.checkState("b0", awaiting, stepHeld)
}

// All copies of a small space are one cause, too. The only copy of a space is repaired.
func TestHeldRepairsOfSmallSpace(t *testing.T) {
	w := newHarness(t)
	w.live = 3
	w.lose("a", 3)
	w.checkState("a1", repairing, stepOrdered)
	w.checkState("a2", awaiting, stepHeld)
	w = newHarness(t)
	w.live = 1
	w.lose("a", 1)
	w.checkState("a0", repairing, stepOrdered)
}

// In a store whose repairs need an approval each, the parent's approval covers those that came before it.
func TestHeldRepairsOfPrimary(t *testing.T) {
	w := newHarness(t)
	w.modes["2"] = Approve
	w.live = 100
	w.lose("a", 11)
	w.checkState("a0", awaiting, stepAsked)
	w.checkState("a10", awaiting, stepHeld)
	w.update()
	w.handle(w.decide(ActionApprove, photos.Key()))
	w.update()
	w.deliver()
	if got := len(w.ordered()); got != 11 {
		t.Errorf("%d repairs are ordered, want 11", got)
	}
	w.modes["2"] = Off // from now on
	w.lose("b", 1)
	w.checkState("b0", open, stepOpened)
}

// While the number of copies is unknown, a repair is neither ordered nor held: the copy is checked again. Where each
// repair needs an approval, it asks for one.
func TestUnknownNumberOfCopies(t *testing.T) {
	w := newHarness(t)
	w.live = -1
	w.lose("a", 1) // one is never too much
	w.checkState("a0", repairing, stepOrdered)
	w.lose("b", 1)
	w.checkState("b0", open, stepUnknown)
	if n := len(w.tasks); n != 1 || w.tasks[0].GetItem() != "b0" || len(w.ordered()) != 1 {
		t.Fatalf("%d checks, repairs of %q", n, w.ordered())
	}
	w.live = 1000
	w.missing("b0")
	w.checkState("b0", repairing, stepOrdered)
	w.live, w.modes["2"] = -1, Approve
	w.lose("c", 1)
	w.checkState("c0", awaiting, stepAsked)
	w.update()
	w.checkParent(photos, pb.IncidentState_INCIDENT_STATE_UNSPECIFIED)
}

// A parent that a person has closed leaves its children as they are. Each can be approved by itself, and a later check
// does not order the repair. Only a further missing copy opens the parent again.
func TestParentClosedByPerson(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 3)
	w.update()
	w.closeParent(photos)
	w.update()
	w.checkParent(photos, shut)
	w.checkState("a1", awaiting, stepHeld)
	w.handle(w.decide(ActionApprove, w.missingKey("a1")))
	w.checkState("a1", repairing, stepOrdered)
	w.live = 1000
	w.missing("a2")
	w.checkState("a2", awaiting, stepSeenAgain)
	w.update()
	w.checkParent(photos, shut)
	w.live = 4
	w.lose("b", 1)
	w.checkState("b0", awaiting, stepHeld)
	w.update()
	w.checkParent(photos, open)
	if got := w.ordered(); !slices.Equal(got, []string{"a0", "a1"}) {
		t.Errorf("repairs of %q", got)
	}
}

// A child that passes, or that was repaired by another approval, gets none from its parent.
func TestChildrenThatChange(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 5)
	w.update()
	w.handle(w.decide(ActionApprove, photos.Key()))
	w.handle(w.result(1, of("a1")))                           // passes before the approval reaches it
	w.handle(w.decide(ActionApprove, w.missingKey("a2")))     // is being repaired
	w.handle(w.result(8, of("a3"), func(r *pb.FixityResult) { // is expected to be something else
		r.Manifest = proto.CloneOf(r.GetManifest())
		r.Manifest.Digests = bad1
		r.Audit = r.Manifest
	}))
	w.update()
	var items []string
	for _, a := range w.actions {
		items = append(items, a.GetItem())
	}
	if !slices.Equal(items, []string{"a4"}) {
		t.Errorf("approvals of %q, want those of a4", items)
	}
	w.handle(w.result(1, of("a4"))) // passes before its approval
	w.deliver()
	w.checkState("a1", shut, stepClosed)
	w.checkState("a4", shut, stepClosed)
	if got := w.ordered(); !slices.Equal(got, []string{"a0", "a2"}) {
		t.Errorf("repairs of %q", got)
	}
}

// A child whose expected content has changed since the approval was published is approved as it is then.
func TestChildOutdated(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	w.update()
	w.handle(w.decide(ActionApprove, photos.Key()))
	w.update()
	approval := w.actions[0]
	i := proto.CloneOf(w.topic[w.missingKey("a1")])
	i.Row, i.StepCount = 9, i.GetStepCount()+1 // any other finding
	i.Steps = append(i.Steps, &pb.IncidentStep{Time: w.next(), Action: stepSeenAgain, Ref: "other"})
	w.record(i)
	w.deliver()
	w.checkState("a1", awaiting, stepOutdated)
	w.update()
	if len(w.actions) != 1 || w.actions[0].GetId() == approval.GetId() {
		t.Fatalf("approvals: %v", w.actions)
	}
	w.deliver()
	w.checkState("a1", repairing, stepOrdered)
}

// Messages that are handled again, approvals that are published again, a second approval, and another process that has
// read the topic change nothing.
func TestHeldRepairsTwice(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 1)
	last := w.result(8, of("a1"))
	w.hasGood(at.Space, "a1")
	w.handleWithoutPublishing(last) // its process dies
	w.restart()
	w.handle(last)
	before := proto.CloneOf(w.topic[w.missingKey("a1")])
	w.handle(last)
	if got := w.topic[w.missingKey("a1")]; !proto.Equal(got, before) {
		t.Errorf("handled twice: got %v, want %v", got, before)
	}
	w.restart() // before the parent was opened
	w.steward.Assigned()
	w.update()
	w.checkParent(photos, open)
	approval := w.decide(ActionApprove, photos.Key())
	w.handle(approval)
	w.restart()
	w.handle(approval)
	w.handle(w.decide(ActionApprove, photos.Key())) // of another operator
	steps := w.topic[photos.Key()].GetSteps()
	approved := 0
	for _, s := range steps {
		if s.GetAction() == stepApproved {
			approved++
		}
	}
	if approved != 1 {
		t.Errorf("the parent was approved %d times: %v", approved, steps)
	}
	w.update()
	w.restart() // before the approval was handled
	w.steward.Assigned()
	w.update()
	if len(w.actions) != 2 || !proto.Equal(w.actions[0], w.actions[1]) {
		t.Fatalf("approvals of the child: %v", w.actions)
	}
	w.deliver()
	w.restart()
	w.steward.Assigned()
	w.update()
	if got := w.topic[w.missingKey("a1")]; len(w.actions) > 0 || got.GetRepairs() != 1 {
		t.Errorf("approved again: %v, %v", w.actions, got)
	}
}

// UpdateParents that failed is due again, and then publishes what it has not published.
func TestUpdateParentsFails(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	fail := func() {
		t.Helper()
		w.refused = errors.New("no broker")
		err := w.steward.UpdateParents(t.Context(), func(string) bool { return true })
		if err == nil || !w.steward.ParentsDue() {
			t.Errorf("got %v, due %v", err, w.steward.ParentsDue())
		}
	}
	fail()
	w.update()
	w.checkParent(photos, open)
	approval := w.decide(ActionApprove, photos.Key())
	w.refused = errors.New("no broker")
	if _, err := w.steward.Handle(t.Context(), &schemas.Delivery{Body: approval}); err == nil {
		t.Error("an approval that was not recorded was handled")
	}
	w.handle(approval)
	fail()
	w.update()
	if len(w.actions) != 1 {
		t.Errorf("approvals: %v", w.actions)
	}
}

// Only the owner of a parent's key publishes.
func TestUpdateParentsOfOthers(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	var asked []string
	err := w.steward.UpdateParents(t.Context(), func(key string) bool { asked = append(asked, key); return false })
	if err != nil || w.topic[photos.Key()] != nil || w.steward.ParentsDue() {
		t.Errorf("got %v, %v, due %v", err, w.topic[photos.Key()], w.steward.ParentsDue())
	}
	key := schemas.ItemKey("acme", "photos", "")
	if want := []string{schemas.ItemKey("acme", "photos", "a0"), key}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	w.update()
	w.checkParent(photos, open)
	a := w.decide(ActionApprove, photos.Key())
	a.Id = schemas.NewID()
	if r, err := schemas.Encode(schemas.Message{Topic: schemas.Admin, Body: a}); err != nil || string(r.Key) != key {
		t.Errorf("a decision has the key %q (%v), want that of the parent, %q", r.Key, err, key)
	}
}

// An approval of a parent that is not open, or of another incident without an item, is ignored.
func TestApprovalsWithoutParent(t *testing.T) {
	w := newHarness(t)
	w.lose("a", 1)
	other := photos
	other.Kind = incident.SpaceMissing
	for _, about := range []incident.Subject{photos, other} {
		a := w.decide(ActionApprove, about.Key())
		a.Account, a.Store, a.Space = "acme", "2", "photos"
		if out := w.handle(a); len(out) > 0 || w.topic[about.Key()] != nil {
			t.Errorf("%s: %v, %v", about.Key(), out, w.topic[about.Key()])
		}
	}
}

// An approval of an earlier loss, which is handled again, does not approve another one.
func TestHeldRepairsOfAnotherLoss(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	old := timestamppb.Now()
	w.lose("a", 2)
	w.update()
	approval := w.decide(ActionApprove, photos.Key())
	approval.Time = old
	w.handle(approval)
	w.update()
	w.checkParent(photos, open)
	w.checkState("a1", awaiting, stepHeld)
}

// An approval ends after a round. What is still missing then needs another one.
func TestHeldRepairsApprovedLongAgo(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	w.update()
	w.handle(w.decide(ActionApprove, photos.Key()))
	i := proto.CloneOf(w.checkParent(photos, repairing))
	for _, s := range i.Steps {
		if s.GetAction() == stepApproved {
			s.Time = timestamppb.New(s.GetTime().AsTime().Add(-2 * w.steward.config.Round(at.WithoutItem())))
		}
	}
	w.record(i)
	w.steward.Assigned()
	w.update()
	w.checkParent(photos, shut)
	w.steward.Assigned()
	w.update()
	w.checkParent(photos, open)
	w.lose("b", 1)
	w.checkState("b0", awaiting, stepHeld)
}

// Approvals of children that have had no effect when the parent is closed have none.
func TestHeldRepairsWithdrawn(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	w.update()
	w.handle(w.decide(ActionApprove, photos.Key()))
	w.update()
	w.close(photos)
	w.deliver()
	w.checkState("a1", awaiting, stepOutdated)
	if got := w.ordered(); !slices.Equal(got, []string{"a0"}) {
		t.Errorf("repairs of %q are ordered", got)
	}
}

// A copy that is lost again after its repair is one missing copy.
func TestLostAgain(t *testing.T) {
	w := newHarness(t)
	w.live = 1
	w.lose("a", 1)
	w.handle(w.result(1, of("a0")))
	w.checkState("a0", shut, stepClosed)
	w.lose("a", 1)
	w.checkState("a0", repairing, stepOrdered)
}

// A checksum that the provider has computed closes no incident.
func TestComputedClosesNothing(t *testing.T) {
	w := newHarness(t)
	w.lose("a", 1)
	w.handle(w.result(1, of("a0"), func(r *pb.FixityResult) { r.EvidenceLevel = 3 }))
	w.checkState("a0", repairing, stepOrdered)
}
