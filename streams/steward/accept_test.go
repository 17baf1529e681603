package steward

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// corrected makes a result one of a check that has published a correction.
func corrected(r *pb.FixityResult) {
	if r.Correction = "change-1"; r.GetRow() == 5 {
		r.Finding = "manifest-corrected"
	}
}

// accepting returns an operator's acceptance of the copy of an incident.
func (w *harness) accepting(kind string) *pb.AdminAction {
	a := w.approval(kind)
	a.Action = ActionAccept
	return a
}

// decided makes a result the one of the last check that was requested, with its decision about an acceptance.
func (w *harness) decided(result string) with {
	task := w.tasks[len(w.tasks)-1]
	return func(r *pb.FixityResult) {
		r.Task, r.Cause, r.Reason, r.Accept = task.GetId(), task.GetCause(), task.GetReason(), task.GetAccept()
		if r.AcceptResult = result; result != "accepted" {
			r.AcceptDetail = "the reason"
		}
	}
}

// follows makes a result the one of the last check that was requested. The clock of its checker is behind.
func (w *harness) follows(behind time.Duration) with {
	task := w.tasks[len(w.tasks)-1]
	return func(r *pb.FixityResult) {
		r.Task, r.Cause, r.Reason = task.GetId(), task.GetCause(), task.GetReason()
		ahead(-behind)(r)
	}
}

// A correction is followed by a check, and that closes the incident, whatever the clocks of the checkers say.
func TestCorrectionIsChecked(t *testing.T) {
	for _, row := range []int32{5, 6, 7, 9, 10} {
		for clock, behind := range map[string]time.Duration{"": 0, ", an hour behind": time.Hour, ", ahead": -time.Hour} {
			t.Run(rowKind(row)+clock, func(t *testing.T) {
				w := newHarness(t)
				found := w.result(row, corrected)
				kind := found.GetFinding()
				w.handle(found)
				w.checkIncident(kind, repairing, "opened", "corrected")
				i := w.topic[key(kind)]
				if d := i.GetSteps()[1].GetDetail(); d != "change-1" {
					t.Errorf("the step names %q", d)
				}
				want := &pb.FixityTask{Id: schemas.ID("follow-up", i.GetId(), found.GetId()), Account: at.Account,
					Store: at.Store, Space: at.Space, Item: at.Item, Reason: pb.FixityReason_FIXITY_REASON_REPAIR,
					Priority: pb.Priority_PRIORITY_HIGH, Cause: found.GetId(), Time: found.GetFinished(), Size: 3}
				if len(w.tasks) != 1 || !proto.Equal(w.tasks[0], want) || len(w.orders) != 0 {
					t.Fatalf("checks %v, want %v; orders %v", w.tasks, want, w.orders)
				}
				late := w.result(row, corrected) // begins before the follow-up, and is published after it
				w.handle(w.result(1, w.follows(behind)))
				w.checkIncident(kind, shut, "opened", "corrected", "closed")
				if behind == 0 {
					w.handle(late)
					w.checkIncident(kind, shut, "opened", "corrected", "closed", "older-check")
				}
			})
		}
	}
}

func rowKind(row int32) string {
	return (&harness{}).result(row).GetFinding()
}

// A pass with a late clock does not close an incident that another check has found again since the correction.
func TestFollowUpBehindAnotherFinding(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(6, corrected))
	pass := w.result(1, w.follows(time.Hour))
	w.handle(w.result(6))
	w.handle(pass)
	w.checkIncident("audit-mismatch", repairing, "opened", "corrected", "seen-again", "older-check")
}

// An incident says that the manifest was corrected only if it was. The check after a correction closes both.
func TestManifestIsWrongUntilCorrected(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(5))
	w.checkIncident("manifest-wrong", open, "opened")
	if w.topic[key("manifest-corrected")] != nil || len(w.tasks) != 0 || len(w.orders) != 0 {
		t.Errorf("nothing was corrected, and yet %v, checks %v, orders %v", w.topic[key("manifest-corrected")], w.tasks,
			w.orders)
	}
	w.handle(w.result(5, corrected))
	w.checkIncident("manifest-corrected", repairing, "opened", "corrected")
	w.checkIncident("manifest-wrong", open, "opened")
	w.handle(w.result(1, w.follows(0)))
	w.checkIncident("manifest-corrected", shut, "opened", "corrected", "closed")
	w.checkIncident("manifest-wrong", shut, "opened", "closed")
}

