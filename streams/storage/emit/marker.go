package emit

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
)

// checkMarker returns an error unless the store's marker was read, and was right, in a reading that began
// at since or later.
func (s *Store) checkMarker(ctx context.Context, since time.Time) error {
	if s.cfg.Unmarked {
		return nil
	}
	if err := s.markers.Confirm(ctx, "", s.inner, since); err != nil {
		return fmt.Errorf("check marker of store %s/%s: %w", s.cfg.Account, s.cfg.Store, err)
	}
	return nil
}

// checkAbsence returns an error if before is nil but the store does not show its marker now: the absence
// would be taken as proof that nothing was changed.
func (s *Store) checkAbsence(ctx context.Context, before *pb.Change) error {
	if before != nil {
		return nil
	}
	return storage.NotApplied(s.checkMarker(ctx, time.Now()))
}

// confirmAbsence returns err, or the marker's error if err reports an absence and the store does not show
// its marker now.
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
