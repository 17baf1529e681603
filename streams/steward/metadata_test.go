package steward

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func damaged(r *pb.FixityResult) {
	r.Metadata, r.MetadataDetail = pb.Metadata_METADATA_DAMAGED, "media type image/png"
}

func intact(r *pb.FixityResult) { r.Metadata = pb.Metadata_METADATA_INTACT }

// Lost properties open an incident, with any verdict about the bytes. It is closed by a check that finds them again or
// finds the copy rightly deleted, and not by a check that did not compare them.
func TestMetadataDamaged(t *testing.T) {
	const kind = "metadata-damaged"
	w := newHarness(t)
	w.modes[at.Store] = Off
	unverified := func(r *pb.FixityResult) {
		r.Verdict, r.Finding = pb.Verdict_VERDICT_UNVERIFIED, "unverified"
	}
	found := w.result(1, damaged)
	w.handle(found)
	w.checkIncident(kind, open, "opened")
	incident := &pb.Incident{
		Id: schemas.ID("incident", key(kind), found.GetId()), Account: at.Account, Store: at.Store, Space: at.Space,
		Item: at.Item,
		Kind: kind, State: open, Opened: found.GetFinished(), Updated: found.GetFinished(), Checked: found.GetStarted(),
		Object: found.GetObject(), Found: bad1, Size: 3, StepCount: 1, LastEvent: found.GetLastEvent(),
		Steps: []*pb.IncidentStep{{Time: found.GetFinished(), Action: "opened", Ref: found.GetId(),
			Detail: "media type image/png"}},
	}
	if got := w.topic[key(kind)]; !proto.Equal(got, incident) {
		t.Errorf("got %v\nwant %v", got, incident)
	}
	w.handle(w.result(15, unverified, damaged))
	w.checkIncident(kind, open, "opened", "seen-again")
	w.handle(w.result(1)) // without an answer of the manifest
	w.checkIncident(kind, open, "opened", "seen-again")
	w.handle(w.result(2, damaged))
	w.checkIncident(kind, open, "opened", "seen-again", "seen-again")
	w.checkIncident("content-corrupt", open, "opened")
	w.handle(w.result(1, damaged))
	w.checkIncident("content-corrupt", shut, "opened", "closed")
	w.checkIncident(kind, open, "opened", "seen-again", "seen-again", "seen-again")
	w.handle(w.result(15, unverified, intact))
	w.checkIncident(kind, shut, "opened", "seen-again", "seen-again", "seen-again", "closed")
	if steps := w.topic[key(kind)].GetSteps(); steps[len(steps)-1].GetDetail() != "intact" {
		t.Errorf("closed by %v", steps[len(steps)-1])
	}
	if got := w.handle(w.result(1, intact)); got != nil {
		t.Errorf("a copy that is well: %v", got)
	}
	w.handle(w.result(1, damaged))
	w.checkIncident(kind, open, "opened")
	w.handle(w.result(11))
	w.checkIncident(kind, shut, "opened", "closed")
	if len(w.orders) != 0 {
		t.Errorf("ordered %v", w.orders)
	}
}

