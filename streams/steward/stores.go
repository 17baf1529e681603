package steward

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// A parent has children of two kinds: incidents of copies, and incidents without an item, of several spaces of a store.
type parent struct {
	childCount
	spaces []incident.Subject // open ones
}

// parents returns the parents of all open incidents, ordered by key.
func (s *Steward) parents() []parent {
	spaces := s.board.Children()
	var all []parent
	for _, n := range s.table.childCounts() {
		all = append(all, parent{n, spaces[n.about]})
		delete(spaces, n.about)
	}
	for about, children := range spaces {
		all = append(all, parent{childCount{about: about, key: about.Key()}, children})
	}
	slices.SortFunc(all, func(a, b parent) int { return cmp.Compare(a.key, b.key) })
	return all
}

// joined returns when the last child came to a parent.
func (s *Steward) joined(p parent) time.Time {
	last := s.table.joined(p.about)
	for _, c := range p.spaces {
		if at := s.board.OpenedAt(c); at.After(last) {
			last = at
		}
	}
	return last
}

// detail returns the number of children, the cause, and what they have in common.
func (s *Steward) detail(p parent) string {
	var parts []string
	switch scope := "in one store"; {
	case p.about.Kind == incident.RepairsHeld && p.about.Space != "":
		parts = append(parts, fmt.Sprintf("%d copies of the space are missing, more than sweep.max_missing or all of it;"+
			" %d repairs wait for approval", p.children, p.awaiting)+s.table.common(p.about).String())
	case p.named > 0:
		if p.about.Space != "" {
			scope = "in one space"
		} else if p.about.Store == "" {
			scope = "that one worker found"
		}
		parts = append(parts, fmt.Sprintf("%d open incidents %s: more than %d were opened within an hour",
			p.children, scope, groupAfter)+s.table.common(p.about).String())
	}
	if len(p.spaces) > 0 {
		parts = append(parts, s.detailOfSpaces(p))
	}
	return strings.Join(parts, "; ")
}

// detailOfSpaces returns the number of spaces and what they are.
func (s *Steward) detailOfSpaces(p parent) string {
	switch {
	case p.about.Kind == incident.RepairsHeld:
		waiting := 0
		for _, c := range p.spaces {
			if s.board.Approval(c) == nil {
				waiting++
			}
		}
		return fmt.Sprintf("too many copies of %d spaces of the store are missing;"+
			" the repairs of %d spaces wait for approval", len(p.spaces), waiting)
	case p.about.Name == incident.SpaceMissing:
		return fmt.Sprintf("%d spaces of the store are missing", len(p.spaces))
	case p.about.Name == incident.ListingIncomplete:
		return fmt.Sprintf("the listings of %d spaces of the store lack too many copies", len(p.spaces))
	}
	return fmt.Sprintf("%d spaces of the store have more than %d", len(p.spaces), groupAfter)
}

// joinSpaces makes the incidents of spaces children of an open parent. A group of missing copies is rather a child of
// their held repairs.
func (s *Steward) joinSpaces(ctx context.Context, p parent) error {
	if !s.board.IsOpen(p.about) {
		return nil
	}
	if held := s.heldParent(p.about); held.Kind != "" {
		if err := s.board.Join(ctx, p.about, held); err != nil {
			return err
		}
	}
	for _, c := range p.spaces {
		if s.heldParent(c).Kind != "" {
			continue
		}
		if err := s.board.Join(ctx, c, p.about); err != nil {
			return err
		}
	}
	return nil
}

// heldParent returns the subject of the open incident about held repairs of the copies of a group; the zero value if
// there is none.
func (s *Steward) heldParent(group incident.Subject) incident.Subject {
	held := incident.Subject{Account: group.Account, Store: group.Store, Space: group.Space, Kind: incident.RepairsHeld}
	if group.Kind == incident.Grouped && group.Name == kindMissing && s.board.IsOpen(held) {
		return held
	}
	return incident.Subject{}
}

// spaceApprovals returns approvals of the held repairs of the spaces of an approved parent, and adds their ids to sent.
func (s *Steward) spaceApprovals(p parent, sent map[incident.Subject]string) (approvals []schemas.Message) {
	step := s.approval(p.about)
	for _, space := range p.spaces {
		opened := s.board.OpenedAt(space)
		if step == nil || opened.IsZero() || s.board.Approval(space) != nil {
			continue
		}
		a := spaceApproval(space, opened, p.about, step)
		if s.hasEnded(space, step) {
			continue
		}
		if sent[space] = a.GetId(); s.sentSpaces[space] != a.GetId() {
			approvals = append(approvals, schemas.Message{Topic: schemas.Admin, Body: a})
		}
	}
	return approvals
}

// hasEnded reports whether the approval of a space that follows from step, that of its parent, has ended: an operator
// has closed the incident of the space since, or step is older than a round over the space.
func (s *Steward) hasEnded(space incident.Subject, step *pb.IncidentStep) bool {
	c := schemas.Copy{Account: space.Account, Store: space.Store, Space: space.Space}
	return time.Since(step.GetTime().AsTime()) > s.config.Round(c) ||
		slices.ContainsFunc(s.board.Ended(space, true), func(e incident.EndedApproval) bool {
			return e.Closed.After(step.GetTime().AsTime()) || // the approval may have been under way
				e.Ref == childID(step.GetRef(), space.Incident().GetId(), e.Opened.Format(time.RFC3339Nano))
		})
}

// lostAgain reports whether a parent was approved, and a space waits whose approval that follows from it has ended.
func (s *Steward) lostAgain(p parent) bool {
	step := s.approval(p.about)
	return step != nil && slices.ContainsFunc(p.spaces, func(space incident.Subject) bool {
		return s.board.Approval(space) == nil && s.hasEnded(space, step)
	})
}

// spaceApproval returns the approval of the held repairs of a space that follows from that of their parent.
func spaceApproval(
	space incident.Subject, opened time.Time, about incident.Subject, step *pb.IncidentStep,
) *pb.AdminAction {
	return &pb.AdminAction{
		Id:   childID(step.GetRef(), space.Incident().GetId(), opened.Format(time.RFC3339Nano)),
		Time: later(step.GetTime(), timestamppb.New(opened)),
		Who:  step.GetBy(), Action: ActionApprove, Target: space.Key(),
		Account: space.Account, Store: space.Store, Space: space.Space,
		Reason: reasonOf(about, step), From: approver, Incident: space.Incident().GetId(),
		Seen: seenOf(timestamppb.New(opened)),
	}
}
