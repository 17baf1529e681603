package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/millrace/millrace/streams/storage"
)

// A markerDoc is the marker of a root: it names the store that the root belongs to.
type markerDoc struct {
	Format int    `json:"format"` // layout of ownDir and the attributes
	Store  string `json:"store"`
}

// The layouts. In both, the metadata of an item is in the attribute of its file, in a sidecar, or in neither; both
// places are read. Older versions of this package refuse layout 2, because they do not read attributes.
const (
	layoutSidecars = 1 // metadata is written to sidecars
	layoutAttrs    = 2 // metadata is written to attributes, and to sidecars only if it does not fit
)

// Marker implements storage.Store. If the root does not exist, the error is ErrNoMarker.
func (s *Store) Marker(ctx context.Context) error {
	sess, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release(sess)
	_, err = s.marker(sess)
	return err
}

func (s *Store) marker(sess *session) (doc markerDoc, err error) {
	b, err := sess.read(markerFile)
	if isAbsent(err) {
		return doc, fmt.Errorf("store %q in %s: %w", s.cfg.ID, s.cfg.Root, storage.ErrNoMarker)
	}
	if err != nil {
		return doc, s.explainDenied(err)
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return doc, fmt.Errorf("store %q in %s: %w: %w", s.cfg.ID, s.cfg.Root, storage.ErrWrongMarker, err)
	}
	if doc.Store != s.cfg.ID || doc.Format != layoutSidecars && doc.Format != layoutAttrs {
		return doc, fmt.Errorf("store %q in %s is marked %q, format %d: %w",
			s.cfg.ID, s.cfg.Root, doc.Store, doc.Format, storage.ErrWrongMarker)
	}
	return doc, nil
}

// newFormat returns the layout for a root without a marker.
func (s *Store) newFormat(sess *session) int {
	if s.cfg.format == layoutSidecars || !sess.supportsAttrs || s.cfg.maxAttr < 0 {
		return layoutSidecars
	}
	return layoutAttrs
}

// WriteMarker implements storage.Store.
func (s *Store) WriteMarker(ctx context.Context) error {
	sess, err := s.acquireAfter(s.prepare)
	if err != nil {
		return err
	}
	defer s.release(sess)
	unlock, err := s.lock(ctx, sess, markerFile)
	if err != nil {
		return err
	}
	defer unlock()
	switch _, err := s.marker(sess); {
	case err == nil:
		return nil
	case errors.Is(err, storage.ErrWrongMarker):
		return fmt.Errorf("%w: %w", storage.ErrExists, err)
	case !errors.Is(err, storage.ErrNoMarker):
		return err
	}
	format := s.newFormat(sess)
	if format == layoutAttrs {
		if err := sess.blockOldVersions(); err != nil {
			return classify(err)
		}
	}
	return s.writeMarkerFile(sess, format)
}

// writeMarkerFile writes the marker durably.
func (s *Store) writeMarkerFile(sess *session, format int) error {
	b, err := json.Marshal(markerDoc{format, s.cfg.ID})
	if err != nil {
		return err
	}
	if err := sess.writeOwn(markerFile, append(b, '\n')); err != nil {
		return classify(err)
	}
	return classify(sess.syncDir(ownDir))
}
