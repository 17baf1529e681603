package steward

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
)

// The actions of an operator that a Steward handles. Their target is the key of an incident.
const (
	ActionApprove = "approve-repair"
	ActionClose   = "close-incident"
)

// The results of repairs that write no bytes: of a copy that was present under its tombstone, and of properties.
const (
	resultDeleted       = "deleted"
	resultPropertiesSet = "properties-set"
)

// decideList hands the decision about a list to the deleter of the destination, which knows whether it counts.
func (s *Steward) decideList(a *pb.AdminAction) []schemas.Message {
	l, ok := held.ListOf(a)
	if _, err := schemas.ParseSeen(a.GetAfter()); !ok || err != nil {
		s.log.Warn("ignore decision about a list: it does not say which one, or what was seen of it",
			"target", a.GetTarget(), "who", a.GetWho(), "action", a.GetId(), "err", err)
		return nil
	}
	c := &pb.DeletionCommand{
		Id: schemas.ID(a.GetAction(), a.GetId()), Account: l.Space.Account, Space: l.Space.Space,
		DestinationStore: l.Space.Store, Cause: a.GetId(), Command: a.GetId(), Approved: a.GetWho(), Time: a.GetTime(),
	}
	if c.ApproveList = l.Name(); a.GetAction() == held.ActionRefuse {
		c.ApproveList, c.RefuseList, c.Why = "", l.Name(), a.GetReason()
	}
	return []schemas.Message{{Topic: schemas.Deletions, Body: c}}
}

// action carries out what an operator decided about an incident. It has an effect only if the incident and its copy
// have not changed since.
func (s *Steward) action(ctx context.Context, a *pb.AdminAction) ([]schemas.Message, error) {
	switch a.GetAction() {
	case held.ActionApprove, held.ActionRefuse:
		return s.decideList(a), nil
	case ActionApprove, ActionClose, ActionAccept, ActionAcceptForced:
	default:
		return nil, nil
	}
	if parts := strings.Split(a.GetTarget(), "/"); len(parts) > 4 && parts[3] == "" {
		return nil, nil // the command closes incidents without an item
	}
	i := s.table.get(a.GetTarget())
	if i != nil {
		defer s.lock(schemas.CopyOf(i))()
		i = s.table.get(a.GetTarget())
	}
	log := s.log.With("target", a.GetTarget(), "who", a.GetWho(), "action", a.GetId())
	c := cause{ref: a.GetId(), by: a.GetWho(), at: a.GetTime().AsTime()}
	switch {
	case hasRef(i, a.GetId()):
		return s.save(i, a.GetId()), nil
	case closed(i):
		log.Warn("ignore action: no such incident is open", "action", a.GetAction())
		return nil, nil
	case a.GetAccount() != "" && a.GetAccount() != i.GetAccount():
		log.Warn("ignore action: the incident belongs to another account", "action", a.GetAction())
		return nil, nil
	}
	if a.GetIncident() != i.GetId() || a.GetSeen() != Seen(i) {
		const why = "the incident has changed since the decision; decide again"
		log.Warn("ignore action: "+why, "action", a.GetAction())
		i = clone(i)
		s.step(i, stepOutdated, c, a.GetAction()+": "+why)
		return s.save(i, c.ref), nil
	}
	return s.decision(ctx, clone(i), a, c)
}

// decision carries out a decision about i, a clone, that still applies.
func (s *Steward) decision(
	ctx context.Context, i *pb.Incident, a *pb.AdminAction, c cause,
) ([]schemas.Message, error) {
	log := s.log.With("target", a.GetTarget(), "who", a.GetWho(), "action", a.GetId())
	switch {
	case a.GetAction() == ActionClose:
		i.State, i.Closed = pb.IncidentState_INCIDENT_STATE_CLOSED, a.GetTime()
		s.step(i, stepClosed, c, a.GetReason())
		return s.save(i, c.ref), nil
	case s.inProgress(i, c):
		log.Warn("ignore approval or acceptance: a repair or a correction is in progress")
		return nil, nil
	case isAccept(a, i):
		return s.orderAccept(i, a, c), nil
	case !Repairable(i.GetKind()):
		log.Warn("ignore approval of a repair: incidents of this kind cannot be repaired", "kind", i.GetKind())
		return nil, nil
	case s.stores.RepairMode(i.GetAccount(), i.GetStore(), i.GetOpened().AsTime()) == Off:
		log.Warn("ignore approval of a repair: repair is off for the store", "store", i.GetStore())
		return nil, nil
	}
	s.step(i, stepApproved, c, a.GetReason())
	if err := s.orderRepair(ctx, i, c); err != nil {
		return nil, err
	}
	return s.save(i, c.ref), nil
}

