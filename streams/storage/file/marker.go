package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/millrace/millrace/streams/storage"
)

// markerDoc makes a directory a store.
type markerDoc struct {
	Format int    `json:"format"` // of all that is in ownDir
	Store  string `json:"store"`
}

const format = 1

// Marker implements storage.Store. A root that is gone has no marker.
func (s *Store) Marker(ctx context.Context) error {
	sess, err := s.enter()
	if err != nil {
		return err
	}
	defer s.leave(sess)
	return s.marker(sess)
}

func (s *Store) marker(sess *session) error {
	b, err := sess.read(markerFile)
	if isAbsent(err) {
		return fmt.Errorf("store %q in %s: %w", s.cfg.ID, s.cfg.Root, storage.ErrNoMarker)
	}
	if err != nil {
		return err
	}
	var doc markerDoc
	if err := json.Unmarshal(b, &doc); err != nil {
		return fmt.Errorf("store %q in %s: %w: %w", s.cfg.ID, s.cfg.Root, storage.ErrWrongMarker, err)
	}
	if doc.Store != s.cfg.ID || doc.Format != format {
		return fmt.Errorf("store %q in %s is marked %q, format %d: %w", s.cfg.ID, s.cfg.Root, doc.Store, doc.Format, storage.ErrWrongMarker)
	}
	return nil
}

// WriteMarker implements storage.Store.
func (s *Store) WriteMarker(ctx context.Context) error {
	sess, err := s.enterFor((*session).prepare)
	if err != nil {
		return err
	}
	defer s.leave(sess)
	unlock, err := s.lock(ctx, sess, markerFile)
	if err != nil {
		return err
	}
	defer unlock()
	switch err := s.marker(sess); {
	case err == nil:
		return nil
	case errors.Is(err, storage.ErrWrongMarker):
		return fmt.Errorf("%w: %w", storage.ErrExists, err)
	case !errors.Is(err, storage.ErrNoMarker):
		return err
	}
	b, err := json.Marshal(markerDoc{format, s.cfg.ID})
	if err != nil {
		return err
	}
	if err := sess.writeOwn(markerFile, append(b, '\n')); err != nil {
		return refine(err)
	}
	return refine(sess.syncDir(ownDir))
}
