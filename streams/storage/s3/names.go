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

// place returns an item's bucket and key, unless the service may take that for another key, even one outside of the
// space: some keep objects as files, to whose paths a//b and x/../a/b are the same.
func (s *Store) itemKey(space, item string) (bucket, key string, err error) {
	bucket, key, err = s.layout.item(space, item)
	if err != nil {
		return "", "", err
	}
	f := s.features.Load()
	unknown := s.cfg.ReadOnly && *f == (Facts{}) // no more than what is there can be read
	if strings.TrimSpace(key) == "" || !f.OddKeys && !unknown && isOddKey(item) {
		return "", "", retry.Permanent(fmt.Errorf("the service cannot keep a key for %s: %w", itemText(space, item), storage.ErrName))
	}
	return bucket, key, nil
}

// isOdd says whether an id is no plain path of what a file's name can be. One that ends in a slash is: services that have
// directories take it for one of them.
func isOddKey(item string) bool {
	pieces := strings.Split(item, "/")
	last := len(pieces) - 1
	return strings.ContainsRune(item, 0) || item == "/" || slices.ContainsFunc(pieces, isOddSegment) || slices.Contains(pieces[:last], "")
}

func isOddSegment(p string) bool {
	plain := strings.TrimSpace(p) // MinIO refuses " .." too
	return plain == "." || plain == ".." || len(p) > maxFileName
}

const maxFileName = 255 // bytes, with all file systems

// from returns the last key at which a listing of what comes after an id can begin: services refuse there what they refuse as a key.
func (s *Store) listStart(prefix, after string) string {
	if s.features.Load().OddKeys || !isOddKey(after) {
		return prefix + after
	}
	at := 0
	for piece := range strings.SplitAfterSeq(after, "/") {
		if isOddKey(strings.TrimSuffix(piece, "/")) || piece == "/" {
			break
		}
		at += len(piece)
	}
	return prefix + after[:at]
}

// nested refuses an item that would lie below another, or above others, where the service keeps such but lists only one.
// Until free is called no other Put of this process may begin that would be in its way. Of two processes both may look
// before either writes.
func (s *Store) reserveKey(ctx context.Context, space, item string) (free func(), err error) {
	if !s.features.Load().Hides {
		return func() {}, nil
	}
	release, err := s.reservePut(space, item)
	if err != nil {
		return nil, err
	}
	defer func() {
		if free == nil { // also if the transport panics
			release()
		}
	}()
	if err := s.checkNested(ctx, space, item); err != nil {
		return nil, err
	}
	return release, nil
}

// alone notes that an item is put. It fails while one above or below it is put: which of them stays is not known yet.
func (s *Store) reservePut(space, item string) (free func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := location{space, item}
	busy := s.putsBelow[at] > 0
	for above := range ancestors(at) {
		busy = busy || s.puts[above] > 0
	}
	if busy {
		return nil, fmt.Errorf("put %s: an item above or below it is put at this moment, and the service would not list both", itemText(space, item))
	}
	count := func(by int) {
		addCount(s.puts, at, by)
		for above := range ancestors(at) {
			addCount(s.putsBelow, above, by)
		}
		if bucket, prefix, err := s.layout.space(space); err == nil {
			delete(s.freeAncestors, location{bucket, prefix + item}) // it may be there
		}
	}
	count(1)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		count(-1)
	}, nil
}

// aboveOf are the items that an item would lie below.
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

func (s *Store) checkNested(ctx context.Context, space, item string) error {
	bucket, prefix, err := s.layout.space(space)
	if err != nil {
		return err
	}
	for above := range ancestors(location{bucket, item}) {
		if strings.TrimSpace(prefix+above.key) == "" { // which cannot be a key
			continue
		}
		if there, err := s.hidesBelow(ctx, location{bucket, prefix + above.key}); err != nil {
			return fmt.Errorf("look for what is above %s: %w", itemText(space, item), err)
		} else if there {
			return hiddenError(fmt.Sprintf("%s would lie below %q", itemText(space, item), above.key))
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

// blocks says whether there is an object that hides what lies below it. A delete marker does so too.
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
	if err := translate(ctx, anItem, fmt.Sprintf("look at %q", at.key), err); !isAbsent(err) {
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

// probeKeys tries keys that services which keep objects as files stumble over.
func (s *Store) probeKeys(ctx context.Context, f *Facts, name string) error {
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
	if err != nil || !stored { // it refuses that by itself
		return err
	}
	keys := 0
	for info := range s.core.ListObjectsIter(withListing(ctx), bucket, minio.ListObjectsOptions{Prefix: prefix + name, Recursive: true}) {
		if info.Err != nil {
			return s.translate(ctx, aBucket, fmt.Sprintf("list bucket %q", bucket), info.Err)
		}
		keys++
	}
	f.Hides = keys < 2
	return s.deleteControl(ctx, name+"/below")
}
