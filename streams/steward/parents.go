package steward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

const (
	// updateInterval is the shortest time between two updates of the detail of a parent.
	updateInterval = time.Minute
	// approvalsAtOnce is the number of approvals that were published and have had no effect yet.
	approvalsAtOnce = 1000
	// sendAgain is the time after which approvals that have had no effect are published again: repairs were off, here or
	// by the settings of another process, when they were handled.
	sendAgain = 10 * time.Minute
)

// Assigned must be called after partitions were assigned: their parents may have to be updated.
func (s *Steward) Assigned() { s.table.changed.Store(true) }

// ParentsDue reports whether UpdateParents has work to do.
func (s *Steward) ParentsDue() bool {
	return s.table.changed.Load() || s.again.Load() || s.reports.due() || s.sendsAgain()
}

func (s *Steward) sendsAgain() bool { return time.Since(time.Unix(0, s.since.Load())) >= sendAgain }

// UpdateParents opens, updates and closes the parents of incidents, and publishes for each child of approved ones an
// approval of its own, which the steward of the child handles. Only the process that owns the key of a parent does it.
// It also reports incidents that were opened and have no parent. All else depends on the topic incidents alone, and
// approvals have ids of their own, so that UpdateParents can be called again after a failure, or by another process.
func (s *Steward) UpdateParents(ctx context.Context, owns func(key string) bool) error {
	if s.table.changed.Swap(false) {
		s.changed = time.Now()
	}
	if s.sendsAgain() {
		clear(s.sent)
		clear(s.sentSpaces)
		s.since.Store(time.Now().UnixNano())
	}
	reported := s.report(ctx, owns)
	done, err := s.updateParents(ctx, owns)
	err = errors.Join(reported, err)
	s.again.Store(!done || err != nil)
	if err != nil {
		return fmt.Errorf("steward: update parents of incidents: %w", err)
	}
	return nil
}

func (s *Steward) updateParents(ctx context.Context, owns func(key string) bool) (done bool, err error) {
	done = true
	var approvals []schemas.Message
	var opened []parent
	sent, sentSpaces := s.underWay(owns), map[incident.Subject]string{}
	for _, ofSpaces := range [...]bool{true, false} { // the others may be parents of these
		for _, p := range s.parents() {
			if (p.about.Space != "") != ofSpaces || !s.isParent(p) || !owns(parentKey(p.about)) {
				continue
			}
			if s.board.IsOpen(p.about) {
				opened = append(opened, p)
			}
			if err := s.openParent(ctx, p); err != nil {
				return false, err
			}
			more, rest := s.childApprovals(p.about, sent)
			approvals = append(approvals, more...)
			approvals = append(approvals, s.spaceApprovals(p, sentSpaces)...)
			done = done && !rest
		}
	}
	if err := s.closeParents(ctx, owns); err != nil {
		return false, err
	}
	if len(approvals) > 0 {
		if err := s.publisher.Publish(ctx, approvals...); err != nil {
			return false, err
		}
		s.log.Info("approve the repairs of missing copies", "count", len(approvals))
	}
	s.sent, s.sentSpaces = sent, sentSpaces
	told, err := s.updateDetails(ctx, opened)
	return done && told, err
}

// isParent reports whether the incident about p is open or should be: incidents of copies name it, or it has several
// others as children.
func (s *Steward) isParent(p parent) bool {
	return p.named > 0 || len(p.spaces) > 1 || s.board.IsOpen(p.about)
}

// underWay returns those of s.sent that may still have an effect.
func (s *Steward) underWay(owns func(key string) bool) map[string]string {
	sent := map[string]string{}
	for key, id := range s.sent {
		i := s.table.get(key)
		if closed(i) || i.GetState() != pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL || hasRef(i, id) {
			continue
		}
		about := heldOf(schemas.CopyOf(i).WithoutItem())
		step := s.childrenApproval(about)
		if step != nil && owns(parentKey(about)) && childApproval(i, about, step).GetId() == id {
			sent[key] = id
		}
	}
	return sent
}

