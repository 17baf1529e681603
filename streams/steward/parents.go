package steward

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

const (
	// updateInterval is the shortest time between two updates of the detail of a parent.
	updateInterval = time.Minute
	// approvalsAtOnce is the number of approvals that were published and have had no effect yet.
	approvalsAtOnce = 1000
)

// A family is a parent and its open children.
type family struct {
	about    incident.Subject
	children int
	joined   time.Time      // when the last child came to the parent
	awaiting []*pb.Incident // children whose repairs wait for an approval; only of held repairs
}

// detail returns the number of children and the cause.
func (f *family) detail() string {
	switch {
	case f.about.Kind == incident.RepairsHeld:
		return fmt.Sprintf("%d copies of the space are missing, more than sweep.max_missing or all of it;"+
			" %d repairs wait for approval", f.children, len(f.awaiting))
	case f.about.Space != "":
		return fmt.Sprintf("%d further open incidents in one space: more than %d were opened within an hour",
			f.children, groupAfter)
	case f.about.Store != "":
		return fmt.Sprintf("%d further open incidents in one store: more than %d were opened within an hour",
			f.children, groupAfter)
	}
	return fmt.Sprintf("%d further open incidents that one worker found: more than %d were opened within an hour",
		f.children, groupAfter)
}

// Assigned must be called after partitions were assigned: their parents may have to be updated.
func (s *Steward) Assigned() { s.table.changed.Store(true) }

// ParentsDue reports whether UpdateParents has work to do.
func (s *Steward) ParentsDue() bool { return s.table.changed.Load() }

// UpdateParents opens, updates and closes the parents of incidents of copies, and publishes for each child of approved
// ones an approval of its own, which the steward of the copy handles. Only the process that owns the key of a parent
// does it. All depends on the topic incidents alone, and approvals have ids of their own, so that UpdateParents can be
// called again after a failure, or by another process.
func (s *Steward) UpdateParents(ctx context.Context, owns func(key string) bool) error {
	s.table.changed.Store(false)
	done, err := s.updateParents(ctx, owns)
	if !done || err != nil {
		s.table.changed.Store(true)
	}
	if err != nil {
		return fmt.Errorf("steward: update parents of incidents: %w", err)
	}
	return nil
}

func (s *Steward) updateParents(ctx context.Context, owns func(key string) bool) (done bool, err error) {
	all := s.families()
	done = true
	var approvals []schemas.Message
	sent := map[string]bool{}
	for _, f := range all {
		if !owns(parentKey(f.about)) {
			continue
		}
		told, err := s.updateParent(ctx, f)
		if err != nil {
			return false, err
		}
		done = done && told
		step := s.board.Approval(f.about)
		if step == nil {
			continue
		}
		for _, i := range f.awaiting {
			a := childApproval(i, f.about, step)
			switch {
			case hasRef(i, a.GetId()):
			case s.sent[a.GetId()]:
				sent[a.GetId()] = true
			case len(approvals)+len(sent) < approvalsAtOnce:
				approvals = append(approvals, schemas.Message{Topic: schemas.Admin, Body: a})
			default:
				done = false
			}
		}
	}
	if err := s.closeParents(ctx, all, owns); err != nil || len(approvals) == 0 {
		s.sent = sent
		return done, err
	}
	if err := s.publisher.Publish(ctx, approvals...); err != nil {
		return false, err
	}
	for _, m := range approvals {
		sent[m.Body.(*pb.AdminAction).GetId()] = true
	}
	s.sent = sent
	s.log.Info("approve the repairs of missing copies", "count", len(approvals))
	return done, nil
}

// updateParent opens the parent of f, or updates its detail. It returns false if the detail was updated too recently.
func (s *Steward) updateParent(ctx context.Context, f *family) (told bool, err error) {
	key, now := f.about.Key(), time.Now()
	switch {
	case s.board.IsOpen(f.about) && now.Sub(s.updated[key]) < updateInterval:
		return false, nil
	case s.board.IsOpen(f.about):
		err = s.board.Update(ctx, f.about, f.detail())
	case !s.board.Accepted(f.about), f.joined.After(s.board.ClosedAt(f.about)): // a person's close is for those until then
		err = s.board.Open(ctx, f.about, f.detail())
	default:
		return true, nil
	}
	s.updated[key] = now
	return err == nil, err
}

// closeParents closes the open parents that have no open child, and those whose approval is older than a round: what is
// lost later is another loss. Such a parent opens again if it has children.
func (s *Steward) closeParents(ctx context.Context, all []*family, owns func(key string) bool) error {
	parents := map[incident.Subject]bool{}
	for _, f := range all {
		parents[f.about] = true
	}
	for _, kind := range [...]string{incident.RepairsHeld, incident.Grouped} {
		for _, about := range s.board.OpenOf(kind) {
			why := "no incident of it is open any more"
			if s.isExpired(about) {
				why = "the approval is older than the period of the checks"
			} else if parents[about] {
				continue
			}
			if !owns(parentKey(about)) {
				continue
			}
			if err := s.board.Close(ctx, about, why); err != nil {
				return err
			}
			delete(s.updated, about.Key())
		}
	}
	return nil
}

// isExpired reports whether the approval of held repairs is older than a round over the space.
func (s *Steward) isExpired(about incident.Subject) bool {
	approval := s.board.Approval(about)
	space := schemas.Copy{Account: about.Account, Store: about.Store, Space: about.Space}
	return about.Kind == incident.RepairsHeld && approval != nil &&
		time.Since(approval.GetTime().AsTime()) > s.config.Round(space)
}

