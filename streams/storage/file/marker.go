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
	Format int `json:"format"` // of ownDir and the attributes: the constant format
	// Sidecars: metadata is written to sidecars, because the file system had no attributes when the marker was written.
	// Otherwise it is written to attributes, and to sidecars only if it does not fit. Both places are always read.
	Sidecars bool   `json:"sidecars,omitempty"`
	Store    string `json:"store"`
}

// format is the format of a root.
const format = 2

// ErrFormat means that a root has the format of another version of millrace. An error that wraps it also wraps
// storage.ErrWrongMarker.
var ErrFormat = errors.New("the format of the store is of another version")

// formatError is an error that wraps storage.ErrWrongMarker and does not repeat it.
type formatError struct{ error }

func (e formatError) Is(target error) bool { return target == storage.ErrWrongMarker }
func (e formatError) Unwrap() error        { return e.error }

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
	if doc.Store != s.cfg.ID {
		return doc, fmt.Errorf("store %q in %s is marked %q: %w", s.cfg.ID, s.cfg.Root, doc.Store, storage.ErrWrongMarker)
	}
	if doc.Format != format {
		return doc, formatError{fmt.Errorf("store %q in %s: %w: it is %d, this version of millrace needs %d",
			s.cfg.ID, s.cfg.Root, ErrFormat, doc.Format, format)}
	}
	return doc, nil
}

// newMarker returns the marker for a root that has none.
func (s *Store) newMarker(sess *session) markerDoc {
	return markerDoc{Format: format, Sidecars: s.cfg.sidecars || !s.hasAttrs(sess), Store: s.cfg.ID}
}

func (s *Store) hasAttrs(sess *session) bool { return sess.supportsAttrs && s.cfg.maxAttr >= 0 }

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
	return s.writeMarkerFile(sess, s.newMarker(sess))
}

// writeMarkerFile writes the marker durably.
func (s *Store) writeMarkerFile(sess *session, doc markerDoc) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	if err := sess.writeOwn(markerFile, append(b, '\n')); err != nil {
		return classify(err)
	}
	return classify(sess.syncDir(ownDir))
}
