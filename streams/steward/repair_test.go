package steward

import (
	"errors"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestApproval(t *testing.T) {
	w := newHarness(t)
	found := w.result(13)
	w.handle(found)
	approval := w.approval("replaced")
	w.handle(approval)
	w.checkIncident("replaced", repairing, "opened", "approval-asked", "approved", "repair-ordered")
	if len(w.orders) != 1 {
		t.Fatalf("ordered %v", w.orders)
	}
	o := w.orders[0]
	if o.GetApproved() != "eve" || o.GetRepair().GetCheck() != found.GetId() || o.GetSourceStore() != "1" ||
		!proto.Equal(o.GetRepair().GetFailed(), found.GetObject()) {
		t.Errorf("ordered %v", o)
	}
	if got := w.handle(w.approval("replaced")); got != nil {
		t.Errorf("approved a second time: %v, want nothing", got)
	}
	w.handle(w.repairResult(o, "repaired"))
	w.handle(w.result(1))
	w.checkIncident("replaced", shut, "opened", "approval-asked", "approved", "repair-ordered", "repaired", "closed")
	if got := w.handle(w.approval("replaced")); got != nil {
		t.Errorf("approved when closed: %v, want nothing", got)
	}
}

// A decision applies to the state that the operator saw. If the incident or its copy has changed before the decision is
// handled, the incident gets a step and nothing else happens.
func TestDecisionIsAboutWhatWasSeen(t *testing.T) {
	other := func(r *pb.FixityResult) {
		r.Object, r.Content.Digests = &pb.Identity{Version: "v2", Size: 3}, map[string]string{"sha256": "cc"}
	}
	for name, tt := range map[string]struct {
		meanwhile func(*harness)
		taken     bool
	}{
		"nothing has happened":    {nil, true},
		"seen again, the same":    {func(w *harness) { w.handle(w.result(13)) }, true},
		"the copy is another one": {func(w *harness) { w.handle(w.result(13, other)) }, false},
		"should be something else": {func(w *harness) {
			w.handle(w.result(13,
				func(r *pb.FixityResult) { r.Audit.Digests = bad1 }))
		}, false},
		"a later event": {func(w *harness) {
			w.handle(w.result(13, func(r *pb.FixityResult) { r.LastEvent = timestamppb.New(base) }))
		}, false},
		"closed, and opened again": {func(w *harness) { w.handle(w.result(1)); w.handle(w.result(13)) }, false},
	} {
		for do, taken := range map[string]string{ActionApprove: stepOrdered, ActionClose: stepClosed,
			ActionAccept: stepAccept, ActionAcceptForced: stepAcceptForced} {
			t.Run(name+"/"+do, func(t *testing.T) {
				w := newHarness(t)
				w.handle(w.result(13))
				a := w.approval("replaced")
				a.Action = do
				if tt.meanwhile != nil {
					tt.meanwhile(w)
				}
				before, want := w.topic[key("replaced")], taken
				if !tt.taken {
					want = stepOutdated
				}
				lost := w.handleWithoutPublishing(a)
				w.restart()
				if again := w.handle(a); len(again) != len(lost) || !proto.Equal(again[0].Body, lost[0].Body) {
					t.Errorf("handled again: %v, want %v", again, lost)
				}
				w.restart()
				w.handle(a)
				i := w.topic[key("replaced")]
				if last := i.GetSteps()[len(i.GetSteps())-1]; last.GetAction() != want || last.GetRef() != a.GetId() ||
					last.GetBy() != "eve" {
					t.Errorf("the last step is %v, want %s", last, want)
				}
				if !tt.taken && (i.GetState() != before.GetState() || len(w.orders)+len(w.tasks) != 0) {
					t.Errorf("is %v, and ordered %v, want %v and no order", i.GetState(), w.orders, before.GetState())
				}
			})
		}
	}
}

// An approval that waits for the records does not apply to a later finding.
func TestApprovalThatWaited(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(13))
	a := w.approval("replaced")
	a.Incident, a.Seen = w.topic[key("replaced")].GetId(), Seen(w.topic[key("replaced")])
	w.failure = errors.New("the tables are unavailable")
	if _, err := w.steward.Handle(t.Context(), &schemas.Delivery{Body: a}); err == nil {
		t.Fatal("the approval does not wait")
	}
	w.handle(w.result(13, func(r *pb.FixityResult) { r.Object = &pb.Identity{Version: "v2", Size: 3} }))
	w.failure = nil
	w.handle(a)
	w.checkIncident("replaced", awaiting, "opened", "approval-asked", "seen-again", "decision-outdated")
	if len(w.orders) != 0 {
		t.Errorf("ordered %v", w.orders)
	}
}

