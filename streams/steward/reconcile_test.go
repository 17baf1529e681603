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
)

// record returns an incident with the given steps. Its newest check began at the minute checked.
func record(id string, state pb.IncidentState, checked int, repairs int32, steps ...*pb.IncidentStep) *pb.Incident {
	minute := func(n int) *timestamppb.Timestamp { return timestamppb.New(base.Add(time.Duration(n) * time.Minute)) }
	i := &pb.Incident{Id: id, State: state, Opened: steps[0].GetTime(), Checked: minute(checked), Repairs: repairs,
		Steps: steps, StepCount: int32(len(steps)), Updated: steps[len(steps)-1].GetTime()}
	return i
}

func step(minute int, ref, action string) *pb.IncidentStep {
	return &pb.IncidentStep{Time: timestamppb.New(base.Add(time.Duration(minute) * time.Minute)), Ref: ref, Action: action}
}

func TestReconcile(t *testing.T) {
	opened, ordered := step(1, "m1", "opened"), step(1, "m1", "repair-ordered")
	repaired, closing := step(4, "r", "repaired"), step(5, "p", "closed")
	seen, approved, byEve := step(2, "m2", "seen-again"), step(3, "a", "approved"), step(3, "a", "repair-ordered")
	first := record("i", repairing, 1, 1, opened, ordered)
	whole := record("i", shut, 5, 1, opened, ordered, repaired, closing)
	for name, tt := range map[string]struct {
		held, read *pb.Incident
		state      pb.IncidentState
		steps      []string
		behind     bool
	}{
		"nothing was held": {nil, first, repairing, []string{"opened", "repair-ordered"}, false},
		"the echo of what was decided": {whole, whole, shut, []string{"opened", "repair-ordered", "repaired",
			"closed"}, false},
		"another process went on": {first, whole, shut, []string{"opened", "repair-ordered", "repaired",
			"closed"}, false},
		"one that was frozen wakes up": {whole, first, shut, []string{"opened", "repair-ordered", "repaired",
			"closed"}, true},
		"a newer incident": {whole, record("j", open, 9, 0, step(9, "m9", "opened")), open,
			[]string{"opened"}, false},
		"an older incident, after it": {record("j", open, 9, 0, step(9, "m9", "opened")), whole, open,
			[]string{"opened"}, true},
		"a newer incident, beside a repair": {first, record("j", open, 9, 0, step(9, "m9", "opened")), open,
			[]string{"repair-ordered-by-another", "opened"}, true},
		"an older incident, with a repair": {record("j", open, 9, 0, step(9, "m9", "opened")), first, open,
			[]string{"repair-ordered-by-another", "opened"}, true},
		"a pass here, the end of repair": {record("i", shut, 5, 1, opened, ordered, closing), record("i", repairing,
			1, 1, opened, ordered, repaired), shut, []string{"opened", "repair-ordered", "repaired", "closed"}, true},
		"the same, the other way round": {record("i", repairing, 1, 1, opened, ordered, repaired), record("i", shut,
			5, 1, opened, ordered, closing), shut, []string{"opened", "repair-ordered", "repaired", "closed"}, true},
		"seen again here, an approval there": {record("i", awaiting, 2, 0, opened, seen), record("i", repairing, 1, 1,
			opened, approved, byEve), repairing, []string{"opened", "seen-again", "approved", "repair-ordered"}, true},
		"closed here, seen later there": {record("i", shut, 2, 0, opened, step(2, "p", "closed")), record("i", open,
			6, 0, opened, step(6, "m6", "seen-again")), open, []string{"opened", "closed", "seen-again"}, true},
		"closed by an operator, the same check": {record("i", shut, 1, 0, opened, step(7, "a", "closed")), record("i", open,
			1, 0, opened, step(8, "r", "repair-failed")), shut, []string{"opened", "closed", "repair-failed"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			held, read := proto.CloneOf(tt.held), proto.CloneOf(tt.read)
			now, behind := reconcile(held, read)
			var steps []string
			for _, s := range now.GetSteps() {
				steps = append(steps, s.GetAction())
			}
			if now.GetState() != tt.state || !slices.Equal(steps, tt.steps) || behind != tt.behind {
				t.Errorf("got %v with %q, behind %t, want %v with %q, %t", now.GetState(), steps, behind, tt.state, tt.steps,
					tt.behind)
			}
			if !proto.Equal(held, tt.held) || !proto.Equal(read, tt.read) {
				t.Error("an argument was modified")
			}
			same := tt.held != nil && tt.held.GetId() == tt.read.GetId() // each id counts its own steps
			if same && now != held && now != read && (now.GetStepCount() <= held.GetStepCount() ||
				now.GetStepCount() <= read.GetStepCount()) {
				t.Errorf("step %d is not after steps %d and %d", now.GetStepCount(), held.GetStepCount(), read.GetStepCount())
			}
			if again, _ := reconcile(now, now); !proto.Equal(again, now) {
				t.Errorf("read again: %v", again)
			}
			if again, behind := reconcile(now, read); !proto.Equal(again, now) || behind != tt.behind {
				t.Errorf("the same record read again: %v, behind %t", again, behind)
			}
		})
	}
}

