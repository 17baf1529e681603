package steward

import (
	"log/slog"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestCorruptCopyIsRepaired(t *testing.T) {
	w := newHarness(t)
	found := w.result(2)
	w.handle(found)
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered")
	id := w.topic[key("content-corrupt")].GetId()
	order := &pb.DuplicationCommand{
		Id: schemas.ID("repair", id, "1"), Account: at.Account, Space: at.Space, Item: at.Item,
		SourceStore: "1", DestinationStore: "2", Reason: pb.DuplicationReason_DUPLICATION_REASON_REPAIR,
		Priority: pb.Priority_PRIORITY_HIGH, Cause: id, Size: 3, Digests: want, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		Time: found.GetFinished(),
		Repair: &pb.RepairOrder{
			Incident: key("content-corrupt"), Digests: want, Failed: found.GetObject(), Check: found.GetId(), Number: 1,
		},
	}
	if len(w.orders) != 1 || !proto.Equal(w.orders[0], order) {
		t.Fatalf("ordered %v\nwant %v", w.orders, order)
	}
	incident := &pb.Incident{
		Id: schemas.ID("incident", key("content-corrupt"), found.GetId()), Account: at.Account, Store: at.Store,
		Space: at.Space, Item: at.Item,
		Kind: "content-corrupt", State: repairing, Opened: found.GetFinished(), Updated: found.GetFinished(),
		Checked: found.GetStarted(), Row: 2, Expected: want, Found: bad1, Object: found.GetObject(), Repairs: 1,
		StepCount: 2, Size: 3, LastEvent: found.GetLastEvent(),
		Steps: []*pb.IncidentStep{
			{Time: found.GetFinished(), Action: "opened", Ref: found.GetId()},
			{Time: found.GetFinished(), Action: "repair-ordered", Ref: found.GetId(), Detail: "1"},
		},
	}
	if got := w.topic[key("content-corrupt")]; !proto.Equal(got, incident) {
		t.Errorf("got %v\nwant %v", got, incident)
	}
	w.handle(w.repairResult(order, "repaired"))
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered", "repaired")
	pass := w.result(1, because(pb.FixityReason_FIXITY_REASON_REPAIR))
	w.handle(pass)
	w.checkIncident("content-corrupt", shut, "opened", "repair-ordered", "repaired", "closed")
	if got := w.topic[key("content-corrupt")].GetClosed(); !proto.Equal(got, pass.GetFinished()) {
		t.Errorf("closed %v, want %v", got, pass.GetFinished())
	}
	w.handle(w.result(2))
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered")
	if i := w.topic[key("content-corrupt")]; i.GetId() == id || i.GetRepairs() != 1 {
		t.Errorf("a new incident is the old one, or counts its repairs: %v", i)
	}
}

func TestMissingCopyIsRepaired(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(8))
	w.checkIncident("content-missing", repairing, "opened", "repair-ordered")
	if len(w.orders) != 1 || w.orders[0].GetRepair().GetFailed() != nil {
		t.Errorf("ordered %v, want one order that expects nothing there", w.orders)
	}
}

func TestModes(t *testing.T) {
	claimed := func(r *pb.FixityResult) {
		e := proto.CloneOf(r.GetManifest())
		e.Provenance = pb.Provenance_PROVENANCE_CLAIMED
		r.Manifest, r.Audit = e, e
	}
	apart := func(r *pb.FixityResult) {
		r.Audit = &pb.Evidence{State: r.Audit.State, Digests: bad1, Provenance: r.Audit.Provenance}
	}
	tests := map[string]struct {
		mode   Mode
		row    int32
		change with
		state  pb.IncidentState
		steps  []string
	}{
		"corrupt, auto":       {Auto, 2, nil, repairing, []string{"opened", "repair-ordered"}},
		"corrupt, approve":    {Approve, 2, nil, awaiting, []string{"opened", "approval-asked"}},
		"corrupt, off":        {Off, 2, nil, open, []string{"opened"}},
		"mode unheard of":     {"", 2, nil, open, []string{"opened"}},
		"missing, approve":    {Approve, 8, nil, awaiting, []string{"opened", "approval-asked"}},
		"missing, a claim":    {Auto, 8, claimed, open, []string{"opened", "no-verified-digests"}},
		"missing, M is not A": {Auto, 8, apart, open, []string{"opened", "no-verified-digests"}},
		"replaced, auto":      {Auto, 13, nil, awaiting, []string{"opened", "approval-asked"}},
		"replaced, off":       {Off, 13, nil, open, []string{"opened"}},
		"resurrected, auto":   {Auto, 16, nil, awaiting, []string{"opened", "approval-asked"}},
		"resurrected, off":    {Off, 16, nil, open, []string{"opened"}},
		"update, auto":        {Auto, 10, nil, awaiting, []string{"opened", "approval-asked"}},
		"update, off":         {Off, 10, nil, awaiting, []string{"opened", "approval-asked"}},
		"no quorum, auto":     {Auto, 14, nil, open, []string{"opened"}},
		"not captured, auto":  {Auto, 9, nil, open, []string{"opened"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.modes[at.Store] = tt.mode
			r := w.result(tt.row)
			if tt.change != nil {
				tt.change(r)
			}
			w.handle(r)
			w.checkIncident(r.GetFinding(), tt.state, tt.steps...)
			if (len(w.orders) == 1) != (tt.state == repairing) {
				t.Errorf("ordered %v", w.orders)
			}
		})
	}
}

