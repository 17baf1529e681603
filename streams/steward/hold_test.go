package steward

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

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

// checkHold checks the state of the incident about the held repairs of a space and returns it.
func (w *harness) checkHold(about incident.Subject, state pb.IncidentState) *pb.Incident {
	w.t.Helper()
	i := w.topic[about.Key()]
	if i.GetState() != state {
		w.t.Errorf("%s is %v, want %v", about.Key(), i.GetState(), state)
	}
	return i
}

// update calls Maintain as the owner of all partitions.
func (w *harness) update() {
	w.t.Helper()
	if err := w.steward.Maintain(w.t.Context(), func(string) bool { return true }); err != nil {
		w.t.Fatal(err)
	}
}

// approve approves held repairs as the command does, up to the handling of the approvals of copies.
func (w *harness) approve(about incident.Subject) {
	w.t.Helper()
	w.approveAs(w.decide(ActionApprove, about.Key()), w.topic[about.Key()])
}

func (w *harness) approveAs(a *pb.AdminAction, hold *pb.Incident) {
	w.t.Helper()
	for _, one := range HeldApprovals(a, hold, slices.Collect(maps.Values(w.topic))) {
		if err := schemas.Validate(one); err != nil {
			w.t.Error(err)
		}
		w.actions = append(w.actions, one)
	}
	w.handle(a)
}

// deliver handles the approvals of copies.
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

// close closes the incident of held repairs as the command does.
func (w *harness) close(about incident.Subject) {
	w.t.Helper()
	if err := w.board.CloseBy(w.t.Context(), about.Key(), w.decide(ActionClose, about.Key())); err != nil {
		w.t.Fatal(err)
	}
}

