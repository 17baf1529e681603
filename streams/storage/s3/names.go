package s3

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// itemKey returns the bucket and the key of an item. It returns ErrName if the service may treat the key as another
// one, possibly outside of the space: services that store objects as files treat a//b and x/../a/b as the same path.
func (s *Store) itemKey(space, item string) (bucket, key string, err error) {
	bucket, key, err = s.layout.item(space, item)
	if err != nil {
		return "", "", err
	}
	f := s.features.Load()
	unknown := s.cfg.ReadOnly && *f == (Features{}) // not probed; a read cannot do harm
	if strings.TrimSpace(key) == "" || !f.OddKeys && !unknown && isOddKey(item) {
		return "", "", retry.Permanent(fmt.Errorf("the service cannot store the key of %s: %w",
			itemText(space, item), storage.ErrName))
	}
	return bucket, key, nil
}

// isOddKey reports whether an id is not a clean relative path of valid file names. An id that ends in a slash is not
// odd: services with directories store it as a directory.
func isOddKey(item string) bool {
	segments := strings.Split(item, "/")
	last := len(segments) - 1
	return strings.ContainsRune(item, 0) || item == "/" ||
		slices.ContainsFunc(segments, isOddSegment) || slices.Contains(segments[:last], "")
}

func isOddSegment(p string) bool {
	plain := strings.TrimSpace(p) // MinIO refuses " .." too
	return plain == "." || plain == ".." || len(p) > maxFileName
}

const maxFileName = 255 // in bytes, the limit of common file systems

// listStart returns the key after which to list the items after an id. If the key of the id is odd, it is the longest
// parent that is not: services refuse to start a listing at keys that they cannot store.
func (s *Store) listStart(prefix, after string) string {
	if s.features.Load().OddKeys || !isOddKey(after) {
		return prefix + after
	}
	at := 0
	for segment := range strings.SplitAfterSeq(after, "/") {
		if isOddKey(strings.TrimSuffix(segment, "/")) || segment == "/" {
			break
		}
		at += len(segment)
	}
	return prefix + after[:at]
}

// reserveKey returns ErrName for an item below or above another item if the service stores both but lists only one.
// Until free is called, other Puts of this process for items above or below fail. Concurrent Puts of two processes are
// not detected.
func (s *Store) reserveKey(ctx context.Context, space, item string) (free func(), err error) {
	if !s.features.Load().Hides {
		return func() {}, nil
	}
	release, err := s.reservePut(space, item)
	if err != nil {
		return nil, err
	}
	defer func() {
		if free == nil { // also after a panic of the transport
			release()
		}
	}()
	if err := s.checkNested(ctx, space, item); err != nil {
		return nil, err
	}
	return release, nil
}

// reservePut counts an active Put of an item. It returns a transient error while an item above or below it is put,
// because that Put may still fail.
func (s *Store) reservePut(space, item string) (free func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := location{space, item}
	busy := s.putsBelow[at] > 0
	for above := range ancestors(at) {
		busy = busy || s.puts[above] > 0
	}
	if busy {
		return nil, fmt.Errorf("put %s: another Put writes an item above or below it, and the service would not list both",
			itemText(space, item))
	}
	count := func(by int) {
		addCount(s.puts, at, by)
		for above := range ancestors(at) {
			addCount(s.putsBelow, above, by)
		}
		if bucket, prefix, err := s.layout.space(space); err == nil {
			delete(s.freeAncestors, location{bucket, prefix + item}) // the object may exist now
		}
	}
	count(1)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		count(-1)
	}, nil
}

// ancestors returns the locations of the items above an item.
func ancestors(at location) iter.Seq[location] {
	return func(yield func(location) bool) {
		for i, c := range at.key {
			if c == '/' && i < len(at.key)-1 && !yield(location{at.bucket, at.key[:i]}) {
				return
			}
		}
	}
}

func addCount(to map[location]int, at location, n int) {
	if to[at] += n; to[at] == 0 {
		delete(to, at)
	}
}

// checkNested returns ErrName if there is an item above or below an item.
func (s *Store) checkNested(ctx context.Context, space, item string) error {
	bucket, prefix, err := s.layout.space(space)
	if err != nil {
		return err
	}
	for above := range ancestors(location{bucket, item}) {
		if strings.TrimSpace(prefix+above.key) == "" { // cannot be a key
			continue
		}
		if hides, err := s.hidesBelow(ctx, location{bucket, prefix + above.key}); err != nil {
			return fmt.Errorf("check for items above %s: %w", itemText(space, item), err)
		} else if hides {
			return hiddenError(fmt.Sprintf("%s would be below item %q", itemText(space, item), above.key))
		}
	}
	if strings.HasSuffix(item, "/") {
		return nil
	}
	if full, err := s.hasKeys(ctx, bucket, prefix+item+"/"); err != nil || !full {
		return err
	}
	return hiddenError("there are items below " + itemText(space, item))
}

func hiddenError(what string) error {
	return retry.Permanent(fmt.Errorf("%s, and the service would not list both: %w", what, storage.ErrName))
}

// hidesBelow reports whether there is an object at a key, which hides the objects below it. A delete marker hides them
// too.
func (s *Store) hidesBelow(ctx context.Context, at location) (bool, error) {
	s.mu.Lock()
	seen, ok := s.freeAncestors[at]
	s.mu.Unlock()
	if ok && time.Since(seen) < spaceCacheTTL {
		return false, nil
	}
	info, err := s.core.StatObject(ctx, at.bucket, at.key, s.getOptions())
	if err == nil || info.IsDeleteMarker {
		return true, nil
	}
	if err := translate(ctx, anItem, fmt.Sprintf("stat %q", at.key), err); !isAbsent(err) {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.freeAncestors) > 10_000 {
		clear(s.freeAncestors)
	}
	s.freeAncestors[at] = time.Now()
	return false, nil
}

// probeKeys tests keys that services with objects as files cannot store, or do not list.
func (s *Store) probeKeys(ctx context.Context, f *Features, name string) error {
	bucket, prefix := s.layout.control()
	put := func(key string) (stored bool, err error) {
		err = s.putControl(ctx, key, []byte(key))
		if retry.ClassOf(err) == retry.ClassUnavailable || ctx.Err() != nil {
			return false, err
		}
		return err == nil, nil
	}
	f.OddKeys = true
	for odd, plain := range map[string]string{"-a//b": "-a/b", "-c/./d": "-c/d", "-\x00": ""} {
		stored, err := put(name + odd)
		if err != nil {
			return err
		}
		f.OddKeys = f.OddKeys && stored
		if !stored {
			continue
		}
		if _, err := s.core.StatObject(ctx, bucket, prefix+name+plain, minio.StatObjectOptions{}); err == nil && plain != "" {
			f.OddKeys = false
			_ = s.deleteControl(ctx, name+plain)
		}
		_ = s.deleteControl(ctx, name+odd)
	}
	name += "-n"
	if err := s.putControl(ctx, name, []byte("above")); err != nil {
		return err
	}
	defer func() { _ = s.deleteControl(context.WithoutCancel(ctx), name) }()
	stored, err := put(name + "/below")
	if err != nil || !stored { // the service refuses it, so it hides nothing
		return err
	}
	keys := 0
	o := minio.ListObjectsOptions{Prefix: prefix + name, Recursive: true}
	for info := range s.core.ListObjectsIter(withListing(ctx), bucket, o) {
		if info.Err != nil {
			return s.translate(ctx, aBucket, fmt.Sprintf("list bucket %q", bucket), info.Err)
		}
		keys++
	}
	f.Hides = keys < 2
	return s.deleteControl(ctx, name+"/below")
}