// Inconclusive results, and results without a fault, have no effect.
func TestResultsThatMoveNothing(t *testing.T) {
	set := func(f func(*pb.FixityResult)) with { return f }
	tests := map[string]struct {
		row    int32
		change with
	}{
		"unknown": {12, nil},
		"undecided": {8,
			set(func(r *pb.FixityResult) { r.Final, r.Verdict = false, pb.Verdict_VERDICT_UNDECIDED })},
		"overtaken": {2, set(func(r *pb.FixityResult) { r.Overtaken = true })},
		"pass":      {1, nil},
		"moot":      {11, nil},
		"skipped": {0, set(func(r *pb.FixityResult) {
			r.Verdict, r.Finding = pb.Verdict_VERDICT_SKIPPED,
				"skipped"
		})},
		"unverified": {15, set(func(r *pb.FixityResult) {
			r.Verdict, r.Finding = pb.Verdict_VERDICT_UNVERIFIED,
				"unverified"
		})},
		"not captured, and not read": {9, set(func(r *pb.FixityResult) { r.Verdict = pb.Verdict_VERDICT_UNVERIFIED })},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			r := w.result(tt.row)
			if tt.change != nil {
				tt.change(r)
			}
			if got := w.handle(r); got != nil {
				t.Errorf("got %v, want nothing", got)
			}
		})
	}
}

func TestOlderChecksChangeNothing(t *testing.T) {
	w := newHarness(t)
	early, late, kinds := w.result(1), w.result(2), w.result(13)
	early.Id, kinds.Started = "early", early.GetStarted()
	w.handle(late)
	w.handle(early)
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered", "older-check")
	if got := w.handle(kinds); got != nil {
		t.Errorf("an older check opens %v", got)
	}
	again := w.result(2)
	pass := w.result(1)
	w.handle(pass)
	w.checkIncident("content-corrupt", shut, "opened", "repair-ordered", "older-check", "closed")
	w.handle(again)
	w.checkIncident("content-corrupt", shut, "opened", "repair-ordered", "older-check", "closed", "older-check")
	if got := w.topic[key("content-corrupt")].GetChecked(); !proto.Equal(got, pass.GetStarted()) {
		t.Errorf("checked %v, want %v", got, pass.GetStarted())
	}
}

func TestPassClosesAllOfTheCopy(t *testing.T) {
	for name, row := range map[string]int32{"pass": 1, "moot": 11} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			for _, r := range []int32{2, 13, 14} {
				w.handle(w.result(r))
			}
			w.handle(w.result(2, func(r *pb.FixityResult) { r.Item = "b.jpg" }))
			if got := w.handle(w.result(row)); len(got) != 3 {
				t.Errorf("got %v, want three incidents", got)
			}
			for key, i := range w.topic {
				if (i.GetState() == shut) != (i.GetItem() == at.Item) {
					t.Errorf("%s is %v", key, i.GetState())
				}
			}
		})
	}
}

// A pass that did not read bytes does not close incidents about bytes.
func TestPassOnTheStoresWord(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(2))
	w.handle(w.result(8))
	w.handle(w.result(1, func(r *pb.FixityResult) { r.EvidenceLevel = 2 }))
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered")
	w.checkIncident("content-missing", shut, "opened", "repair-ordered", "closed")
}