func TestApprovalsOfNothing(t *testing.T) {
	w := newHarness(t)
	w.modes["2"] = Off
	w.handle(w.result(14))
	w.handle(w.result(2))
	other := w.approval("content-corrupt")
	other.Account = "umbrella"
	discard := w.approval("content-corrupt")
	discard.Action = "discard"
	for name, a := range map[string]*pb.AdminAction{
		"no such incident": w.approval("replaced"), "no repair of that kind": w.approval("no-quorum"),
		"off": w.approval("content-corrupt"), "of another account": other, "another action": discard,
	} {
		if got := w.handle(a); got != nil {
			t.Errorf("%s: %v, want nothing", name, got)
		}
	}
}

func TestNoGoodCopy(t *testing.T) {
	tests := map[string]func(*harness){
		"none on record":    func(w *harness) { clear(w.records) },
		"others differ":     func(w *harness) { w.records[in("1")], w.records[in("3")] = live(bad1), live(bad1) },
		"others deleted":    func(w *harness) { w.records[in("1")].State, w.records[in("3")].State = 3, 3 },
		"others are bad":    func(w *harness) { w.openIncidentAt("1"); w.openIncidentAt("3") },
		"not on record yet": func(w *harness) { w.records[in("1")].State, w.records[in("3")].State = 0, 0 },
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			prepare(w)
			w.orders = nil
			w.handle(w.result(2))
			w.checkIncident("content-corrupt", open, "opened", "no-good-copy")
			if len(w.orders) != 0 {
				t.Errorf("ordered %v", w.orders)
			}
		})
	}
}

// The primary rots, and the secondaries have an older version. Those on record pass their checks and are no source. One
// that should have the content is tried: its own incident excludes it, and that of the primary says that no good copy
// is left, until the content is copied.
func TestRotInThePrimaryAndStaleSecondaries(t *testing.T) {
	at1 := func(r *pb.FixityResult) { r.Store = "1" }
	ofPrimary := schemas.Key(at.Account, "1", at.Space, at.Item, "content-corrupt")
	says := func(t *testing.T, w *harness, state pb.IncidentState, orders int, last string) {
		t.Helper()
		i := w.topic[ofPrimary]
		step := i.GetSteps()[len(i.GetSteps())-1].GetAction()
		if i.GetState() != state || step != last || len(w.orders) != orders {
			t.Errorf("%v, %d orders, last step %q; want %v, %d, %q", i.GetState(), len(w.orders), step, state, orders, last)
		}
	}
	prepare := func(t *testing.T) *harness {
		w := newHarness(t)
		w.records[in("2")], w.records[in("3")] = live(bad1), live(bad1)
		return w
	}
	approve := func(w *harness) { w.handle(w.approvalOf(ofPrimary)) }
	t.Run("on record", func(t *testing.T) {
		w := prepare(t)
		w.handle(w.result(2, at1))
		w.handle(w.result(1))
		says(t, w, awaiting, 0, "approval-asked")
		approve(w)
		says(t, w, open, 0, "no-good-copy")
		if len(w.topic) != 1 {
			t.Errorf("incidents: %v", w.topic)
		}
		w.records[in("3")] = live(want) // the copier has caught up
		approve(w)
		says(t, w, repairing, 1, "repair-ordered")
		if w.orders[0].GetSourceStore() != "3" {
			t.Errorf("ordered %v", w.orders[0])
		}
	})
	t.Run("come back", func(t *testing.T) {
		w := prepare(t)
		w.records[in("2")] = live(want)
		w.handle(w.result(2, at1))
		approve(w)
		says(t, w, repairing, 1, "repair-ordered")
		w.handle(w.repairResult(w.orders[0], "repair-moot"))
		w.handle(w.result(13)) // the check of the secondary that the repair asks for
		w.handle(w.result(2, at1, because(pb.FixityReason_FIXITY_REASON_REPAIR)))
		approve(w)
		says(t, w, open, 1, "no-good-copy")
		w.checkIncident("replaced", awaiting, "opened", "approval-asked")
	})
}

