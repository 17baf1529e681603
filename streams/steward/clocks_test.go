package steward

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Incidents open, stay open and close as the checks began, whatever the clocks of the checkers say.
func TestClocksOfCheckers(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, of := range map[string]struct{ passer, finder time.Duration }{
		"right":                          {},
		"the passing one is ahead":       {3 * year, 0},
		"the passing one is behind":      {-3 * year, 0},
		"the finding one is ahead":       {0, time.Hour},
		"the finding one is behind":      {0, -time.Hour},
		"both are wrong, each otherwise": {3 * year, -3 * year},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.handle(w.result(13, ahead(of.finder)))
			late := w.result(13, ahead(of.finder)) // begins before the pass, and is published after it
			w.handle(w.result(1, ahead(of.passer)))
			w.checkIncident("replaced", shut, "opened", "approval-asked", "closed")
			w.handle(late)
			w.checkIncident("replaced", shut, "opened", "approval-asked", "closed", "older-check")
			w.handle(w.result(13, ahead(of.finder)))
			w.checkIncident("replaced", awaiting, "opened", "approval-asked")
			w.handle(w.result(8, ahead(of.finder)))
			w.checkIncident("content-missing", repairing, "opened", "repair-ordered")
			slow := w.result(1, ahead(of.passer))
			slow.Started = timestamppb.New(base) // reads for minutes
			w.handle(slow)
			w.checkIncident("replaced", awaiting, "opened", "approval-asked", "older-check")
			w.handle(w.result(1, ahead(of.passer)))
			w.checkIncident("replaced", shut, "opened", "approval-asked", "older-check", "closed")
		})
	}
}

// A decision stands at Kafka's time, so an operator whose clock is ahead blocks no later decision.
func TestClockOfAnOperator(t *testing.T) {
	w := newHarness(t)
	w.modes[at.Store] = Approve
	w.handle(w.result(2))
	a := w.approval("content-corrupt")
	kafka := a.GetTime()
	a.Time = timestamppb.New(base.AddDate(3, 0, 0))
	out, err := w.steward.Handle(t.Context(), &schemas.Delivery{Body: a, Timestamp: kafka.AsTime()})
	if err != nil {
		t.Fatal(err)
	}
	i := out[0].Body.(*pb.Incident)
	last := i.GetSteps()[len(i.GetSteps())-1]
	if i.GetState() != repairing || !last.GetTime().AsTime().Equal(kafka.AsTime()) {
		t.Errorf("is %v, ordered at %v, want %v", i.GetState(), last.GetTime().AsTime(), kafka.AsTime())
	}
}

// A pass on records that are older than the incident does not close it. The check that follows reads the records
// afresh, and decides.
func TestPassOnOlderRecords(t *testing.T) {
	carried := func(r *pb.FixityResult) { r.LastEvent = timestamppb.New(base.Add(-2 * time.Hour)) }
	same := func(*pb.FixityResult) {}
	for name, tt := range map[string]struct {
		kind  string
		found with
		row   int32
		pass  with
		steps []string
	}{
		"replaced":   {"replaced", same, 13, same, []string{"opened", "approval-asked"}},
		"properties": {"metadata-damaged", damaged, 1, intact, []string{"opened", "repair-ordered"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.handle(w.result(tt.row, tt.found))
			state, pass := w.topic[key(tt.kind)].GetState(), w.result(1, tt.pass, carried)
			w.handle(pass)
			w.restart()
			w.handle(pass)
			w.checkIncident(tt.kind, state, append(tt.steps, "older-records")...)
			for _, task := range w.tasks {
				if task.GetId() != w.tasks[0].GetId() || task.GetCause() != pass.GetId() || task.GetKnown() != nil ||
					task.GetReason() != pb.FixityReason_FIXITY_REASON_SUSPECT {
					t.Errorf("requested %v", task)
				}
			}
			if len(w.tasks) != 2 {
				t.Fatalf("%d requests of one check, want 2", len(w.tasks))
			}
			// The records may say less than before, as after a rebuild. A fresh check decides all the same.
			w.handle(w.result(1, tt.pass, carried, w.follows(0)))
			w.checkIncident(tt.kind, shut, append(tt.steps, "older-records", "closed")...)
		})
	}
}
