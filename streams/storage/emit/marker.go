package emit

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
)

// known returns an error unless a reading of the store's marker that began no earlier than since was right.
func (s *Store) checkMarker(ctx context.Context, since time.Time) error {
	if s.cfg.Unmarked {
		return nil
	}
	if err := s.markers.Confirm(ctx, "", s.inner, since); err != nil {
		return fmt.Errorf("read the marker of store %s/%s: %w", s.cfg.Account, s.cfg.Store, err)
	}
	return nil
}

// certain returns an error if what was before is absent in a store that does not show its marker now: it would be taken
// for a proof that nothing was changed.
func (s *Store) checkAbsence(ctx context.Context, before *pb.Change) error {
	if before != nil {
		return nil
	}
	return storage.NotApplied(s.checkMarker(ctx, time.Now()))
}

// believed returns err, unless it says that something is absent in a store that does not show its marker now.
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
