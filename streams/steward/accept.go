package steward

import (
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The actions with which an operator accepts what a copy holds as its content on record. ActionAcceptForced accepts
// bytes that have changed under the version on record, too.
const (
	ActionAccept       = "accept-copy"
	ActionAcceptForced = "accept-copy-forced"
)

// Acceptable reports whether an operator can accept what a copy with an incident of kind holds.
func Acceptable(kind string) bool {
	switch kind {
	case kindReplaced, kindNoQuorum, kindUpdate, kindBack:
		return true
	}
	return false
}

// isAccept reports whether an action about i accepts what the copy holds. The approval of an update does.
func isAccept(a *pb.AdminAction, i *pb.Incident) bool {
	switch a.GetAction() {
	case ActionAccept, ActionAcceptForced:
		return true
	}
	return a.GetAction() == ActionApprove && i.GetKind() == kindUpdate
}

// orderAccept hands an operator's acceptance to a checker, which reads the copy again. i is a clone.
func (s *Steward) orderAccept(i *pb.Incident, a *pb.AdminAction, c cause) []schemas.Message {
	switch {
	case !Acceptable(i.GetKind()):
		s.log.Warn("ignore acceptance: copies with incidents of this kind cannot be accepted",
			"target", a.GetTarget(), "who", a.GetWho(), "action", a.GetId(), "kind", i.GetKind())
		return nil
	case i.GetObject() == nil || len(i.GetFound()) == 0:
		s.step(i, stepUnseen, c, "no check has read the copy since the incident was opened")
		return s.save(i, c.ref)
	}
	action := stepAccept
	if a.GetAction() == ActionAcceptForced {
		action = stepAcceptForced
	}
	i.State = pb.IncidentState_INCIDENT_STATE_REPAIRING
	s.step(i, action, c, a.GetReason())
	return s.save(i, c.ref)
}

// acceptTask returns the check with the order of an operator to accept the copy, if the message ref caused it and it
// has no end yet.
func acceptTask(i *pb.Incident, ref string) *pb.FixityTask {
	n := slices.IndexFunc(i.GetSteps(), func(s *pb.IncidentStep) bool {
		return s.GetRef() == ref && (s.GetAction() == stepAccept || s.GetAction() == stepAcceptForced)
	})
	if n < 0 || i.GetState() != pb.IncidentState_INCIDENT_STATE_REPAIRING {
		return nil
	}
	step := i.Steps[n]
	return &pb.FixityTask{
		Id:      schemas.ID("accept", i.GetId(), ref),
		Account: i.GetAccount(), Store: i.GetStore(), Space: i.GetSpace(), Item: i.GetItem(),
		Reason: pb.FixityReason_FIXITY_REASON_DEMAND, Priority: pb.Priority_PRIORITY_HIGH,
		Cause: ref, Time: step.GetTime(), Size: i.GetSize(),
		Accept: &pb.AcceptOrder{
			Incident: schemas.IncidentKey(i), IncidentId: i.GetId(), Action: ref,
			Object: i.GetObject(), Digests: i.GetFound(), LastEvent: i.GetLastEvent(),
			Time: step.GetTime(), By: step.GetBy(), Reason: step.GetDetail(), Force: step.GetAction() == stepAcceptForced,
		},
	}
}

// accepted handles the decision of a checker about an acceptance. ended reports that no more follows from the result:
// the content was accepted, and the check of the corrected records closes the incident.
func (s *Steward) accepted(r *pb.FixityResult) (out []schemas.Message, ended bool) {
	order, c := r.GetAccept(), cause{ref: r.GetId(), at: r.GetFinished().AsTime()}
	defer s.lock(schemas.CopyOf(r))()
	i, corrected := s.table.get(order.GetIncident()), isAccepted(r)
	switch {
	case !corrected && s.decides(r, i):
		return nil, false // passed or failed records it
	case hasRef(i, c.ref):
		return s.save(i, c.ref), corrected
	case closed(i), i.GetId() != order.GetIncidentId():
		s.log.Warn("ignore end of an acceptance: its incident is closed", "target", order.GetIncident(), "check", c.ref)
		return nil, corrected
	}
	i = clone(i)
	if corrected || isConclusive(r, i.GetKind()) { // else it hides no fault that another check has found
		i.Checked = later(i.GetChecked(), r.GetStarted())
	}
	if corrected {
		s.step(i, stepCorrected, c, r.GetCorrection())
	} else {
		s.endAccept(i, r, c)
	}
	return s.save(i, c.ref), corrected
}

// isConclusive reports whether the check r has found the fault of an incident of kind, another one, or none.
func isConclusive(r *pb.FixityResult, kind string) bool {
	switch {
	case !r.GetFinal() || r.GetOvertaken():
		return false
	case isGood(r):
		return cures(r, kind)
	}
	switch r.GetVerdict() {
	case pb.Verdict_VERDICT_FAIL, pb.Verdict_VERDICT_MISSING, pb.Verdict_VERDICT_NOT_CAPTURED:
		return true
	}
	return false
}

// decides reports whether the check r, as a check, decides about the state of i: no other result is newer. An
// acceptance ends with its check even if that does not.
func (s *Steward) decides(r *pb.FixityResult, i *pb.Incident) bool {
	switch {
	case !r.GetFinal() || r.GetOvertaken():
		return false
	case isGood(r):
		return cures(r, i.GetKind()) && !isOlder(r, i.GetChecked().AsTime())
	}
	return r.GetFinding() == i.GetKind() && !isOlder(r, s.table.newest(schemas.CopyOf(r)))
}

// endAccept records that an acceptance was not carried out, and why. i is a clone.
func (s *Steward) endAccept(i *pb.Incident, r *pb.FixityResult, c cause) {
	if i.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING {
		i.State = pb.IncidentState_INCIDENT_STATE_OPEN
	}
	s.step(i, r.GetAcceptResult(), c, r.GetAcceptDetail())
}

// endsAccept reports whether r has the decision about an acceptance of i, which was not carried out.
func endsAccept(i *pb.Incident, r *pb.FixityResult) bool {
	return r.GetAccept().GetIncidentId() == i.GetId() && r.GetAcceptResult() != "" && !isAccepted(r)
}

// isAccepted reports whether r is of a check that has accepted the content. Others correct records by their row.
func isAccepted(r *pb.FixityResult) bool {
	return r.GetCorrection() != "" && r.GetAcceptResult() == "accepted"
}

// corrected records that a checker has corrected the records of a copy, and requests a check of them. After MaxRepairs
// corrections that did not help an operator must decide. i is a clone.
func (s *Steward) corrected(i *pb.Incident, change string, c cause) {
	n := 0
	for _, step := range i.GetSteps() {
		if step.GetAction() == stepCorrected {
			n++
		}
	}
	if n < s.config.MaxRepairs {
		i.State = pb.IncidentState_INCIDENT_STATE_REPAIRING
		s.step(i, stepCorrected, c, change)
		return
	}
	i.State = pb.IncidentState_INCIDENT_STATE_OPEN
	if !hasStep(i, stepExhausted) {
		s.step(i, stepExhausted, c, "")
		s.log.Error("stop corrections: the limit is reached and an operator must decide",
			"copy", schemas.CopyOf(i).String(), "kind", i.GetKind(), "incident", i.GetId())
	}
}

// isGood reports whether a check closes incidents of its copy.
func isGood(r *pb.FixityResult) bool {
	return r.GetVerdict() == pb.Verdict_VERDICT_PASS || r.GetVerdict() == pb.Verdict_VERDICT_MOOT
}

// later returns the later one of two times.
func later(a, b *timestamppb.Timestamp) *timestamppb.Timestamp {
	if a.AsTime().After(b.AsTime()) {
		return a
	}
	return b
}