// Corrections that do not help end after three, and an operator must decide.
func TestCorrectionsEnd(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(6, corrected))
	steps := []string{"opened", "corrected"}
	for range 2 {
		w.handle(w.result(6, w.follows(0), corrected))
		steps = append(steps, "seen-again", "corrected")
	}
	w.checkIncident("audit-mismatch", repairing, steps...)
	w.handle(w.result(6, w.follows(0), corrected))
	w.checkIncident("audit-mismatch", open, append(steps, "seen-again", "repairs-exhausted")...)
	if len(w.tasks) != 3 {
		t.Errorf("%d checks, want 3", len(w.tasks))
	}
}

// The first check of a copy is a pass, although it publishes a Change: it is no incident, is followed by no check, and
// closes the incidents of the copy. One of an unknown item outside of a baseline round is no pass.
func TestFirstCheckPasses(t *testing.T) {
	w := newHarness(t)
	first := func(r *pb.FixityResult) { r.Verdict, r.Finding = pb.Verdict_VERDICT_PASS, "captured" }
	if got := w.handle(w.result(9, corrected, first)); got != nil {
		t.Errorf("got %v", got)
	}
	w.handle(w.result(14))
	w.checkIncident("no-quorum", open, "opened")
	w.handle(w.result(9, corrected, first))
	w.checkIncident("no-quorum", shut, "opened", "closed")
	w.handle(w.result(9, corrected, func(r *pb.FixityResult) { r.Baseline = true }))
	w.checkIncident("not-captured", repairing, "opened", "corrected")
}

// An acceptance becomes a check of the copy as the operator saw it. Its correction is followed by another check, which
// closes the incident.
func TestAcceptance(t *testing.T) {
	for _, row := range []int32{10, 13, 14, 16} {
		for clock, behind := range map[string]time.Duration{"": 0, ", clocks an hour behind": time.Hour} {
			t.Run(rowKind(row)+clock, func(t *testing.T) {
				w := newHarness(t)
				found := w.result(row)
				kind := found.GetFinding()
				w.handle(found)
				a := w.accepting(kind)
				w.handle(a)
				i := w.topic[key(kind)]
				want := &pb.FixityTask{Id: schemas.ID("accept", i.GetId(), a.GetId()), Account: at.Account, Store: at.Store,
					Space: at.Space, Item: at.Item, Reason: pb.FixityReason_FIXITY_REASON_DEMAND,
					Priority: pb.Priority_PRIORITY_HIGH, Cause: a.GetId(), Time: a.GetTime(), Size: 3,
					Accept: &pb.AcceptOrder{Incident: key(kind), IncidentId: i.GetId(), Action: a.GetId(),
						Object: found.GetObject(), Digests: bad1, LastEvent: found.GetLastEvent(), By: "eve", Reason: "looked at it",
						Time: a.GetTime()}}
				if i.GetState() != repairing || len(w.tasks) != 1 || !proto.Equal(w.tasks[0], want) {
					t.Fatalf("is %v, checks %v\nwant %v", i, w.tasks, want)
				}
				for _, again := range []*pb.AdminAction{w.accepting(kind), w.approval(kind)} {
					if got := w.handle(again); got != nil {
						t.Errorf("decided twice: %v", got)
					}
				}
				w.handle(w.result(row)) // a sweep's check, meanwhile
				w.restart()
				w.handle(w.result(row, w.decided("accepted"), corrected))
				last := w.topic[key(kind)].GetSteps()
				if s := last[len(last)-1]; s.GetAction() != stepCorrected || w.topic[key(kind)].GetState() != repairing ||
					len(w.tasks) != 2 {
					t.Fatalf("is %v, checks %v", w.topic[key(kind)], w.tasks)
				}
				w.handle(w.result(1, w.follows(behind)))
				if i := w.topic[key(kind)]; i.GetState() != shut {
					t.Errorf("is %v", i)
				}
			})
		}
	}
}

// The approval of an update that no event reported, and an acceptance with force, are acceptances too.
func TestOtherAcceptances(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(10))
	w.handle(w.approval("not-captured-update"))
	w.checkIncident("not-captured-update", repairing, "opened", "approval-asked", "accept-ordered")
	w.handle(w.result(14))
	forced := w.accepting("no-quorum")
	forced.Action = ActionAcceptForced
	w.handle(forced)
	w.checkIncident("no-quorum", repairing, "opened", "accept-forced")
	if len(w.tasks) != 2 || w.tasks[0].GetAccept().GetForce() || !w.tasks[1].GetAccept().GetForce() {
		t.Errorf("checks %v", w.tasks)
	}
	for _, row := range []int32{2, 5, 8, 9} {
		r := w.result(row)
		w.handle(r)
		n := w.topic[key(r.GetFinding())].GetStepCount()
		if w.handle(w.accepting(r.GetFinding())); w.topic[key(r.GetFinding())].GetStepCount() != n || len(w.tasks) != 2 {
			t.Errorf("%s was accepted", r.GetFinding())
		}
	}
}

