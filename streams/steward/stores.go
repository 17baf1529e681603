package steward

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/incident"
)

// updateStores opens and updates the parents of incidents about several spaces of one store, and makes these its
// children. It returns false if a parent was updated too recently.
func (s *Steward) updateStores(ctx context.Context, owns func(key string) bool) (told bool, err error) {
	told = true
	for _, f := range s.board.Families() {
		if len(f.Children) < 2 && !s.board.IsOpen(f.Parent) || !owns(parentKey(f.Parent)) {
			continue
		}
		now, err := s.updateParent(ctx, f.Parent, func() string { return storeDetail(f) }, func() time.Time {
			return slices.MaxFunc(s.openedAt(f.Children), time.Time.Compare)
		})
		if err != nil {
			return false, err
		}
		told = told && now
		for _, c := range f.Children {
			if !s.board.IsOpen(f.Parent) {
				break
			}
			if err := s.board.Join(ctx, c, f.Parent); err != nil {
				return false, err
			}
		}
	}
	return told, nil
}

func (s *Steward) openedAt(all []incident.Subject) (times []time.Time) {
	for _, about := range all {
		times = append(times, s.board.OpenedAt(about))
	}
	return times
}

// storeDetail returns the number of children and what they are.
func storeDetail(f incident.Family) string {
	if f.Parent.Name == incident.ListingIncomplete {
		return fmt.Sprintf("the listings of %d spaces of the store lack too many copies", len(f.Children))
	}
	return fmt.Sprintf("%d spaces of the store are missing", len(f.Children))
}
