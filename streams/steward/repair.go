package steward

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The actions of a person that the steward carries out. Their target is the key of an incident.
const (
	ActionApprove = "approve-repair"
	ActionClose   = "close-incident"
)

// action takes what a person did: the approval of a repair, or the end of an incident. It counts only if the incident
// and its copy are still what the person saw.
func (s *Steward) action(ctx context.Context, a *pb.AdminAction) ([]schemas.Message, error) {
	if a.GetAction() != ActionApprove && a.GetAction() != ActionClose {
		return nil, nil
	}
	i := s.table.get(a.GetTarget())
	if i != nil {
		defer s.lock(schemas.CopyOf(i))()
		i = s.table.get(a.GetTarget())
	}
	log := s.log.With("target", a.GetTarget(), "who", a.GetWho(), "action", a.GetId())
	c := cause{ref: a.GetId(), by: a.GetWho(), at: a.GetTime().AsTime()}
	switch {
	case knows(i, a.GetId()):
		return s.tell(i, a.GetId()), nil
	case closed(i):
		log.Warn("ignore a person's action: there is no such open incident", "do", a.GetAction())
		return nil, nil
	case a.GetAccount() != "" && a.GetAccount() != i.GetAccount():
		log.Warn("ignore a person's action: the incident is of another account", "do", a.GetAction())
		return nil, nil
	case !meant(i, a):
		log.Warn("ignore a person's action: it is not about what is known now", "do", a.GetAction())
		i = edit(i)
		s.step(i, stepOutdated, c, a.GetAction()+": this is not what was decided about; look again")
		return s.tell(i, c.ref), nil
	case a.GetAction() == ActionClose:
		i = edit(i)
		i.State, i.Closed = pb.IncidentState_INCIDENT_STATE_CLOSED, a.GetTime()
		s.step(i, stepClosed, c, a.GetReason())
		return s.tell(i, c.ref), nil
	case s.onItsWay(i, c):
		log.Warn("ignore approval of a repair: one is on its way")
		return nil, nil
	case !Repairable(i.GetKind()):
		log.Warn("ignore approval of a repair: incidents of this kind have none", "kind", i.GetKind())
		return nil, nil
	case s.stores.RepairMode(i.GetAccount(), i.GetStore()) == Off:
		log.Warn("ignore approval of a repair: repair is off for the store", "store", i.GetStore())
		return nil, nil
	}
	i = edit(i)
	s.step(i, stepApproved, c, a.GetReason())
	if err := s.order(ctx, i, c); err != nil {
		return nil, err
	}
	return s.tell(i, c.ref), nil
}

// duplication takes a result of duplication: the end of a repair, or a copy of which an executor found that it is
// missing, is there again though it was deleted, or is not what its source is.
func (s *Steward) duplication(r *pb.DuplicationResult) []schemas.Message {
	if r.GetIncident() != "" {
		return s.repaired(r)
	}
	place := schemas.Copy{Account: r.GetAccount(), Space: r.GetSpace(), Item: r.GetItem()}
	switch r.GetResult() {
	case "source-missing", "all-copies-missing", kindBack:
		place.Store = r.GetSourceStore()
		return s.noticed(place, r.GetResult(), r)
	case kindDiffers:
		place.Store = r.GetDestinationStore()
		return s.noticed(place, kindDiffers, r)
	case "in-sync", "properties-set", "properties-unknown", "gone", "not-in-policy":
		place.Store = r.GetDestinationStore()
		return s.alike(place, r, r.GetStarted())
	case "copied", "deleted": // what the look of another executor saw is no more
		place.Store = r.GetDestinationStore()
		return s.alike(place, r, r.GetFinished())
	case "was-lost", "gone-unexplained":
		place.Store = r.GetDestinationStore()
		out := s.noticed(place, kindMissing, r)
		if out == nil {
			return nil
		}
		// What was lost is there again by now, and the check that says so closes the incident. What is gone is
		// checked until it is settled that it is missing: that orders a repair from a good copy, if there is one.
		return append(out, s.asked(&pb.FixityTask{
			Id:      schemas.ID(r.GetResult(), r.GetId()),
			Account: place.Account, Store: place.Store, Space: place.Space, Item: place.Item,
			Reason: pb.FixityReason_FIXITY_REASON_SUSPECT, Priority: pb.Priority_PRIORITY_HIGH,
			Cause: r.GetId(), Time: r.GetFinished(), Size: r.GetBytes(),
		}))
	}
	return nil
}