// families returns the parents of the open incidents, ordered by key. The children of held repairs are all missing
// copies of the space, also those that were found before there were too many.
func (s *Steward) families() []*family {
	byID, bySpace := map[string]*family{}, map[schemas.Copy]*family{}
	s.table.each(func(i *pb.Incident) {
		if closed(i) {
			return
		}
		if i.GetKind() == kindMissing {
			space := schemas.CopyOf(i).WithoutItem()
			f := bySpace[space]
			if f == nil {
				f = &family{about: heldOf(space)}
				bySpace[space], byID[f.about.Incident().GetId()] = f, f
			}
			f.children++
			if i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL {
				f.awaiting = append(f.awaiting, i)
			}
			if byID[i.GetParent()] == f {
				f.join(heldAt(i))
				return
			}
		}
		f := byID[i.GetParent()]
		if f == nil {
			if f = groupWith(i); f == nil {
				return
			}
			byID[i.GetParent()] = f
		}
		f.children++
		f.join(i.GetOpened().AsTime())
	})
	var all []*family
	for _, f := range byID {
		if !f.joined.IsZero() || s.board.IsOpen(f.about) {
			slices.SortFunc(f.awaiting, func(a, b *pb.Incident) int { return cmp.Compare(a.GetItem(), b.GetItem()) })
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b *family) int { return cmp.Compare(a.about.Key(), b.about.Key()) })
	return all
}

// join records when a child came to the parent of f.
func (f *family) join(at time.Time) {
	if at.After(f.joined) {
		f.joined = at
	}
}

// groupWith returns the group that i names as its parent; nil if it names none.
func groupWith(i *pb.Incident) *family {
	for _, s := range [...]scope{ofSpace, ofStore, ofWorker} {
		about := groupOf(i, s)
		if i.GetParent() != "" && about.Kind != "" && about.Incident().GetId() == i.GetParent() {
			return &family{about: about}
		}
	}
	return nil
}

// heldAt returns when the repair of i was held last; when i was opened if the step is not carried any more.
func heldAt(i *pb.Incident) time.Time {
	for _, step := range slices.Backward(i.GetSteps()) {
		if step.GetAction() == stepHeld {
			return step.GetTime().AsTime()
		}
	}
	return i.GetOpened().AsTime()
}

// parentKey returns the key of the partition of a parent, which is that of the decisions about it.
func parentKey(about incident.Subject) string {
	return schemas.ItemKey(about.Incident().GetAccount(), about.Space, "")
}

// childApproval returns the approval of the repair of i that follows from the approval of its parent. The operator
// approved what is missing: if a later check has another finding, the approval has another id, and counts again.
func childApproval(i *pb.Incident, about incident.Subject, parent *pb.IncidentStep) *pb.AdminAction {
	seen := Seen(i)
	return &pb.AdminAction{
		Id:   schemas.ID("approve-child", parent.GetRef(), i.GetId(), seen),
		Time: later(parent.GetTime(), i.GetUpdated()),
		Who:  parent.GetBy(), Action: ActionApprove, Target: schemas.IncidentKey(i),
		Account: i.GetAccount(), Store: i.GetStore(), Space: i.GetSpace(), Item: i.GetItem(),
		Reason: strings.TrimSuffix("approved with "+about.Key()+": "+parent.GetDetail(), ": "), From: approver,
		Incident: i.GetId(), Seen: seen,
	}
}

// approver is AdminAction.From of the approvals that childApproval makes.
const approver = "steward"

// isWithdrawn reports whether a is the approval of i that follows from that of a parent, which was closed since.
func (s *Steward) isWithdrawn(i *pb.Incident, a *pb.AdminAction) bool {
	return a.GetFrom() == approver &&
		s.board.ClosedAt(heldOf(schemas.CopyOf(i).WithoutItem())).After(a.GetTime().AsTime())
}

// approveHeld records an operator's approval of the repairs of a space, or why it has no effect. UpdateParents hands it
// on to the children.
func (s *Steward) approveHeld(ctx context.Context, a *pb.AdminAction) error {
	about := heldOf(schemas.CopyOf(a).WithoutItem())
	if about.Key() != a.GetTarget() || !s.board.IsOpen(about) {
		s.log.Warn("ignore approval of held repairs: no such incident is open",
			"target", a.GetTarget(), "who", a.GetWho(), "action", a.GetId())
		return nil
	}
	d := incident.Decision{By: a.GetWho(), Ref: a.GetId(), Reason: a.GetReason()}
	if opened := s.board.OpenedAt(about); a.GetTime().AsTime().Before(opened) { // an approval of an earlier loss
		return s.board.Outdated(ctx, about, d, fmt.Sprintf("%s: it is of %s, and the incident was opened later, at %s;"+
			" compare the clocks of operator and steward, and decide again", a.GetAction(),
			a.GetTime().AsTime().Format(time.RFC3339), opened.Format(time.RFC3339)))
	}
	counts, err := s.board.Decide(ctx, about, d)
	if err != nil {
		return err
	}
	s.table.changed.Store(true)
	if !counts {
		return s.board.Outdated(ctx, about, d, a.GetAction()+": the repairs were approved before")
	}
	return nil
}
