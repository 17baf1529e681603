package steward

import (
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// orderID returns the id of the nth repair order of an incident.
func orderID(incident string, n int32) string {
	return schemas.ID("repair", incident, strconv.Itoa(int(n)))
}

// orderNumber returns the number of the repair order of i with the id command; 0 if there is none.
func orderNumber(i *pb.Incident, command string) int32 {
	for n := i.GetRepairs(); n > 0; n-- {
		if orderID(i.GetId(), n) == command {
			return n
		}
	}
	return 0
}

// lastOrder returns the index of the step of i that ordered the newest repair; -1 if there is none.
func lastOrder(i *pb.Incident) int {
	n := len(i.GetSteps()) - 1
	for n >= 0 && i.Steps[n].GetAction() != stepOrdered {
		n--
	}
	return n
}

// triedSource reports whether a repair of i from store was ordered.
func triedSource(i *pb.Incident, store string) bool {
	return slices.ContainsFunc(i.GetSteps(), func(s *pb.IncidentStep) bool {
		return s.GetAction() == stepOrdered && s.GetDetail() == store
	})
}

// orderedBy returns the index of the step with which the message ref ordered a repair of i. It is -1 if ref ordered
// none or the repair has finished.
func orderedBy(i *pb.Incident, ref string) int {
	n := lastOrder(i)
	if i.GetState() != pb.IncidentState_INCIDENT_STATE_REPAIRING || n < 0 || i.Steps[n].GetRef() != ref {
		return -1
	}
	return n
}

// order returns the message with the repair order of step n.
func (s *Steward) order(i *pb.Incident, n int) schemas.Message {
	if i.GetKind() == kindBack {
		return schemas.Message{Topic: schemas.Deletions, Body: deleteOrder(i, n)}
	}
	order := repairOrder(i, n)
	topic := schemas.DuplicationHigh
	if s.large(order.GetSize()) {
		topic, order.Priority = schemas.DuplicationLarge, pb.Priority_PRIORITY_LARGE
	}
	return schemas.Message{Topic: topic, Body: order}
}

// repairOrder returns the command of step n: to write the bytes of a good copy, or only to set properties.
func repairOrder(i *pb.Incident, n int) *pb.DuplicationCommand {
	step := i.Steps[n]
	var check string
	for _, before := range i.Steps[:n] {
		if a := before.GetAction(); a == stepOpened || a == stepSeenAgain {
			check = before.GetRef()
		}
	}
	order := &pb.DuplicationCommand{
		Id:      orderID(i.GetId(), i.GetRepairs()),
		Account: i.GetAccount(), Space: i.GetSpace(), Item: i.GetItem(),
		SourceStore: step.GetDetail(), DestinationStore: i.GetStore(),
		Reason: pb.DuplicationReason_DUPLICATION_REASON_REPAIR, Priority: pb.Priority_PRIORITY_HIGH,
		Cause: i.GetId(), Size: i.GetSize(), Digests: i.GetExpected(), Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		Approved: step.GetBy(), Time: step.GetTime(),
		Repair: &pb.RepairOrder{
			Incident: schemas.IncidentKey(i), Digests: i.GetExpected(), Failed: i.GetObject(),
			Check: check, Number: i.GetRepairs(),
		},
	}
	if i.GetKind() == kindMetadata { // a store that cannot set properties gets the bytes of the copy again
		order.SourceStore, order.Digests = i.GetStore(), nil
		order.Provenance = pb.Provenance_PROVENANCE_UNSPECIFIED
		order.Repair.Digests, order.Repair.Properties = i.GetFound(), true
	}
	return order
}

// deleteOrder returns the command of step n to delete a copy that is present under its tombstone.
func deleteOrder(i *pb.Incident, n int) *pb.DeletionCommand {
	step := i.Steps[n]
	order := &pb.DeletionCommand{
		Id:      orderID(i.GetId(), i.GetRepairs()),
		Account: i.GetAccount(), Space: i.GetSpace(), Item: i.GetItem(), DestinationStore: i.GetStore(),
		Reason: pb.DuplicationReason_DUPLICATION_REASON_REPAIR, Cause: i.GetId(), Incident: schemas.IncidentKey(i),
		Deleted: i.GetLastEvent(), Destination: i.GetObject(), Approved: step.GetBy(), Time: step.GetTime(),
	}
	for _, s := range i.GetSteps() {
		if s.GetAction() == stepApproved && s.GetRef() == step.GetRef() {
			order.Why = s.GetDetail()
		}
	}
	return order
}

// followUp returns the check that follows the correction, the end of the delete, or the pass on older records, that the
// message ref reported. It closes the incident if it passes or finds the copy gone. After a pass its reason is not
// FIXITY_REASON_REPAIR, because a failed check with that reason would end a repair that is in progress.
func followUp(i *pb.Incident, ref string) *pb.FixityTask {
	n := slices.IndexFunc(i.GetSteps(), func(s *pb.IncidentStep) bool {
		a := s.GetAction()
		return s.GetRef() == ref &&
			(a == stepCorrected || a == stepOlderRecords || i.GetKind() == kindBack && (a == stepRepaired || a == stepMoot))
	})
	if n < 0 || closed(i) {
		return nil
	}
	reason := pb.FixityReason_FIXITY_REASON_REPAIR
	if i.Steps[n].GetAction() == stepOlderRecords {
		reason = pb.FixityReason_FIXITY_REASON_SUSPECT
	}
	return &pb.FixityTask{
		Id:      schemas.ID("follow-up", i.GetId(), ref),
		Account: i.GetAccount(), Store: i.GetStore(), Space: i.GetSpace(), Item: i.GetItem(),
		Reason: reason, Priority: pb.Priority_PRIORITY_HIGH,
		Cause: ref, Time: i.Steps[n].GetTime(), Size: i.GetSize(),
	}
}

// isOlder reports whether the check r began before another one, the newest, which counts.
func isOlder(r *pb.FixityResult, newest time.Time) bool {
	return r.GetStarted().AsTime().Before(newest)
}

// isOnOlderRecords reports whether the check r, which found nothing wrong, rests on records without the newest event
// that was known when i was found: its task may have carried them for long. A check that i has requested carries none.
func isOnOlderRecords(i *pb.Incident, r *pb.FixityResult) bool {
	return r.GetVerdict() != pb.Verdict_VERDICT_MOOT && !hasRef(i, r.GetCause()) &&
		r.GetLastEvent().AsTime().Before(i.GetLastEvent().AsTime())
}

// inProgress reports whether a repair or an acceptance was ordered, or the records were corrected, less than
// RepairTimeout ago, and that has no end yet.
func (s *Steward) inProgress(i *pb.Incident, c cause) bool {
	if i.GetState() != pb.IncidentState_INCIDENT_STATE_REPAIRING {
		return false
	}
	for _, step := range slices.Backward(i.GetSteps()) {
		switch step.GetAction() {
		case stepOrdered, stepAccept, stepAcceptForced, stepCorrected:
			return c.at.Sub(step.GetTime().AsTime()) < s.config.RepairTimeout
		}
	}
	return false
}
