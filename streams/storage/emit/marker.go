package emit

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
)

// checkMarker returns an error unless a read of the store's marker that began at since or later found the right
// marker.
func (s *Store) checkMarker(ctx context.Context, since time.Time) error {
	if s.cfg.Unmarked {
		return nil
	}
	if err := s.markers.Confirm(ctx, "", s.inner, since); err != nil {
		return fmt.Errorf("check marker of store %s/%s: %w", s.cfg.Account, s.cfg.Store, err)
	}
	return nil
}

// checkAbsence returns an error if the item was absent (before is nil) and the marker cannot be confirmed now:
// the absence would be taken as proof that nothing was changed.
func (s *Store) checkAbsence(ctx context.Context, before *pb.Change) error {
	if before != nil {
		return nil
	}
	return storage.NotApplied(s.checkMarker(ctx, time.Now()))
}

// confirmAbsence returns err. If err reports an absence and the marker cannot be confirmed now, it returns the
// marker's error instead.
func (s *Store) confirmAbsence(ctx context.Context, err error) error {
	if !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrNoSpace) {
		return err
	}
	unknown := s.checkMarker(ctx, time.Now())
	switch {
	case unknown == nil:
		return err
	case storage.IsNotApplied(err):
		return storage.NotApplied(unknown)
	}
	return unknown
}