// openIncidentAt opens an incident of the copy in another store.
func (w *harness) openIncidentAt(store string) {
	w.modes[store] = Off
	w.handle(w.result(2, func(r *pb.FixityResult) { r.Store = store }))
}

func TestNextGoodCopy(t *testing.T) {
	w := newHarness(t)
	w.openIncidentAt("1")
	w.handle(w.result(2))
	if len(w.orders) != 1 || w.orders[0].GetSourceStore() != "3" {
		t.Errorf("ordered %v, want from store 3", w.orders)
	}
}

// If a repair from one good copy fails, the next order uses another one.
func TestAnotherGoodCopyIsTried(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(2))
	var got []string
	for n := range 3 {
		if len(w.orders) != n+1 {
			t.Fatalf("round %d: ordered %v", n, w.orders)
		}
		got = append(got, w.orders[n].GetSourceStore())
		w.handle(w.repairResult(w.orders[n], "repair-moot"))
		w.restart() // the steps contain the tried sources
		w.handle(w.result(2, because(pb.FixityReason_FIXITY_REASON_REPAIR)))
	}
	if want := []string{"1", "3", "1"}; !slices.Equal(got, want) {
		t.Errorf("ordered from %v, want %v", got, want)
	}
}

func TestThreeRepairsThenAPerson(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(2))
	steps := []string{"opened", "repair-ordered"}
	for n := range 3 {
		if len(w.orders) != n+1 || w.orders[n].GetRepair().GetNumber() != int32(n+1) {
			t.Fatalf("round %d: ordered %v", n, w.orders)
		}
		w.handle(w.repairResult(w.orders[n], "repair-moot"))
		w.handle(w.result(2, because(pb.FixityReason_FIXITY_REASON_REPAIR)))
		steps = append(steps, "repair-moot", "seen-again", "repair-ordered")
	}
	steps[len(steps)-1] = "repairs-exhausted"
	w.checkIncident("content-corrupt", open, steps...)
	w.handle(w.result(2))
	w.checkIncident("content-corrupt", open, append(steps, "seen-again")...)
	w.handle(w.approval("content-corrupt"))
	if len(w.orders) != 4 || w.orders[3].GetRepair().GetNumber() != 4 {
		t.Errorf("an operator's approval orders %v", w.orders)
	}
}

func TestEndsOfARepair(t *testing.T) {
	tests := map[string]struct {
		result string
		state  pb.IncidentState
		step   string
	}{
		"repaired":    {"repaired", repairing, "repaired"},
		"moot":        {"repair-moot", open, "repair-moot"},
		"dead letter": {"dead", open, "repair-failed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.handle(w.result(2))
			w.handle(w.repairResult(w.orders[0], tt.result))
			w.checkIncident("content-corrupt", tt.state, "opened", "repair-ordered", tt.step)
		})
	}
}

// Results from another topic can be late.
func TestLateEndsOfRepairs(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(2))
	w.handle(w.result(2, because(pb.FixityReason_FIXITY_REASON_REPAIR))) // orders again
	w.handle(w.repairResult(w.orders[0], "repair-moot"))
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered", "seen-again", "repair-ordered",
		"repair-moot")
	w.handle(w.result(1))
	w.handle(w.repairResult(w.orders[1], "repaired"))
	w.checkIncident("content-corrupt", shut, "opened", "repair-ordered", "seen-again", "repair-ordered", "repair-moot",
		"closed",
		"repaired")
	old := w.orders[1]
	w.handle(w.result(2))
	if got := w.handle(w.repairResult(old, "repair-moot")); got != nil {
		t.Errorf("the end of an older incident's repair: %v, want nothing", got)
	}
}