// setDecided sets the time of the decisions about the closed incident of held repairs to that of the tests.
func (w *harness) setDecided(about incident.Subject) {
	w.t.Helper()
	i, now := proto.CloneOf(w.checkHold(about, shut)), w.next()
	for _, step := range i.GetSteps() {
		if step.GetBy() != "" {
			step.Time = now
		}
	}
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
// which orders all of them, each once, and none of those that are lost later.
func TestHeldRepairs(t *testing.T) {
	w := newHarness(t)
	w.lose("a", 100)
	w.update()
	if got := len(w.ordered()); got != 100 || w.topic[photos.Key()] != nil {
		t.Fatalf("with the share exactly, %d repairs are ordered, and %v is open", got, w.topic[photos.Key()])
	}
	w.lose("b", 3)
	w.checkState("b0", awaiting, stepHeld)
	w.checkState("a7", repairing, stepOrdered)
	if got := len(w.ordered()); got != 100 {
		t.Fatalf("%d repairs are ordered", got)
	}
	w.update()
	const detail = "101 copies of the space are missing, or were repaired within a round: more than" +
		" sweep.max_missing, or all of it; further repairs wait for approval"
	if s := w.checkHold(photos, open).GetSteps(); len(s) != 1 || s[0].GetDetail() != detail {
		t.Errorf("the steps are %v, want one with %q", s, detail)
	}
	w.approve(photos)
	w.lose("c", 2) // after the approval
	if i := w.checkHold(photos, open); !hasStep(i, stepApproved) {
		t.Errorf("the steps are %q", actions(i))
	}
	w.checkState("b0", awaiting, stepHeld)
	if len(w.actions) != 3 || w.actions[0].GetWho() != "eve" ||
		w.actions[0].GetReason() != "approved with acme/2/photos//repairs-held: the disk is new" {
		t.Errorf("approvals of copies: %v", w.actions)
	}
	w.deliver()
	w.checkState("b0", repairing, stepOrdered)
	w.checkState("c1", awaiting, stepHeld)
	if got := len(w.ordered()); got != 103 || len(w.deletes) > 0 {
		t.Errorf("%d repairs and %d deletes are ordered", got, len(w.deletes))
	}
	w.update()
	w.checkHold(photos, open)
	w.approve(photos)
	w.deliver()
	w.update()
	w.checkHold(photos, shut)
	for _, prefix := range []string{"a", "b", "c"} {
		for k := range map[string]int{"a": 100, "b": 3, "c": 2}[prefix] {
			w.handle(w.result(1, of(prefix+strconv.Itoa(k))))
		}
	}
	w.setDecided(photos)
	w.missing("d") // the repairs before count no more
	w.update()
	w.checkHold(photos, shut)
	w.checkState("d", open, stepNoCopy)
}

// A repair that was approved and has failed is ordered again, up to the limit, and is not held again.
func TestApprovedRepairFails(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	w.approve(photos)
	w.deliver()
	for range 4 {
		w.handle(w.repairResult(w.orders[len(w.orders)-1], "repair-failed"))
		w.missing("a1")
	}
	w.checkState("a1", open, stepSeenAgain)
	if i := w.topic[w.missingKey("a1")]; i.GetRepairs() != 3 || !hasStep(i, stepExhausted) {
		t.Errorf("%d repairs, the steps are %q", i.GetRepairs(), actions(i))
	}
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
	if len(w.steward.table.waiting()) != 1 {
		t.Error("the whole space is repaired")
	}
	w.checkHold(photos, open)
}

// Repairs that were ordered and have ended count for a round, so that a store that loses its copies slowly, or whose
// repairs are fast, is noticed. That no repair waits any more does not end it: no operator has decided about the loss.
func TestRepairedCopiesCount(t *testing.T) {
	for name, end := range map[string]func(*harness){
		"the process of the first held repair dies": func(w *harness) {
			w.hasGood(at.Space, "b0")
			w.handleWithoutPublishing(w.result(8, of("b0")))
			w.restart()
		},
		"it is approved by itself": func(w *harness) {
			w.lose("b", 1)
			w.checkState("b0", awaiting, stepHeld)
			w.handle(w.decide(ActionApprove, w.missingKey("b0")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			for k := range 100 {
				item := "a" + strconv.Itoa(k)
				w.lose(item, 1)
				w.handle(w.result(1, of(item+"0")))
			}
			end(w)
			w.checkHold(photos, open)
			w.update()
			w.checkHold(photos, shut)
			w.lose("c", 1)
			w.checkState("c0", awaiting, stepHeld)
		})
	}
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

// In a store whose repairs need an approval each, the approval of held ones covers those that came before it, also
// after the held ones have it. A repair that fails is asked for again by itself.
func TestHeldRepairsOfPrimary(t *testing.T) {
	w := newHarness(t)
	w.modes["2"] = Approve
	w.live = 100
	w.lose("a", 11)
	w.checkState("a0", awaiting, stepAsked)
	w.checkState("a10", awaiting, stepHeld)
	w.approve(photos)
	n := slices.IndexFunc(w.actions, func(a *pb.AdminAction) bool { return a.GetItem() == "a10" })
	w.handle(w.actions[n])
	w.actions = slices.Delete(w.actions, n, n+1)
	w.update()
	w.checkHold(photos, open)
	w.deliver()
	if got := len(w.ordered()); got != 11 {
		t.Errorf("%d repairs are ordered, want 11", got)
	}
	w.update()
	w.checkHold(photos, shut)
	w.handle(w.repairResult(w.orders[0], "repair-failed"))
	w.missing("a10")
	w.checkState("a10", awaiting, stepAsked)
	w.update()
	w.checkHold(photos, shut)
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
	w.checkHold(photos, pb.IncidentState_INCIDENT_STATE_UNSPECIFIED)
}

// When a person has closed the incident of held repairs, they stay as they are. Each can be approved by itself, and a
// later check does not order the repair. Only a further missing copy opens the incident again.
func TestHoldClosedByPerson(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 3)
	w.update()
	w.close(photos)
	w.setDecided(photos)
	w.update()
	w.checkHold(photos, shut)
	w.checkState("a1", awaiting, stepHeld)
	w.handle(w.decide(ActionApprove, w.missingKey("a1")))
	w.checkState("a1", repairing, stepOrdered)
	w.live = 1000
	w.missing("a2")
	w.checkState("a2", awaiting, stepSeenAgain)
	w.lose("c", 1) // few are missing of so many
	w.checkState("c0", repairing, stepOrdered)
	w.update()
	w.checkHold(photos, shut)
	w.live = 4
	w.lose("b", 1)
	w.checkState("b0", awaiting, stepHeld)
	w.update()
	w.checkHold(photos, open)
	if got := w.ordered(); !slices.Equal(got, []string{"a0", "a1", "c0"}) {
		t.Errorf("repairs of %q", got)
	}
}

// Of copies that have changed since they were approved with others, the approval has no effect.
func TestHeldCopiesThatChange(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 5)
	w.approve(photos)
	w.handle(w.result(1, of("a1")))                           // passes before the approval reaches it
	w.handle(w.decide(ActionApprove, w.missingKey("a2")))     // is being repaired
	w.handle(w.result(8, of("a3"), func(r *pb.FixityResult) { // is expected to be something else
		r.Manifest = proto.CloneOf(r.GetManifest())
		r.Manifest.Digests = bad1
		r.Audit = r.Manifest
	}))
	w.deliver()
	w.checkState("a1", shut, stepClosed)
	w.checkState("a2", repairing, stepOrdered)
	w.checkState("a3", awaiting, stepOutdated)
	w.checkState("a4", repairing, stepOrdered)
	if got := w.ordered(); !slices.Equal(got, []string{"a0", "a2", "a4"}) {
		t.Errorf("repairs of %q", got)
	}
	w.update()
	w.checkHold(photos, open)
	w.approve(photos) // as it is now
	w.deliver()
	w.checkState("a3", open, stepNoCopy)
}

// Messages that are handled again, a second approval, and another process that has read the topic change nothing.
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
	w.restart()
	w.update()
	w.checkHold(photos, open)
	approval := w.decide(ActionApprove, photos.Key())
	w.approveAs(approval, w.topic[photos.Key()])
	w.approve(photos) // of another operator
	w.restart()
	w.handle(approval)
	if got := actions(w.checkHold(photos, open)); !slices.Equal(got, []string{stepOpened, stepApproved, stepApproved}) {
		t.Errorf("the steps are %q", got)
	}
	approvals := w.actions
	w.deliver()
	w.restart()
	w.actions = approvals
	w.deliver()
	if got := w.topic[w.missingKey("a1")]; len(approvals) != 2 || got.GetRepairs() != 1 {
		t.Errorf("%d approvals, %v", len(approvals), got)
	}
}