// Lost properties are set again as the mode of the store says. The check after that closes the incident, whatever the
// clock of its checker says.
func TestMetadataIsRepaired(t *testing.T) {
	const kind = "metadata-damaged"
	for name, tt := range map[string]struct {
		mode  Mode
		steps []string
	}{
		"auto":     {Auto, []string{"opened", "repair-ordered"}},
		"approved": {Approve, []string{"opened", "approval-asked", "approved", "repair-ordered"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.modes[at.Store] = tt.mode
			found := w.result(1, damaged)
			w.handle(found)
			ordered, by := found.GetFinished(), ""
			if tt.mode == Approve {
				w.checkIncident(kind, awaiting, "opened", "approval-asked")
				a := w.approval(kind)
				w.handle(a)
				ordered, by = a.GetTime(), "eve"
			}
			w.checkIncident(kind, repairing, tt.steps...)
			id := w.topic[key(kind)].GetId()
			order := &pb.DuplicationCommand{
				Id: schemas.ID("repair", id, "1"), Account: at.Account, Space: at.Space, Item: at.Item,
				SourceStore: "2", DestinationStore: "2", Reason: pb.DuplicationReason_DUPLICATION_REASON_REPAIR,
				Priority: pb.Priority_PRIORITY_HIGH, Cause: id, Size: 3, Time: ordered, Approved: by,
				Repair: &pb.RepairOrder{Incident: key(kind), Digests: bad1, Failed: found.GetObject(), Check: found.GetId(),
					Number: 1, Properties: true},
			}
			if len(w.orders) != 1 || !proto.Equal(w.orders[0], order) {
				t.Fatalf("ordered %v\nwant %v", w.orders, order)
			}
			w.handle(w.result(1, damaged)) // a sweep's check, meanwhile
			w.handle(w.repairResult(order, "properties-set"))
			w.handle(w.result(1, intact, func(r *pb.FixityResult) {
				r.Cause, r.Reason = order.GetId(), pb.FixityReason_FIXITY_REASON_REPAIR
			}))
			w.checkIncident(kind, shut, append(tt.steps, "seen-again", "repaired", "closed")...)
			if len(w.orders) != 1 {
				t.Errorf("ordered %v", w.orders)
			}
		})
	}
	w := newHarness(t) // the clock of the checker is an hour behind
	w.handle(w.result(1, damaged))
	w.handle(w.repairResult(w.orders[0], "properties-set"))
	w.handle(w.result(1, intact, func(r *pb.FixityResult) {
		r.Cause = w.orders[0].GetId()
	}, ahead(-time.Hour)))
	w.checkIncident(kind, shut, "opened", "repair-ordered", "repaired", "closed")
}

// Properties that cannot be set are tried three times, and then wait for an operator.
func TestMetadataRepairsEnd(t *testing.T) {
	w := newHarness(t)
	steps := []string{"opened"}
	for n := range 4 {
		w.handle(w.result(1, damaged, because(pb.FixityReason_FIXITY_REASON_REPAIR)))
		if n == 3 {
			break
		}
		w.handle(w.repairResult(w.orders[n], "repair-moot"))
		steps = append(steps, "repair-ordered", "repair-moot", "seen-again")
	}
	w.checkIncident("metadata-damaged", open, append(steps, "repairs-exhausted")...)
}

// An older check neither opens nor closes the incident. An overtaken or non-final check has no effect.
func TestMetadataOfOlderChecks(t *testing.T) {
	w := newHarness(t)
	w.modes[at.Store] = Off
	was, wasIntact := w.result(1, damaged), w.result(1, intact)
	w.handle(w.result(1, damaged))
	w.handle(wasIntact)
	w.checkIncident("metadata-damaged", open, "opened", "older-check")
	w.handle(w.result(1, intact))
	w.checkIncident("metadata-damaged", shut, "opened", "older-check", "closed")
	if got := w.handle(was); got != nil {
		t.Errorf("an older check opens %v", got)
	}
	for name, set := range map[string]with{
		"overtaken": func(r *pb.FixityResult) { r.Overtaken = true },
		"not final": func(r *pb.FixityResult) { r.Final = false },
	} {
		if got := w.handle(w.result(1, damaged, set)); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	// A finding about properties does not hide a fault of the bytes from an older check.
	corrupt := w.result(2)
	w.handle(w.result(15, damaged, func(r *pb.FixityResult) { r.Verdict = pb.Verdict_VERDICT_UNVERIFIED }))
	w.handle(corrupt)
	w.checkIncident("content-corrupt", open, "opened")
}

// A result that is handled again, by this process or the next one, publishes the same decision again.
func TestMetadataReplay(t *testing.T) {
	w := newHarness(t)
	w.modes[at.Store] = Off
	for _, step := range []struct {
		found with
		state pb.IncidentState
		steps []string
	}{
		{damaged, open, []string{"opened"}},
		{damaged, open, []string{"opened", "seen-again"}},
		{intact, shut, []string{"opened", "seen-again", "closed"}},
	} {
		r := w.result(1, step.found)
		lost := w.handleWithoutPublishing(r) // publishing failed
		if len(lost) != 1 {
			t.Fatalf("got %v", lost)
		}
		w.handle(r)
		w.checkIncident("metadata-damaged", step.state, step.steps...)
		w.restart()
		if again := w.handle(r); len(again) != 1 || !proto.Equal(again[0].Body.(*pb.Incident), lost[0].Body.(*pb.Incident)) {
			t.Errorf("again: %v, want %v", again, lost)
		}
		w.checkIncident("metadata-damaged", step.state, step.steps...)
	}
}