// Steps that an incident no longer carries are not missing.
func TestReconcileLongIncidents(t *testing.T) {
	var steps []*pb.IncidentStep
	for n := range 300 {
		steps = append(steps, step(n+1, strconv.Itoa(n), "seen-again"))
	}
	long := record("i", open, 300, 0, steps...)
	cut := proto.CloneOf(long)
	cut.Steps = cut.Steps[200:]
	older := record("i", open, 150, 0, steps[50:150]...)
	older.StepCount = 150
	if now, behind := reconcile(cut, older); now != cut || !behind {
		t.Errorf("holds %d steps, behind %t, want those that were held", now.GetStepCount(), behind)
	}
	if now, behind := reconcile(older, cut); now != cut || behind {
		t.Errorf("holds %d steps, behind %t, want those that were read", now.GetStepCount(), behind)
	}
}

// both publishes the outputs of two processes, and both read them.
func (w *harness) both(one, two *Steward, outs ...[]schemas.Message) {
	for _, out := range outs {
		for _, m := range out {
			if i, ok := m.Body.(*pb.Incident); ok {
				k := schemas.IncidentKey(i)
				w.topic[k] = proto.CloneOf(i)
				one.Apply([]byte(k), w.topic[k])
				two.Apply([]byte(k), w.topic[k])
			}
		}
	}
}