// An acceptance that is not carried out says why, and the incident is as the check says.
func TestAcceptanceThatIsNotCarriedOut(t *testing.T) {
	early := func(r *pb.FixityResult) { r.Started = timestamppb.New(r.GetStarted().AsTime().Add(-time.Hour)) }
	undecided := func(r *pb.FixityResult) { r.Final, r.Verdict = false, pb.Verdict_VERDICT_UNDECIDED }
	for name, tt := range map[string]struct {
		found  int32
		then   func(*harness) *pb.FixityResult
		state  pb.IncidentState
		steps  []string // after the acceptance
		beside string   // another incident that is open
	}{
		"refused": {14, func(w *harness) *pb.FixityResult { return w.result(14, w.decided("accept-refused")) },
			open, []string{"seen-again", "accept-refused"}, ""},
		"refused, repair by approval": {13, func(w *harness) *pb.FixityResult {
			return w.result(13, w.decided("accept-refused"))
		}, awaiting, []string{"seen-again", "approval-asked", "accept-refused"}, ""},
		"another object": {14, func(w *harness) *pb.FixityResult {
			return w.result(14, w.decided("accept-outdated"), func(r *pb.FixityResult) { r.Object.Version = "v2" })
		}, open, []string{"seen-again", "accept-outdated"}, ""},
		"another object, undecided": {13, func(w *harness) *pb.FixityResult {
			return w.result(13, w.decided("accept-outdated"), undecided)
		}, open, []string{"accept-outdated"}, ""},
		"another fault": {14, func(w *harness) *pb.FixityResult {
			return w.result(2, w.decided("accept-outdated"))
		}, open, []string{"accept-outdated"}, "content-corrupt"},
		"gone": {16, func(w *harness) *pb.FixityResult {
			return w.result(11, w.decided("accept-outdated"))
		}, shut, []string{"closed"}, ""},
		"put right": {14, func(w *harness) *pb.FixityResult {
			return w.result(1, w.decided("accept-outdated"))
		}, shut, []string{"closed"}, ""},
		"recorded already": {14, func(w *harness) *pb.FixityResult {
			return w.result(1, w.decided("accept-moot"))
		}, shut, []string{"closed"}, ""},
		"in the manifest already": {14, func(w *harness) *pb.FixityResult {
			return w.result(6, w.decided("accept-moot"), undecided)
		}, open, []string{"accept-moot"}, ""},
		"in the audit log already, which corrects the manifest": {14, func(w *harness) *pb.FixityResult {
			return w.result(5, w.decided("accept-moot"), corrected)
		}, open, []string{"accept-moot"}, "manifest-corrected"},
		"a clock an hour behind": {14, func(w *harness) *pb.FixityResult {
			return w.result(14, w.decided("accept-refused"), ahead(-time.Hour))
		}, open, []string{"seen-again", "accept-refused"}, ""},
		"begun an hour before, beside another check": {14, func(w *harness) *pb.FixityResult {
			w.handle(w.result(14))
			return w.result(14, w.decided("accept-refused"), early)
		}, open, []string{"seen-again", "accept-refused"}, ""},
		"put right, begun an hour before, beside another check": {14, func(w *harness) *pb.FixityResult {
			w.handle(w.result(14))
			return w.result(1, w.decided("accept-moot"), early)
		}, open, []string{"seen-again", "accept-moot"}, ""},
		"another fault, begun an hour before, beside another check": {14, func(w *harness) *pb.FixityResult {
			w.handle(w.result(14))
			return w.result(13, w.decided("accept-outdated"), early)
		}, open, []string{"seen-again", "accept-outdated"}, ""},
		"another fault, begun an hour before, beside a third one": {14, func(w *harness) *pb.FixityResult {
			w.handle(w.result(13))
			return w.result(2, w.decided("accept-outdated"), early)
		}, open, []string{"accept-outdated"}, "replaced"},
		"overtaken by a change": {14, func(w *harness) *pb.FixityResult {
			return w.result(14, w.decided("accept-outdated"), func(r *pb.FixityResult) { r.Overtaken = true })
		}, open, []string{"accept-outdated"}, ""},
		"put right, unread": {14, func(w *harness) *pb.FixityResult {
			return w.result(1, w.decided("accept-refused"), func(r *pb.FixityResult) { r.EvidenceLevel = 2 })
		}, open, []string{"accept-refused"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			found := w.result(tt.found)
			kind := found.GetFinding()
			w.handle(found)
			w.handle(w.accepting(kind))
			before := actions(w.topic[key(kind)])
			r := tt.then(w)
			w.handle(r)
			w.restart()
			w.handle(r)
			i := w.topic[key(kind)]
			if got := actions(i)[len(before):]; i.GetState() != tt.state || !slices.Equal(got, tt.steps) {
				t.Errorf("is %v after %q, want %v after %q", i.GetState(), got, tt.state, tt.steps)
			}
			if tt.beside != "" && w.topic[key(tt.beside)].GetState() == shut {
				t.Errorf("%s is not open", tt.beside)
			}
			for _, s := range i.GetSteps() {
				if s.GetAction() == "accept-refused" && s.GetDetail() != "the reason" {
					t.Errorf("the step does not say why: %v", s)
				}
			}
		})
	}
}