// While a repair is in progress, other checks order nothing.
func TestSeenWhileRepairing(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(2))
	w.handle(w.result(2))
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered", "seen-again")
	if len(w.orders) != 1 {
		t.Errorf("ordered %v", w.orders)
	}
}

func TestWhatDuplicationComesAcross(t *testing.T) {
	tests := map[string]struct {
		kind, store string
		checked     bool
	}{
		"source-missing":     {"source-missing", "1", false},
		"all-copies-missing": {"all-copies-missing", "1", false},
		"was-lost":           {"content-missing", "2", true},
		"gone-unexplained":   {"content-missing", "2", true},
		"resurrected":        {"resurrected", "1", false},
	}
	for result, tt := range tests {
		t.Run(result, func(t *testing.T) {
			w := newHarness(t)
			lost := w.lostResult(result)
			w.handle(lost)
			k := schemas.Key(at.Account, tt.store, at.Space, at.Item, tt.kind)
			if i := w.topic[k]; i.GetState() != open || i.GetStore() != tt.store || i.GetSteps()[0].GetRef() != lost.GetId() {
				t.Errorf("got %v", i)
			}
			if len(w.orders) != 0 {
				t.Errorf("ordered %v", w.orders)
			}
			if (len(w.tasks) == 1) != tt.checked {
				t.Errorf("asked for checks %v", w.tasks)
			}
			if tt.checked && (w.tasks[0].GetStore() != tt.store || w.tasks[0].GetId() != schemas.ID(result, lost.GetId())) {
				t.Errorf("asked for %v", w.tasks[0])
			}
			w.handle(w.lostResult(result))
			if n := w.topic[k].GetStepCount(); n != 2 {
				t.Errorf("%d steps after it was found twice, want 2", n)
			}
			w.handle(w.result(1, func(r *pb.FixityResult) { r.Store = tt.store }))
			if i := w.topic[k]; i.GetState() != shut {
				t.Errorf("after a pass %v", i.GetState())
			}
		})
	}
	w := newHarness(t)
	if got := w.handle(w.lostResult("copied")); got != nil {
		t.Errorf("an ordinary copy gives %v", got)
	}
}

// A copy that is gone without an explanation is repaired after a check has confirmed that it is missing.
func TestGoneUnexplainedIsRepaired(t *testing.T) {
	w := newHarness(t)
	w.handle(w.lostResult("gone-unexplained"))
	w.checkIncident("content-missing", open, "opened")
	w.handle(w.result(8, because(pb.FixityReason_FIXITY_REASON_SUSPECT)))
	w.checkIncident("content-missing", repairing, "opened", "seen-again", "repair-ordered")
	w.handle(w.result(11))
	w.checkIncident("content-missing", shut, "opened", "seen-again", "repair-ordered", "closed")
}

// A resurrected copy is left to an operator in every mode, and is never the source of a repair. Its approved repair is
// a delete. The check after it closes the incident.
func TestResurrectedCopy(t *testing.T) {
	w := newHarness(t)
	back := func(r *pb.FixityResult) { r.Store = "1" }
	found := w.result(16, back)
	w.handle(found)
	k := schemas.Key(at.Account, "1", at.Space, at.Item, "resurrected")
	if i := w.topic[k]; i.GetState() != awaiting || i.GetStepCount() != 2 || len(w.orders)+len(w.tasks) != 0 {
		t.Fatalf("got %v, orders %v", i, w.orders)
	}
	w.handle(w.result(2))
	if len(w.orders) != 1 || w.orders[0].GetSourceStore() != "3" {
		t.Errorf("ordered %v, want from store 3", w.orders)
	}
	approval := w.approvalOf(k)
	w.handle(approval)
	i := w.topic[k]
	want := &pb.DeletionCommand{Id: schemas.ID("repair", i.GetId(), "1"), Account: at.Account, Space: at.Space,
		Item: at.Item, DestinationStore: "1", Cause: i.GetId(), Deleted: found.GetLastEvent(), Destination: found.GetObject(),
		Reason: pb.DuplicationReason_DUPLICATION_REASON_REPAIR, Time: approval.GetTime(), Approved: "eve",
		Why: "looked at it", Incident: k}
	if i.GetState() != repairing || len(w.deletes) != 1 || !proto.Equal(w.deletes[0], want) {
		t.Fatalf("is %v, ordered %v\nwant %v", i, w.deletes, want)
	}
	w.handle(w.result(16, back)) // a check of a sweep, meanwhile
	end := w.deleteResult("deleted")
	w.handle(end)
	check := &pb.FixityTask{Id: schemas.ID("follow-up", i.GetId(), end.GetId()), Account: at.Account, Store: "1",
		Space: at.Space, Item: at.Item, Reason: pb.FixityReason_FIXITY_REASON_REPAIR, Priority: pb.Priority_PRIORITY_HIGH,
		Cause: end.GetId(), Time: end.GetFinished(), Size: 3}
	if len(w.tasks) != 1 || !proto.Equal(w.tasks[0], check) {
		t.Errorf("checks %v, want %v", w.tasks, check)
	}
	w.handle(w.result(11, back))
	if i := w.topic[k]; i.GetState() != shut {
		t.Errorf("is %v", i)
	}
}