// What cannot be published is published later.
func TestHoldIsNotPublished(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 1)
	w.hasGood(at.Space, "a1")
	r := w.result(8, of("a1"))
	fail := func(b schemas.Body) {
		t.Helper()
		w.refused = errors.New("no broker")
		if _, err := w.steward.Handle(t.Context(), &schemas.Delivery{Body: b}); err == nil {
			t.Error("it was handled")
		}
	}
	fail(r)
	if got := w.state("a1"); got != "none" {
		t.Errorf("it is %s", got)
	}
	w.handle(r)
	w.checkHold(photos, open)
	approval := w.decide(ActionApprove, photos.Key())
	fail(approval)
	w.handle(approval)
	w.handle(w.result(1, of("a1")))
	w.refused = errors.New("no broker")
	if err := w.steward.Maintain(t.Context(), func(string) bool { return true }); err == nil || !w.steward.Due() {
		t.Errorf("got %v, due %v", err, w.steward.Due())
	}
	w.update()
	w.checkHold(photos, shut)
}

// Only the owner of the key closes the incident, or opens it: another process may have closed it before it has read
// that another repair is held. One that was just opened is not closed.
func TestHoldOfOthers(t *testing.T) {
	w := newHarness(t)
	w.live = 2
	w.lose("a", 2)
	if err := w.board.Close(t.Context(), photos, "no repair waits any more"); err != nil {
		t.Fatal(err)
	}
	var asked []string
	err := w.steward.Maintain(t.Context(), func(key string) bool { asked = append(asked, key); return false })
	if err != nil || !w.steward.Due() {
		t.Errorf("got %v, due %v", err, w.steward.Due())
	}
	w.checkHold(photos, shut)
	key := schemas.ItemKey("acme", "photos", "")
	if want := []string{key}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	w.update()
	w.checkHold(photos, open)
	a := w.decide(ActionApprove, photos.Key())
	a.Id = schemas.NewID()
	if r, err := schemas.Encode(schemas.Message{Topic: schemas.Admin, Body: a}); err != nil || string(r.Key) != key {
		t.Errorf("a decision has the key %q (%v), want that of the incident, %q", r.Key, err, key)
	}
	w.handle(w.result(1, of("a1")))
	w.steward.openAtLeast = time.Hour
	w.update()
	w.checkHold(photos, open)
	w.steward.openAtLeast = 0
	w.update()
	w.checkHold(photos, shut)
}