// childApprovals returns approvals of the children of an approved parent, and adds them to sent. rest reports that
// there are more.
func (s *Steward) childApprovals(
	about incident.Subject, sent map[string]string,
) (approvals []schemas.Message, rest bool) {
	step := s.childrenApproval(about)
	if step == nil {
		return nil, false
	}
	s.table.eachAwaiting(about, func(key string, i *pb.Incident) bool {
		if sent[key] != "" {
			return true
		}
		a := childApproval(i, about, step)
		switch {
		case hasRef(i, a.GetId()):
		case len(sent) < approvalsAtOnce:
			sent[key] = a.GetId()
			approvals = append(approvals, schemas.Message{Topic: schemas.Admin, Body: a})
		default:
			rest = true
		}
		return !rest
	})
	return approvals, rest
}

// openParent opens a parent that is not open, and has the incidents of spaces join it.
func (s *Steward) openParent(ctx context.Context, p parent) error {
	switch {
	case s.board.IsOpen(p.about):
	case !s.board.Accepted(p.about), // a person's close is for those until then
		s.joined(p).After(s.board.ClosedAt(p.about)):
		if err := s.board.Open(ctx, p.about, s.detail(p)); err != nil {
			return err
		}
		s.updated[p.about.Key()] = time.Now()
	default:
		return nil
	}
	return s.joinSpaces(ctx, p)
}

// updateDetails updates the details of open parents, those that have waited longest first. It comes last: the details
// of many may take longer than a call has. It returns false if some were updated too recently, and before the last
// change.
func (s *Steward) updateDetails(ctx context.Context, parents []parent) (done bool, err error) {
	slices.SortStableFunc(parents, func(a, b parent) int { return s.updated[a.key].Compare(s.updated[b.key]) })
	for _, p := range parents {
		now := time.Now()
		switch last := s.updated[p.key]; {
		case !last.Before(s.changed): // those of all further ones, too
			return true, nil
		case now.Sub(last) < updateInterval:
			return false, nil
		}
		if err := s.board.Update(ctx, p.about, s.detail(p)); err != nil {
			return false, err
		}
		if s.board.IsOpen(p.about) { // closeParents may have closed it
			s.updated[p.key] = now
		}
	}
	return true, nil
}