// duplication handles the result of a duplication command: the result of a repair, or that of an executor that found a
// copy missing, resurrected or different from its source.
func (s *Steward) duplication(r *pb.DuplicationResult) []schemas.Message {
	if r.GetWouldBe() != "" { // nothing happened
		return nil
	}
	if r.GetIncident() != "" {
		return s.repaired(r)
	}
	source, cp := schemas.CopiesOf(r)
	switch r.GetResult() {
	case "source-missing", "all-copies-missing", kindBack:
		return s.observed(source, r.GetResult(), r)
	case "was-lost", "gone-unexplained":
		out := s.observed(cp, kindMissing, r)
		if out == nil {
			return nil
		}
		// A copy that was lost has been written again, and a check of it closes the incident. A copy that is gone is
		// checked until it is certain that it is missing; that check orders a repair.
		return append(out, s.checkRequest(&pb.FixityTask{
			Id:      schemas.ID(r.GetResult(), r.GetId()),
			Account: cp.Account, Store: cp.Store, Space: cp.Space, Item: cp.Item,
			Reason: pb.FixityReason_FIXITY_REASON_SUSPECT, Priority: pb.Priority_PRIORITY_HIGH,
			Cause: r.GetId(), Time: r.GetFinished(), Size: r.GetBytes(),
		}))
	}
	return nil
}

// observed opens or updates the incident of a copy in which an executor found a fault.
func (s *Steward) observed(cp schemas.Copy, kind string, r *pb.DuplicationResult) []schemas.Message {
	defer s.lock(cp)()
	c := cause{ref: r.GetId(), at: r.GetFinished().AsTime()}
	i := s.table.find(cp, kind)
	switch {
	case hasRef(i, c.ref):
		return s.save(i, c.ref)
	case r.GetStarted().AsTime().Before(s.table.newest(cp)):
		if i == nil {
			return nil
		}
		i = clone(i)
		s.step(i, stepOlder, c, r.GetResult())
		return s.save(i, c.ref)
	case closed(i):
		i = s.open(cp, kind, i, c)
		i.Expected = r.GetDigests()
		s.step(i, stepOpened, c, r.GetResult())
		s.logOpened(i, c)
	default:
		i = clone(i)
		s.step(i, stepSeenAgain, c, r.GetResult())
	}
	i.Checked, i.Size = r.GetStarted(), max(i.GetSize(), r.GetBytes())
	return s.save(i, c.ref)
}

// repaired handles the result of a repair. The incident stays open until a check has passed.
func (s *Steward) repaired(r *pb.DuplicationResult) []schemas.Message {
	_, cp := schemas.CopiesOf(r)
	defer s.lock(cp)()
	i := s.table.get(r.GetIncident())
	if hasRef(i, r.GetId()) {
		return s.save(i, r.GetId())
	}
	number := orderNumber(i, r.GetCommand())
	listed := held.KindOf(r.GetCause()) == held.Repairs // ordered from an approved list
	if i == nil || number == 0 && !listed && !orderedByAnother(i, r.GetCommand()) {
		s.log.Warn("ignore result of a repair: the incident did not order it",
			"target", r.GetIncident(), "result", r.GetId())
		return nil
	}
	i = clone(i)
	action := stepFailed
	switch r.GetResult() {
	case stepRepaired, resultDeleted, resultPropertiesSet:
		action = stepRepaired
	case stepMoot, "kept":
		action = stepMoot
	case "awaiting-approval":
		action = stepHeld
	}
	switch newest := number == i.GetRepairs() && i.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING; {
	case newest && action == stepHeld:
		i.State = pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL
	case newest && action != stepRepaired, listed && i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL:
		i.State = pb.IncidentState_INCIDENT_STATE_OPEN // the next check orders it again
	}
	detail := r.GetDetail()
	if detail == "" {
		detail = r.GetError()
	}
	s.step(i, action, cause{ref: r.GetId(), at: r.GetFinished().AsTime()}, detail)
	return s.save(i, r.GetId())
}

// isHeld reports whether the repair of an incident waits on a list at a time. After RepairTimeout it is ordered again:
// the copier holds it again, unless there was a decision that the incident has not been told of.
func (s *Steward) isHeld(i *pb.Incident, at time.Time) bool {
	for _, step := range slices.Backward(i.GetSteps()) {
		if step.GetAction() == stepHeld {
			return i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL &&
				at.Sub(step.GetTime().AsTime()) < s.config.RepairTimeout
		}
	}
	return false
}

// heldRepairs returns how many repairs of an incident were held.
func heldRepairs(i *pb.Incident) (n int) {
	for _, step := range i.GetSteps() {
		if step.GetAction() == stepHeld {
			n++
		}
	}
	return n
}