// An approval of held repairs that are not, or of another incident without an item, is ignored.
func TestApprovalsWithoutHold(t *testing.T) {
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

func TestLostTooMuch(t *testing.T) {
	for name, tt := range map[string]struct {
		missing, live int64
		share         float64
		want          bool
	}{
		"one of many":                               {1, 1000, 0.1, false},
		"the share exactly":                         {100, 1000, 0.1, false},
		"more than the share":                       {101, 1000, 0.1, true},
		"more than the share of a small space":      {10, 99, 0.1, true},
		"the share of a small space":                {9, 99, 0.1, false},
		"a few copies of a small space":             {5, 20, 0.1, false},
		"more than a few":                           {6, 20, 0.1, true},
		"all of a small space":                      {5, 5, 0.1, true},
		"the only copy":                             {1, 1, 0.1, false},
		"more than are on record":                   {3, 2, 0.1, true},
		"the records have no live copy":             {2, 0, 0.1, true},
		"one, and none is on record":                {1, 0, 0.1, false},
		"no share is allowed":                       {1, 100, 0, true},
		"no share is allowed, of a small space":     {1, 99, 0, false},
		"any share is allowed, but not the whole":   {999, 1000, 1, false},
		"any share is allowed, and all are missing": {1000, 1000, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := lostTooMuch(tt.missing, tt.live, tt.share)
			if got != tt.want || got && !mayBeTooMuch(tt.missing, tt.share) {
				t.Errorf("got %v, counted only if %v, want %v", got, mayBeTooMuch(tt.missing, tt.share), tt.want)
			}
		})
	}
}

// A tally that has counted a record in place of another is that of the newest record alone.
func TestTally(t *testing.T) {
	after := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(base.Add(d)) }
	var table table
	put := func(item string, opened time.Duration, state pb.IncidentState, repairs int32) {
		table.set(&pb.Incident{Account: "acme", Store: "2", Space: "photos", Item: item, Kind: kindMissing,
			Opened: after(opened), State: state, Repairs: repairs, Steps: []*pb.IncidentStep{{Action: stepHeld}}})
	}
	check := func(what string, lost int64, held ...int64) {
		t.Helper()
		if got := table.lost(at.WithoutItem(), base.Add(-24*time.Hour)); got != lost {
			t.Errorf("%s: %d are lost, want %d", what, got, lost)
		}
		var got []int64
		for _, l := range table.waiting() {
			got = append(got, l.open)
		}
		if !slices.Equal(got, held) {
			t.Errorf("%s: %d are missing of spaces with held repairs, want %d", what, got, held)
		}
	}
	check("nothing", 0)
	put("a", -10*time.Minute, open, 0)
	put("b", -100*time.Hour, awaiting, 0)
	check("two are missing, one for long", 2, 2)
	put("a", -10*time.Minute, shut, 1)
	check("one was repaired", 2, 1)
	put("b", -100*time.Hour, shut, 1)
	check("the other one too, but it was missing before the round", 1)
	put("c", -2*time.Hour, shut, 0)
	check("one was there all the time", 1)
	put("c", 5*time.Minute, open, 0)
	check("it is missing now", 2)
	var ends []func()
	for _, item := range []string{"c", "d", "e"} {
		c := at
		c.Item = item
		ends = append(ends, table.decide(c))
	}
	check("two more are being decided about", 4)
	for _, end := range ends {
		end()
	}
	for _, item := range []string{"a", "b", "c"} {
		table.apply("acme/2/photos/"+item+"/content-missing", nil)
	}
	check("all were removed", 0)
	if len(table.tally) > 0 {
		t.Errorf("an empty tally is %v", table.tally)
	}
}