// closeParents closes the open parents that have no open child, and those whose approval is older than a round, or does
// not cover a child: what is lost later is another loss. Such a parent opens again if it has children.
func (s *Steward) closeParents(ctx context.Context, owns func(key string) bool) error {
	parents := map[incident.Subject]parent{}
	for _, p := range s.parents() {
		parents[p.about] = p
	}
	for _, kind := range [...]string{incident.RepairsHeld, incident.Grouped} {
		for _, about := range s.board.OpenOf(kind) {
			why := "no incident of it is open any more"
			switch p, ok := parents[about]; {
			case s.isExpired(about):
				why = "the approval is older than the period of the checks"
			case s.lostAgain(p):
				why = "the approval has ended for a space that has lost copies again"
			case ok:
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

// approval returns the step with which an operator approved held repairs; nil if there is none, or it has ended. It may
// end before closeParents closes the incident.
func (s *Steward) approval(about incident.Subject) *pb.IncidentStep {
	if s.isExpired(about) {
		return nil
	}
	return s.board.Approval(about)
}

// childrenApproval is approval for copies; nil while repairs are off in the store, since approvals of copies have no
// effect then.
func (s *Steward) childrenApproval(about incident.Subject) *pb.IncidentStep {
	if s.stores.RepairMode(about.Account, about.Store, time.Now()) == Off {
		return nil
	}
	return s.approval(about)
}

// parentKey returns the key of the partition of a parent, which is that of the decisions about it.
func parentKey(about incident.Subject) string {
	return schemas.ItemKey(about.Incident().GetAccount(), about.Space, "")
}

// childApproval returns the approval of the repair of i that follows from the approval of its parent. The operator
// approved what is missing: if a later check has another finding, the approval has another id, and counts again.
func childApproval(i *pb.Incident, about incident.Subject, parent *pb.IncidentStep) *pb.AdminAction {
	seen := seen(i, nil) // of a missing copy no event counts, and older stewards know none
	return &pb.AdminAction{
		Id:   childID(parent.GetRef(), i.GetId(), seen),
		Time: later(parent.GetTime(), i.GetUpdated()),
		Who:  parent.GetBy(), Action: ActionApprove, Target: schemas.IncidentKey(i),
		Account: i.GetAccount(), Store: i.GetStore(), Space: i.GetSpace(), Item: i.GetItem(),
		Reason: reasonOf(about, parent), From: approver,
		Incident: i.GetId(), Seen: seen,
	}
}

// reasonOf returns the reason of an approval that follows from step, that of a parent.
func reasonOf(parent incident.Subject, step *pb.IncidentStep) string {
	return strings.TrimSuffix("approved with "+parent.Key()+": "+step.GetDetail(), ": ")
}

// approver is AdminAction.From of the approvals that childApproval and spaceApproval make.
const approver = "steward"

// isWithdrawn reports whether a is an approval that follows from that of a parent, which was closed since. child
// identifies what a approves, as in its id. The steps of the parent say so whatever the clocks say; its times, if
// another process has published the close without having read the approval.
func (s *Steward) isWithdrawn(parent incident.Subject, a *pb.AdminAction, child ...string) bool {
	isOf := func(e incident.EndedApproval) bool { return childID(e.Ref, child...) == a.GetId() }
	return a.GetFrom() == approver &&
		(s.board.ClosedAt(parent).After(a.GetTime().AsTime()) || slices.ContainsFunc(s.board.Ended(parent, false), isOf))
}

// childID returns the id of the approval of a child that follows from the approval ref of its parent.
func childID(ref string, child ...string) string {
	return schemas.ID(append([]string{"approve-child", ref}, child...)...)
}

// seenOf returns what Seen does of held repairs that were opened at a time; nil: what it does in older programs.
func seenOf(opened *timestamppb.Timestamp) string { return Seen(&pb.Incident{Opened: opened}) }

// approveHeld records an approval of the repairs of a space, or of several spaces of a store, or why it has no effect.
// UpdateParents hands it on to the children.
func (s *Steward) approveHeld(ctx context.Context, a *pb.AdminAction) error {
	about := heldOf(schemas.CopyOf(a).WithoutItem())
	if about.Key() != a.GetTarget() || !s.board.IsOpen(about) {
		s.log.Warn("ignore approval of held repairs: no such incident is open",
			"target", a.GetTarget(), "who", a.GetWho(), "action", a.GetId())
		return nil
	}
	d := incident.Decision{By: a.GetWho(), Ref: a.GetId(), Reason: a.GetReason()}
	opened := s.board.OpenedAt(about)
	if a.GetTime().AsTime().Before(opened) { // an approval of an earlier loss
		return s.board.Outdated(ctx, about, d, fmt.Sprintf("%s: it is of %s, and the incident was opened later, at %s;"+
			" compare the clocks of operator and steward, and decide again", a.GetAction(),
			a.GetTime().AsTime().Format(time.RFC3339), opened.Format(time.RFC3339)))
	}
	if seen := a.GetSeen(); seen != "" && seen != seenOf(timestamppb.New(opened)) && seen != seenOf(nil) {
		return s.board.Outdated(ctx, about, d, a.GetAction()+": the incident was opened again since; decide again")
	}
	if s.isWithdrawn(incident.ParentOf(about), a, about.Incident().GetId(), opened.Format(time.RFC3339Nano)) {
		return s.board.Outdated(ctx, about, d, a.GetAction()+": the approval of all spaces has ended")
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
