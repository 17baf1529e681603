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
	}
	return Subject{}
}

// A Family is the open incidents of several spaces of a store with one parent.
type Family struct {
	Parent   Subject
	Children []Subject // ordered by key
}

// Families returns the parents of the open incidents of spaces, ordered by key, also those that have one child.
func (b *Board) Families() []Family {
	b.mu.RLock()
	defer b.mu.RUnlock()
	children := map[Subject][]Subject{}
	for _, i := range b.known {
		s := subjectOf(i)
		if parent := ParentOf(s); parent.Kind != "" && !closed(i) {
			children[parent] = append(children[parent], s)
		}
	}
	all := make([]Family, 0, len(children))
	for parent, c := range children {
		slices.SortFunc(c, func(a, b Subject) int { return cmp.Compare(a.Key(), b.Key()) })
		all = append(all, Family{parent, c})
	}
	slices.SortFunc(all, func(a, b Family) int { return cmp.Compare(a.Parent.Key(), b.Parent.Key()) })
	return all
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
