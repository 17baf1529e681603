package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A marker identifies a store and records the features of its service.
type marker struct {
	Store string    `json:"store"`
	Facts *Features `json:"facts,omitempty"`
}

// maxRecord bounds the size of the driver's own objects, in bytes.
const maxRecord = 1 << 20

// Marker implements storage.Store. The store uses the features in the marker from then on.
func (s *Store) Marker(ctx context.Context) error {
	m, err := s.readMarker(ctx)
	switch {
	case isAbsent(err):
		return fmt.Errorf("store %q: %w", s.cfg.ID, storage.ErrNoMarker)
	case err != nil:
		return err
	case m.Store != s.cfg.ID:
		return fmt.Errorf("store %q is marked %q: %w", s.cfg.ID, m.Store, storage.ErrWrongMarker)
	}
	if m.Facts != nil {
		s.features.Store(m.Facts)
	}
	return nil
}

func (s *Store) readMarker(ctx context.Context) (m marker, err error) {
	text, err := s.getControl(ctx, "marker.json")
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil || m.Store == "" {
		return m, retry.Unavailable(fmt.Errorf("read the marker of store %q: it is damaged (%.40q)", s.cfg.ID, text))
	}
	return m, nil
}

// WriteMarker implements storage.Store. It probes the service and records its features in the marker.
func (s *Store) WriteMarker(ctx context.Context) error {
	if s.cfg.ReadOnly {
		return storage.NotApplied(retry.Permanent(storage.ErrReadOnly))
	}
	m, err := s.readMarker(ctx)
	if err != nil && !isAbsent(err) {
		return err
	}
	if err == nil && m.Store != s.cfg.ID {
		return fmt.Errorf("store %q is marked %q: %w", s.cfg.ID, m.Store, storage.ErrExists)
	}
	if errors.Is(err, storage.ErrNoSpace) && s.layout.bucket == "" {
		bucket, _ := s.layout.control()
		if err := s.makeBucket(ctx, bucket); err != nil && !errors.Is(err, storage.ErrExists) {
			return err
		}
	}
	f, err := s.probe(ctx)
	if err != nil {
		return err
	}
	text, err := json.Marshal(marker{s.cfg.ID, f})
	if err != nil {
		return fmt.Errorf("encode the marker: %w", err)
	}
	if err := s.putControl(ctx, "marker.json", text); err != nil {
		return err
	}
	s.features.Store(f)
	return nil
}

func (s *Store) makeBucket(ctx context.Context, bucket string) error {
	err := s.core.MakeBucket(ctx, bucket, minio.MakeBucketOptions{Region: s.cfg.Region})
	return s.translate(ctx, aBucket, fmt.Sprintf("make bucket %q", bucket), err)
}

// getControl reads one of the driver's own objects.
func (s *Store) getControl(ctx context.Context, name string) (text []byte, err error) {
	bucket, prefix := s.layout.control()
	what := fmt.Sprintf("read %s%s in bucket %q", prefix, name, bucket)
	body, _, _, err := s.core.GetObject(ctx, bucket, prefix+name, s.getOptions())
	if err != nil {
		return nil, s.translate(ctx, anItem, what, err)
	}
	defer body.Close()
	text, err = io.ReadAll(io.LimitReader(body, maxRecord))
	return text, s.translate(ctx, anItem, what, err)
}

// putControl writes one of the driver's own objects. pairs are headers.
func (s *Store) putControl(ctx context.Context, name string, text []byte, pairs ...string) error {
	bucket, prefix := s.layout.control()
	ctx, _ = withHeaders(ctx, pairs...)
	o := s.putOptions(objectHeaders{contentType: "application/json"})
	sum := sha256.Sum256(text)
	o.DisableContentSha256 = true // the client would sign the body in chunks, and withPayer could not sign it again
	_, err := s.core.PutObject(ctx, bucket, prefix+name, bytes.NewReader(text), int64(len(text)), "",
		hex.EncodeToString(sum[:]), o)
	return s.translate(ctx, anItem, fmt.Sprintf("write %s%s in bucket %q", prefix, name, bucket), err)
}

// deleteControl deletes one of the driver's own objects. pairs are headers.
func (s *Store) deleteControl(ctx context.Context, name string, pairs ...string) error {
	bucket, prefix := s.layout.control()
	ctx, _ = withHeaders(ctx, pairs...)
	err := s.core.RemoveObject(ctx, bucket, prefix+name, minio.RemoveObjectOptions{})
	return s.translate(ctx, anItem, fmt.Sprintf("delete %s%s in bucket %q", prefix, name, bucket), err)
}