func (w *harness) handleWith(s *Steward, b schemas.Body) []schemas.Message {
	w.t.Helper()
	out, err := s.Handle(w.t.Context(), &schemas.Delivery{Body: b})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// A process is suspended after a decision, and another one takes over. When the first one resumes, it publishes its old
// decision. The newest record of the topic is then outdated; the next message about the copy corrects it.
func TestFrozenStewardPublishesLate(t *testing.T) {
	w := newHarness(t)
	frozen := w.steward
	found := w.result(2)
	late := w.handleWith(frozen, found)
	w.restart()
	two := w.steward
	again := w.handleWith(two, found)
	if !proto.Equal(again[0].Body, late[0].Body) {
		t.Fatalf("the second decides %v, the first %v", again[0].Body, late[0].Body)
	}
	w.both(frozen, two, again)
	w.handle(w.repairResult(again[1].Body.(*pb.DuplicationCommand), "repaired"))
	w.handle(w.result(1, because(pb.FixityReason_FIXITY_REASON_REPAIR)))
	w.checkIncident("content-corrupt", shut, "opened", "repair-ordered", "repaired", "closed")
	w.both(frozen, two, late)
	w.checkIncident("content-corrupt", repairing, "opened", "repair-ordered")
	if got := w.handle(w.result(1)); len(got) != 1 {
		t.Fatalf("published %v, want the incident", got)
	}
	w.checkIncident("content-corrupt", shut, "opened", "repair-ordered", "repaired", "closed")
	if got := w.handle(w.result(1)); got != nil {
		t.Errorf("published once more: %v", got)
	}
}

// While versions without co-partitioned results are still running, two processes may decide about one copy at the same
// time. Each finds the other's record, and neither decision is lost.
func TestTwoStewardsDecideAtOnce(t *testing.T) {
	tests := map[string]struct {
		one, two func(w *harness, order *pb.DuplicationCommand) schemas.Body
		state    pb.IncidentState
		steps    []string
	}{
		"the end of a repair and the pass after it": {
			func(w *harness, o *pb.DuplicationCommand) schemas.Body { return w.repairResult(o, "repaired") },
			func(w *harness, _ *pb.DuplicationCommand) schemas.Body {
				return w.result(1, because(pb.FixityReason_FIXITY_REASON_REPAIR))
			},
			shut, []string{"opened", "repair-ordered", "repaired", "closed"},
		},
		"a fault seen again and its approval": {
			func(w *harness, _ *pb.DuplicationCommand) schemas.Body { return w.result(2) },
			func(w *harness, _ *pb.DuplicationCommand) schemas.Body { return w.approval("content-corrupt") },
			repairing, []string{"opened", "approval-asked", "seen-again", "approved", "repair-ordered"},
		},
	}
	for name, tt := range tests {
		for _, swapped := range []bool{false, true} {
			t.Run(name+", order "+strconv.FormatBool(swapped), func(t *testing.T) {
				w := newHarness(t)
				if len(tt.steps) == 5 {
					w.modes[at.Store] = Approve
				}
				w.handle(w.result(2))
				var order *pb.DuplicationCommand
				if len(w.orders) == 1 {
					order = w.orders[0]
				}
				one := w.steward
				w.restart()
				two := w.steward
				a, b := w.handleWith(one, tt.one(w, order)), w.handleWith(two, tt.two(w, order))
				if swapped {
					w.both(one, two, b, a)
				} else {
					w.both(one, two, a, b)
				}
				// The next message about the copy publishes both decisions.
				w.handle(w.result(12, func(r *pb.FixityResult) { r.Final = true }))
				w.checkIncident("content-corrupt", tt.state, tt.steps...)
				if i := w.topic[key("content-corrupt")]; i.GetRepairs() != 1 {
					t.Errorf("%d repairs are on record", i.GetRepairs())
				}
			})
		}
	}
}

// The clock of the checker that found the first fault is ahead: the second incident of the key is the newer one all the
// same, for every process, in whichever order the records are read.
func TestNewIncidentIsTheNewerOne(t *testing.T) {
	for name, close := range map[string]func(*harness) schemas.Body{
		"closed by an operator": func(w *harness) schemas.Body { return w.closing("no-quorum") },
		"closed by an operator, a clock ahead": func(w *harness) schemas.Body {
			a := w.closing("no-quorum")
			a.Time = timestamppb.New(a.GetTime().AsTime().Add(time.Hour))
			return a
		},
		"closed by a check": func(w *harness) schemas.Body { return w.result(1) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			ahead := w.result(14)
			ahead.Finished = timestamppb.New(ahead.GetFinished().AsTime().Add(10 * time.Minute))
			w.handle(ahead)
			a := close(w)
			if action, ok := a.(*pb.AdminAction); ok {
				i := w.topic[key("no-quorum")]
				action.Incident, action.Seen = i.GetId(), Seen(i)
			}
			w.handle(a)
			first := w.topic[key("no-quorum")]
			w.handle(w.result(14))
			second := w.topic[key("no-quorum")]
			if first.GetState() != shut || second.GetId() == first.GetId() {
				t.Fatalf("got %v, then %v", first, second)
			}
			for _, records := range [][]*pb.Incident{{first, second}, {second, first}} {
				w.topic = nil
				w.restart()
				for _, i := range records {
					w.steward.Apply([]byte(key("no-quorum")), i)
				}
				if got := w.steward.table.get(key("no-quorum")); got.GetId() != second.GetId() || got.GetState() != open {
					t.Errorf("holds %v, want the second incident, open", got)
				}
			}
		})
	}
}

// The result of a repair is recorded even if the incident that ordered it was replaced by another one.
func TestEndOfAnothersRepair(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(2))
	order := w.orders[0]
	other := proto.CloneOf(w.topic[key("content-corrupt")])
	other.Id, other.Opened, other.State, other.Repairs = schemas.ID("other"), w.next(), open, 0
	other.Steps, other.StepCount = []*pb.IncidentStep{{Time: other.Opened, Action: "opened", Ref: "check-other"}}, 1
	w.topic[key("content-corrupt")] = other
	w.steward.Apply([]byte(key("content-corrupt")), other)
	end := w.repairResult(order, "repaired")
	lost := w.handleWithoutPublishing(end)
	if again := w.handle(end); len(again) != len(lost) || !proto.Equal(again[0].Body, lost[0].Body) {
		t.Errorf("handled again: %v, want %v", again, lost)
	}
	w.checkIncident("content-corrupt", open, "repair-ordered-by-another", "opened", "repaired")
	w.handle(w.result(1, because(pb.FixityReason_FIXITY_REASON_REPAIR)))
	w.checkIncident("content-corrupt", shut, "repair-ordered-by-another", "opened", "repaired", "closed")
}