func actions(i *pb.Incident) (all []string) {
	for _, s := range i.GetSteps() {
		all = append(all, s.GetAction())
	}
	return all
}

// A check that fails after an acceptance was carried out opens the incident again.
func TestCheckThatFailsAfterAnAcceptance(t *testing.T) {
	for row, want := range map[int32]pb.IncidentState{14: open, 13: awaiting} {
		t.Run(rowKind(row), func(t *testing.T) {
			w := newHarness(t)
			found := w.result(row)
			w.handle(found)
			w.handle(w.accepting(found.GetFinding()))
			w.handle(w.result(row, w.decided("accepted"), corrected))
			w.handle(w.result(row, w.follows(time.Hour)))
			if i := w.topic[key(found.GetFinding())]; i.GetState() != want {
				t.Errorf("is %v, want %v", i, want)
			}
		})
	}
}

// The incident was closed, or closed and opened again, before the end of the acceptance.
func TestEndOfAnAcceptanceWithoutItsIncident(t *testing.T) {
	for name, again := range map[string]bool{"closed": false, "opened again": true} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.handle(w.result(14))
			w.handle(w.accepting("no-quorum"))
			end := w.result(14, w.decided("accepted"), corrected)
			w.handle(w.closing("no-quorum"))
			if again {
				w.handle(w.result(14))
			}
			if got := w.handle(end); got != nil {
				t.Errorf("got %v", got)
			}
		})
	}
}

// An acceptance that never ends does not block the incident for ever.
func TestAcceptanceThatNeverEnds(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(13))
	w.handle(w.accepting("replaced"))
	w.clock += 24 * 60
	w.handle(w.result(13))
	w.checkIncident("replaced", awaiting, "opened", "approval-asked", "accept-ordered", "seen-again", "approval-asked")
	w.handle(w.accepting("replaced"))
	if len(w.tasks) != 2 || w.tasks[0].GetId() == w.tasks[1].GetId() {
		t.Errorf("checks %v", w.tasks)
	}
}

// A check of an acceptance that proves nothing about the copy hides no fault that an earlier check has found.
func TestAcceptanceHidesNoFault(t *testing.T) {
	for name, edit := range map[string]with{
		"pass, unread": func(r *pb.FixityResult) {
			r.Verdict, r.Finding, r.EvidenceLevel = pb.Verdict_VERDICT_PASS, "pass", 2
		},
		"not final": func(r *pb.FixityResult) { r.Final = false },
		"overtaken": func(r *pb.FixityResult) { r.Overtaken = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.handle(w.result(14))
			i := w.topic[key("no-quorum")]
			a := w.approval("no-quorum")
			a.Action, a.Incident, a.Seen = ActionAccept, i.GetId(), Seen(i)
			w.handle(a)
			task := w.tasks[len(w.tasks)-1]
			corrupt := w.result(2) // it began before the check of the acceptance
			w.handle(w.result(14, func(r *pb.FixityResult) {
				r.Task, r.Cause, r.Accept, r.AcceptResult = task.GetId(), task.GetCause(), task.GetAccept(), "accept-refused"
				edit(r)
			}))
			w.handle(corrupt)
			w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered")
		})
	}
}

// The first event about a copy outdates a decision that was made when none was on record.
func TestFirstEventOutdatesADecision(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(13, func(r *pb.FixityResult) { r.LastEvent = nil }))
	i := w.topic[key("replaced")]
	a := w.approval("replaced")
	a.Action, a.Incident, a.Seen = ActionAccept, i.GetId(), Seen(i)
	w.handle(w.result(13, func(r *pb.FixityResult) { r.LastEvent = timestamppb.New(base) }))
	w.handle(a)
	if steps := actions(w.topic[key("replaced")]); steps[len(steps)-1] != stepOutdated {
		t.Errorf("steps %v", steps)
	}
}