// A message that is handled twice gives one decision, published again in case it was lost.
func TestReplay(t *testing.T) {
	equal := func(t *testing.T, got, want []schemas.Message) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		for n := range got {
			if got[n].Topic != want[n].Topic || !proto.Equal(got[n].Body, want[n].Body) {
				t.Errorf("got %v\nwant %v", got[n], want[n])
			}
		}
	}
	tests := map[string]func(*harness) schemas.Body{
		"a fault":    func(w *harness) schemas.Body { return w.result(2) },
		"seen again": func(w *harness) schemas.Body { w.handle(w.result(14)); return w.result(14) },
		"a pass":     func(w *harness) schemas.Body { w.handle(w.result(2)); return w.result(1) },
		"an approval": func(w *harness) schemas.Body {
			w.handle(w.result(13))
			return w.approval("replaced")
		},
		"the end of a repair": func(w *harness) schemas.Body {
			w.handle(w.result(2))
			return w.repairResult(w.orders[0], "repaired")
		},
		"a corrected record": func(w *harness) schemas.Body { return w.result(5, corrected) },
		"an acceptance": func(w *harness) schemas.Body {
			w.handle(w.result(13))
			return w.accepting("replaced")
		},
		"an accepted copy": func(w *harness) schemas.Body {
			w.handle(w.result(13))
			w.handle(w.accepting("replaced"))
			return w.result(13, w.decided("accepted"), corrected)
		},
		"an acceptance that is outdated": func(w *harness) schemas.Body {
			w.handle(w.result(13))
			w.handle(w.accepting("replaced"))
			return w.result(13, w.decided("accept-outdated"))
		},
		"an acceptance that is outdated, undecided": func(w *harness) schemas.Body {
			w.handle(w.result(14))
			w.handle(w.accepting("no-quorum"))
			return w.result(13, w.decided("accept-outdated"), func(r *pb.FixityResult) {
				r.Final, r.Verdict = false, pb.Verdict_VERDICT_UNDECIDED
			})
		},
		"the approval of a delete": func(w *harness) schemas.Body {
			w.handle(w.result(16))
			return w.approval("resurrected")
		},
		"the end of a delete": func(w *harness) schemas.Body {
			w.handle(w.result(16))
			w.handle(w.approval("resurrected"))
			return w.deleteResult("deleted")
		},
		"lost properties":      func(w *harness) schemas.Body { return w.result(1, damaged) },
		"a copy that was lost": func(w *harness) schemas.Body { return w.lostResult("was-lost") },
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			message := prepare(w)
			lost := w.handleWithoutPublishing(message) // publishing failed
			equal(t, w.handle(message), lost)
			equal(t, w.handle(message), lost)
			w.restart()
			equal(t, w.handle(message), lost)
		})
	}
}

// A replay after the repair is over orders nothing.
func TestReplayOfAnOldOrder(t *testing.T) {
	w := newHarness(t)
	found := w.result(2)
	w.handle(found)
	w.handle(w.repairResult(w.orders[0], "repair-moot"))
	w.handle(found)
	if len(w.orders) != 1 {
		t.Errorf("ordered %v", w.orders)
	}
	w.checkIncident("content-corrupt", open, "opened", "repair-ordered", "repair-moot")
}

func TestStepsAreCapped(t *testing.T) {
	w := newHarness(t)
	for range 130 {
		w.handle(w.result(14))
	}
	i := w.topic[key("no-quorum")]
	if len(i.GetSteps()) != 100 || i.GetStepCount() != 130 || i.GetSteps()[99].GetRef() != "check-130" {
		t.Errorf("%d steps carried of %d", len(i.GetSteps()), i.GetStepCount())
	}
}

// The record of the topic counts, unless there have been decisions since.
func TestApply(t *testing.T) {
	w := newHarness(t)
	k := key("no-quorum")
	w.handle(w.result(14))
	first := w.topic[k]
	w.handle(w.result(14))
	w.steward.Apply([]byte(k), first) // the own record
	w.handle(w.result(14))
	w.checkIncident("no-quorum", open, "opened", "seen-again", "seen-again")
	other := proto.CloneOf(w.topic[k]) // another process continued
	other.StepCount, other.State = 7, shut
	w.steward.Apply([]byte(k), other)
	w.handle(w.result(14))
	if i := w.topic[k]; i.GetId() == other.GetId() || i.GetStepCount() != 1 {
		t.Errorf("the closed incident is continued: %v", i)
	}
	w.steward.Apply([]byte(k), nil)
	if w.steward.table.get(k) != nil || w.steward.table.of(at) != nil {
		t.Error("a tombstone leaves the incident")
	}
}

// Partitions are handled concurrently, even if they have messages about the same copy.
func TestManyAtOnce(t *testing.T) {
	w := newHarness(t)
	var results []schemas.Body
	for n := range 400 {
		results = append(results, w.result([]int32{14, 2, 1, 13}[n%4], func(r *pb.FixityResult) {
			r.Item, r.Started = strconv.Itoa(n/4%8), timestamppb.New(base) // none is older
		}))
	}
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for n := part; n < len(results); n += 4 {
				if _, err := w.steward.Handle(t.Context(), &schemas.Delivery{Body: results[n]}); err != nil {
					t.Errorf("Handle: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for item := range 8 {
		c := at
		c.Item = strconv.Itoa(item)
		for _, i := range w.steward.table.of(c) {
			if int(i.GetStepCount()) != len(i.GetSteps()) || i.GetSteps()[0].GetAction() != "opened" {
				t.Errorf("an incident lost steps: %v", i)
			}
		}
	}
}

func TestHandleRefusesOtherMessages(t *testing.T) {
	w := newHarness(t)
	if _, err := w.steward.Handle(t.Context(), &schemas.Delivery{Body: &pb.Change{}}); err == nil {
		t.Error("a Change is handled")
	}
}

func TestNew(t *testing.T) {
	w := newHarness(t)
	if _, err := New(Config{MaxSteps: -1}, Deps{Stores: w, Records: w, Log: slog.Default()}); err == nil {
		t.Error("negative steps are taken")
	}
	if _, err := New(Config{}, Deps{Stores: w, Records: w}); err == nil {
		t.Error("no log, no error")
	}
}