// A delete that was not carried out leaves the incident open, and the next finding asks again.
func TestEndsOfADelete(t *testing.T) {
	for result, tt := range map[string]struct {
		step    string
		checked bool
	}{
		"repair-moot": {"repair-moot", true}, "repair-refused": {"repair-failed", false}, "held": {"repair-failed", false},
	} {
		t.Run(result, func(t *testing.T) {
			w := newHarness(t)
			w.handle(w.result(16))
			w.handle(w.approval("resurrected"))
			w.handle(w.deleteResult(result))
			w.checkIncident("resurrected", open, "opened", "approval-asked", "approved", "repair-ordered", tt.step)
			if (len(w.tasks) == 1) != tt.checked {
				t.Errorf("checks %v", w.tasks)
			}
			w.handle(w.result(16, because(pb.FixityReason_FIXITY_REASON_REPAIR)))
			w.checkIncident("resurrected", awaiting, "opened", "approval-asked", "approved", "repair-ordered", tt.step,
				"seen-again", "approval-asked")
		})
	}
}

// A copier has found the item under its tombstone, and no check has described the object yet: nothing is deleted.
func TestDeleteOfWhatNoCheckHasSeen(t *testing.T) {
	w := newHarness(t)
	found := w.lostResult("resurrected")
	found.SourceStore, found.DestinationStore = "2", "3"
	w.handle(found)
	w.handle(w.approval("resurrected"))
	w.handle(w.accepting("resurrected"))
	w.checkIncident("resurrected", open, "opened", "approved", "not-seen", "not-seen")
	if len(w.deletes)+len(w.tasks) != 0 {
		t.Errorf("ordered %v, checks %v", w.deletes, w.tasks)
	}
}

// deleteResult returns the result of the last delete that was ordered.
func (w *harness) deleteResult(result string) *pb.DuplicationResult {
	order, at := w.deletes[len(w.deletes)-1], w.next()
	return &pb.DuplicationResult{
		Id: "result-" + strconv.Itoa(w.clock), Command: order.GetId(), Incident: order.GetIncident(),
		Account: order.GetAccount(), Space: order.GetSpace(), Item: order.GetItem(),
		DestinationStore: order.GetDestinationStore(), Decision: "C0d", Result: result, Started: at, Finished: at,
	}
}

