package s3

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// spaceCacheTTL is the time for which the existence of a space is cached. A space that was deleted meanwhile exists
// again with its first item.
const spaceCacheTTL = 30 * time.Second

type spaceRecord struct {
	Properties map[string]string `json:"properties,omitempty"`
	ACL        map[string]string `json:"acl,omitempty"`
	Unknown    bool              `json:"properties_unknown,omitempty"` // Space.PropertiesUnknown
}

// Spaces implements storage.Store.
func (s *Store) Spaces(ctx context.Context) iter.Seq2[string, error] {
	return storage.Names(ctx, func() ([]string, error) { return s.spaceNames(ctx) })
}

func (s *Store) spaceNames(ctx context.Context) ([]string, error) {
	names := map[string]bool{}
	if s.layout.bucket == "" {
		all, err := s.core.ListBuckets(ctx)
		if err != nil {
			return nil, s.translate(ctx, aBucket, "list buckets", err)
		}
		for _, b := range all {
			if name, ok := strings.CutPrefix(b.Name, s.layout.bucketPrefix); ok && name != "" && name != controlBucket {
				names[name] = true
			}
		}
		return slices.Sorted(maps.Keys(names)), nil
	}
	bucket, own := s.layout.control()
	for _, at := range []string{own + "spaces/", s.layout.prefix} {
		o := minio.ListObjectsOptions{Prefix: at, Recursive: false}
		for info := range s.core.ListObjectsIter(withListing(ctx), bucket, o) {
			if info.Err != nil {
				return nil, s.translate(ctx, aBucket, fmt.Sprintf("list spaces in bucket %q", bucket), info.Err)
			}
			piece, ok := strings.CutPrefix(info.Key, at)
			if !ok {
				return nil, fmt.Errorf("list spaces in bucket %q: key %q is not below %q: %w",
					bucket, info.Key, at, storage.ErrListing)
			}
			switch name, ok := unescape(strings.TrimSuffix(piece, "/")); {
			case info.Key == own:
			case at == s.layout.prefix && !strings.HasSuffix(piece, "/"):
				s.cfg.Skipped(info.Key, "it is outside of any space")
			case !ok:
				s.cfg.Skipped(info.Key, "it is not the name of a space")
			default:
				names[name] = true
			}
		}
		if ctx.Err() != nil {
			return nil, storage.ContextErr(ctx)
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// StatSpace implements storage.Store.
func (s *Store) StatSpace(ctx context.Context, name string) (storage.Space, error) {
	bucket, prefix, err := s.layout.space(name)
	if err != nil {
		return storage.Space{}, err
	}
	text, err := s.getControl(ctx, spaceRecordName(name))
	found := storage.Space{Name: name, PropertiesUnknown: true}
	switch {
	case err == nil:
		var r spaceRecord
		if err := json.Unmarshal(text, &r); err != nil {
			return storage.Space{}, fmt.Errorf("read the record of space %q: %w", name, err)
		}
		found.Properties, found.ACL, found.PropertiesUnknown = r.Properties, r.ACL, r.Unknown
		if s.layout.bucket != "" {
			s.markSeen(name)
			return found, nil
		}
	case !isAbsent(err):
		return storage.Space{}, err
	}
	if there, err := s.spaceExists(ctx, bucket, prefix); err != nil {
		return storage.Space{}, err
	} else if !there {
		return storage.Space{}, fmt.Errorf("space %q: %w", name, storage.ErrNoSpace)
	}
	s.markSeen(name)
	return found, nil
}

// spaceExists reports whether the bucket of a space exists or, if all spaces share a bucket, whether the space has
// keys.
func (s *Store) spaceExists(ctx context.Context, bucket, prefix string) (bool, error) {
	if s.layout.bucket == "" {
		ok, err := s.core.BucketExists(ctx, bucket)
		return ok, s.translate(ctx, aBucket, fmt.Sprintf("stat bucket %q", bucket), err)
	}
	return s.hasKeys(ctx, bucket, prefix)
}

// hasKeys reports whether there is a key with a prefix.
func (s *Store) hasKeys(ctx context.Context, bucket, prefix string) (bool, error) {
	ctx, cancel := context.WithCancel(withListing(ctx))
	defer cancel()
	o := minio.ListObjectsOptions{Prefix: prefix, Recursive: true, MaxKeys: 1}
	for info := range s.core.ListObjectsIter(ctx, bucket, o) {
		return info.Err == nil, s.translate(ctx, aBucket, fmt.Sprintf("list bucket %q", bucket), info.Err)
	}
	if ctx.Err() != nil {
		return false, storage.ContextErr(ctx)
	}
	return false, nil
}

// markSeen caches that a space exists.
func (s *Store) markSeen(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.knownSpaces) > 10_000 {
		clear(s.knownSpaces)
	}
	s.knownSpaces[name] = time.Now()
}

// requireSpace returns ErrNoSpace if the space is absent. It uses the cache.
func (s *Store) requireSpace(ctx context.Context, name string) error {
	s.mu.Lock()
	at, ok := s.knownSpaces[name]
	s.mu.Unlock()
	if ok && time.Since(at) < spaceCacheTTL {
		return nil
	}
	_, err := s.StatSpace(ctx, name)
	return err
}

// CreateSpace implements storage.Store.
func (s *Store) CreateSpace(ctx context.Context, space storage.Space) error {
	text, err := s.encodeSpace(space)
	if err != nil {
		return storage.NotApplied(err)
	}
	if _, err = s.StatSpace(ctx, space.Name); err == nil {
		return storage.NotApplied(fmt.Errorf("space %q: %w", space.Name, storage.ErrExists))
	} else if !errors.Is(err, storage.ErrNoSpace) {
		return storage.NotApplied(err)
	}
	if s.layout.bucket == "" {
		bucket, _, _ := s.layout.space(space.Name)
		if err := s.makeBucket(ctx, bucket); err != nil {
			return markNotApplied(err)
		}
	}
	err = s.putControl(ctx, spaceRecordName(space.Name), text)
	if err == nil {
		s.markSeen(space.Name)
	} else if s.layout.bucket != "" {
		err = markNotApplied(err)
	}
	return err
}

// spaceRecordName returns the name of the record of a space.
func spaceRecordName(space string) string { return "spaces/" + escape(space) }

// encodeSpace returns the record of a space, or an error if the space cannot be written.
func (s *Store) encodeSpace(space storage.Space) ([]byte, error) {
	if s.cfg.ReadOnly {
		return nil, retry.Permanent(storage.ErrReadOnly)
	}
	if _, _, err := s.layout.space(space.Name); err != nil {
		return nil, err
	}
	text, err := json.Marshal(spaceRecord{space.Properties, space.ACL, space.PropertiesUnknown})
	if err != nil {
		return nil, fmt.Errorf("encode the record of space %q: %w", space.Name, err)
	}
	if len(text) > maxRecord {
		return nil, retry.Permanent(fmt.Errorf("record of space %q has %d bytes, at most %d: %w",
			space.Name, len(text), maxRecord, storage.ErrTooLarge))
	}
	return text, nil
}

// SetSpace implements storage.Store.
func (s *Store) SetSpace(ctx context.Context, space storage.Space) error {
	text, err := s.encodeSpace(space)
	if err == nil {
		_, err = s.StatSpace(ctx, space.Name)
	}
	if err != nil {
		return storage.NotApplied(err)
	}
	return markNotApplied(s.putControl(ctx, spaceRecordName(space.Name), text))
}

// DeleteSpace implements storage.Store.
func (s *Store) DeleteSpace(ctx context.Context, name string) error {
	bucket, err := s.requireEmpty(ctx, name)
	if err != nil {
		return storage.NotApplied(err)
	}
	if s.layout.bucket == "" {
		err := s.translate(ctx, aBucket, fmt.Sprintf("remove bucket %q", bucket), s.core.RemoveBucket(ctx, bucket))
		if err != nil && !isAbsent(err) {
			return markNotApplied(err)
		}
	}
	s.mu.Lock()
	delete(s.knownSpaces, name)
	s.mu.Unlock()
	err = s.deleteControl(ctx, spaceRecordName(name))
	if s.layout.bucket != "" {
		err = markNotApplied(err)
	}
	return err
}

// requireEmpty returns the bucket of a space, or an error if the space cannot be deleted.
func (s *Store) requireEmpty(ctx context.Context, name string) (bucket string, err error) {
	if s.cfg.ReadOnly {
		return "", retry.Permanent(storage.ErrReadOnly)
	}
	bucket, prefix, err := s.layout.space(name)
	if err != nil {
		return "", err
	}
	if _, err := s.StatSpace(ctx, name); err != nil {
		return "", err
	}
	if full, err := s.hasKeys(ctx, bucket, prefix); err != nil {
		return "", err
	} else if full {
		return "", fmt.Errorf("space %q: %w", name, storage.ErrNotEmpty)
	}
	return bucket, nil
}