// noticed opens the incident of a copy that an executor came across, or adds to it.
func (s *Steward) noticed(place schemas.Copy, kind string, r *pb.DuplicationResult) []schemas.Message {
	defer s.lock(place)()
	c := cause{ref: r.GetId(), at: r.GetFinished().AsTime()}
	i := s.table.get(schemas.Key(place.Account, place.Store, place.Space, place.Item, kind))
	newest := s.table.newest(place)
	if kind == kindDiffers {
		newest = i.GetChecked().AsTime()
	}
	switch {
	case knows(i, c.ref):
		return s.tell(i, c.ref)
	case r.GetStarted().AsTime().Before(newest):
		if i == nil {
			return nil
		}
		i = edit(i)
		s.step(i, stepOlder, c, r.GetResult())
		return s.tell(i, c.ref)
	case closed(i):
		i = s.open(place, kind, i, c)
		i.Expected = r.GetDigests()
		s.step(i, stepOpened, c, r.GetResult())
		s.log.Warn("incident opened", "copy", place.String(), "kind", kind, "result", c.ref)
	default:
		i = edit(i)
		s.step(i, stepSeenAgain, c, r.GetResult())
	}
	i.Checked, i.Size = r.GetStarted(), max(i.GetSize(), r.GetBytes())
	return s.tell(i, c.ref)
}

// alike closes the incident of a copy that differed from its source, and at a time did not any more, or was not to be like
// it.
func (s *Steward) alike(place schemas.Copy, r *pb.DuplicationResult, at *timestamppb.Timestamp) []schemas.Message {
	if s.table.of(place) == nil { // nearly always
		return nil
	}
	defer s.lock(place)()
	return s.endDiffers(place, r, at)
}

// endDiffers is alike of a copy that is locked.
func (s *Steward) endDiffers(place schemas.Copy, r *pb.DuplicationResult, at *timestamppb.Timestamp) []schemas.Message {
	i := s.table.get(schemas.Key(place.Account, place.Store, place.Space, place.Item, kindDiffers))
	switch {
	case knows(i, r.GetId()):
		return s.tell(i, r.GetId())
	case closed(i), at.AsTime().Before(i.GetChecked().AsTime()):
		return nil
	}
	i = edit(i)
	i.State, i.Checked, i.Closed = pb.IncidentState_INCIDENT_STATE_CLOSED, at, r.GetFinished()
	s.step(i, stepClosed, cause{ref: r.GetId(), at: r.GetFinished().AsTime()}, r.GetResult())
	return s.tell(i, r.GetId())
}

// repaired takes the end of a repair. The incident stays open until a check has passed.
func (s *Steward) repaired(r *pb.DuplicationResult) []schemas.Message {
	place := schemas.Copy{Account: r.GetAccount(), Store: r.GetDestinationStore(), Space: r.GetSpace(), Item: r.GetItem()}
	defer s.lock(place)()
	i := s.table.get(r.GetIncident())
	if knows(i, r.GetId()) {
		return append(s.tell(i, r.GetId()), s.repairedDiffers(place, r)...)
	}
	number := orderNumber(i, r.GetCommand())
	if number == 0 && !orderedByAnother(i, r.GetCommand()) {
		s.log.Warn("result of a repair ignored: the incident did not order it", "target", r.GetIncident(), "result", r.GetId())
		return nil
	}
	i = edit(i)
	action := stepFailed
	if word := r.GetResult(); word == stepRepaired || word == stepMoot {
		action = word
	}
	if action != stepRepaired && number == i.GetRepairs() && i.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING {
		i.State = pb.IncidentState_INCIDENT_STATE_OPEN
	}
	detail := r.GetDetail()
	if detail == "" {
		detail = r.GetError()
	}
	s.step(i, action, cause{ref: r.GetId(), at: r.GetFinished().AsTime()}, detail)
	return append(s.tell(i, r.GetId()), s.repairedDiffers(place, r)...)
}

// repairedDiffers closes the incident of a copy that differed from its source and was repaired: the next copy that finds
// that it still does opens it again.
func (s *Steward) repairedDiffers(place schemas.Copy, r *pb.DuplicationResult) []schemas.Message {
	if r.GetResult() != stepRepaired {
		return nil
	}
	return s.endDiffers(place, r, r.GetFinished())
}