// An operator can close an incident of any kind and state. A fault that is found again opens a new one.
func TestClosedByAPerson(t *testing.T) {
	for name, tt := range map[string]struct {
		row  int32
		mode Mode
		kind string
	}{
		"without a repair": {14, Auto, "no-quorum"},
		"repair is off":    {2, Off, "content-corrupt"},
		"awaits approval":  {2, Approve, "content-corrupt"},
		"repair under way": {2, Auto, "content-corrupt"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.modes[at.Store] = tt.mode
			w.handle(w.result(tt.row))
			first := w.topic[key(tt.kind)]
			other := w.closing(tt.kind)
			other.Account = "umbrella"
			if got := w.handle(other); got != nil {
				t.Errorf("closed for another account: %v", got)
			}
			a := w.closing(tt.kind)
			lost := w.handleWithoutPublishing(a)
			w.handle(a)
			w.restart()
			if got := w.handle(a); len(got) != 1 || !proto.Equal(got[0].Body, lost[0].Body) {
				t.Errorf("handled again: %v, want %v", got, lost)
			}
			i := w.topic[key(tt.kind)]
			last := i.GetSteps()[len(i.GetSteps())-1]
			if i.GetState() != shut || !proto.Equal(i.GetClosed(), a.GetTime()) || last.GetAction() != "closed" ||
				last.GetBy() != "eve" || last.GetRef() != a.GetId() {
				t.Errorf("got %v", i)
			}
			if got := w.handle(w.closing(tt.kind)); got != nil {
				t.Errorf("closed twice: %v", got)
			}
			w.handle(w.result(tt.row))
			if again := w.topic[key(tt.kind)]; again.GetState() == shut || again.GetId() == first.GetId() {
				t.Errorf("found again: %v", again)
			}
		})
	}
}

func (w *harness) closing(kind string) *pb.AdminAction {
	a := w.approval(kind)
	a.Action = ActionClose
	return a
}

// Incidents without an item belong to the roles that observe them: the Steward neither holds nor closes them.
func TestIncidentsWithoutAnItemAreLeftAlone(t *testing.T) {
	w := newHarness(t)
	i := &pb.Incident{Id: schemas.ID("i"), Account: at.Account, Store: at.Store, Space: at.Space, Kind: "space-missing",
		State: open}
	k := schemas.IncidentKey(i)
	w.topic[k] = i
	w.restart()
	a := w.closing("space-missing")
	a.Target = k
	if got := w.handle(a); got != nil {
		t.Errorf("published %v", got)
	}
	if got := w.handle(w.result(1, func(r *pb.FixityResult) { r.Item = "" })); got != nil {
		t.Errorf("published %v", got)
	}
}

// A repair without a result does not block the incident for ever.
func TestRepairThatNeverEnds(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(2))
	w.clock += 24*60 - 2
	w.handle(w.result(2))
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered", "seen-again")
	w.clock++
	if got := w.handle(w.approval("content-corrupt")); got == nil {
		t.Error("an operator's approval is ignored after a day")
	}
	w.clock += 24 * 60
	w.handle(w.result(2))
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered", "seen-again", "approved", "repair-ordered",
		"seen-again", "repair-ordered")
}

// A dry run is no fact, whatever it would have ended with, and whichever incident its command names.
func TestDryRunChangesNoIncident(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(2))
	dry := w.repairResult(w.orders[0], "dry-run")
	for _, result := range []string{"repaired", "repair-moot", "source-missing", "all-copies-missing", "resurrected",
		"copy-differs", "in-sync", "copied", "deleted", "was-lost", "gone-unexplained", "gone", "dead"} {
		for _, incident := range []string{dry.GetIncident(), ""} {
			for _, word := range []string{"dry-run", result} {
				r := proto.CloneOf(dry)
				r.Id, r.Result, r.WouldBe, r.Incident = schemas.NewID(), word, result, incident
				if out := w.handle(r); len(out) > 0 {
					t.Errorf("dry run that would be %s: %v", result, out)
				}
			}
		}
	}
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered")
}

// A store is flipped to external_writes: expected while its copies have findings: what is found from then on has an
// incident of its own, the earlier one waits for its decision, and nothing is repaired without one. A check that passes
// closes both.
func TestStoreFlippedToExpectedWrites(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(13))
	for range 2 {
		w.handle(w.result(10))
	}
	w.checkIncident("replaced", awaiting, "opened", "approval-asked")
	w.checkIncident("not-captured-update", awaiting, "opened", "approval-asked", "seen-again")
	if len(w.orders) > 0 {
		t.Errorf("ordered %v", w.orders)
	}
	w.handle(w.result(1)) // the update was recorded, or the copy was put right
	w.checkIncident("replaced", shut, "opened", "approval-asked", "closed")
	w.checkIncident("not-captured-update", shut, "opened", "approval-asked", "seen-again", "closed")
}
