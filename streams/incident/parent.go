package incident

import (
	"cmp"
	"context"
	"slices"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// ParentOf returns the subject of the incident that stands for s and others of its kind in other spaces of the store;
// the zero value if there is none for the kind.
func ParentOf(s Subject) Subject {
	if s.Space == "" {
		return Subject{}
	}
	switch s.Kind {
	case SpaceMissing, ListingIncomplete:
		return Subject{Account: s.Account, Store: s.Store, Kind: Grouped, Name: s.Kind}
	case RepairsHeld, Grouped: // the approval of the former is that of all
		return Subject{Account: s.Account, Store: s.Store, Kind: s.Kind, Name: s.Name}
	}
	return Subject{}
}

// Children returns the open incidents of spaces by their parents, ordered by key.
func (b *Board) Children() map[Subject][]Subject {
	b.mu.RLock()
	defer b.mu.RUnlock()
	children := map[Subject][]Subject{}
	for _, i := range b.known {
		s := subjectOf(i)
		if parent := ParentOf(s); parent.Kind != "" && !closed(i) {
			children[parent] = append(children[parent], s)
		}
	}
	for _, all := range children {
		slices.SortFunc(all, func(a, b Subject) int { return cmp.Compare(a.Key(), b.Key()) })
	}
	return children
}

// Join makes the open incident about s a child of the one about parent. It does nothing if it is one.
func (b *Board) Join(ctx context.Context, s, parent Subject) error {
	id := parent.Incident().GetId()
	return b.change(ctx, s.Key(), func(i *pb.Incident, now time.Time) *pb.Incident {
		if closed(i) || i.GetParent() == id {
			return nil
		}
		i = withStep(i, now, &pb.IncidentStep{Action: stepGrouped, Detail: parent.Key()})
		i.Parent = id
		return i
	})
}
