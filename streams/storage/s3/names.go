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
func (s *Store) place(space, item string) (bucket, key string, err error) {
	bucket, key, err = s.layout.item(space, item)
	if err != nil {
		return "", "", err
	}
	f := s.facts.Load()
	unknown := s.cfg.ReadOnly && *f == (Facts{}) // no more than what is there can be read
	if strings.TrimSpace(key) == "" || !f.OddKeys && !unknown && isOdd(item) {
		return "", "", retry.Permanent(fmt.Errorf("the service cannot keep a key for %s: %w", named(space, item), storage.ErrName))
	}
	return bucket, key, nil
}

// isOdd says whether an id is no plain path of what a file's name can be. One that ends in a slash is: services that have
// directories take it for one of them.
func isOdd(item string) bool {
	pieces := strings.Split(item, "/")
	last := len(pieces) - 1
	return strings.ContainsRune(item, 0) || item == "/" || slices.ContainsFunc(pieces, isOddPiece) || slices.Contains(pieces[:last], "")
}

func isOddPiece(p string) bool {
	plain := strings.TrimSpace(p) // MinIO refuses " .." too
	return plain == "." || plain == ".." || len(p) > maxFileName
}

const maxFileName = 255 // bytes, with all file systems

// from returns the last key at which a listing of what comes after an id can begin: services refuse there what they refuse as a key.
func (s *Store) from(prefix, after string) string {
	if s.facts.Load().OddKeys || !isOdd(after) {
		return prefix + after
	}
	at := 0
	for piece := range strings.SplitAfterSeq(after, "/") {
		if isOdd(strings.TrimSuffix(piece, "/")) || piece == "/" {
			break
		}
		at += len(piece)
	}
	return prefix + after[:at]
}

// nested refuses an item that would lie below another, or above others, where the service keeps such but lists only one.
// Until free is called no other Put of this process may begin that would be in its way. Of two processes both may look
// before either writes.
func (s *Store) nested(ctx context.Context, space, item string) (free func(), err error) {
	if !s.facts.Load().Hides {
		return func() {}, nil
	}
	release, err := s.alone(space, item)
	if err != nil {
		return nil, err
	}
	defer func() {
		if free == nil { // also if the transport panics
			release()
		}
	}()
	if err := s.lookForNested(ctx, space, item); err != nil {
		return nil, err
	}
	return release, nil
}

// alone notes that an item is put. It fails while one above or below it is put: which of them stays is not known yet.
func (s *Store) alone(space, item string) (free func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := spot{space, item}
	busy := s.below[at] > 0
	for above := range aboveOf(at) {
		busy = busy || s.putting[above] > 0
	}
	if busy {
		return nil, fmt.Errorf("put %s: an item above or below it is put at this moment, and the service would not list both", named(space, item))
	}
	count := func(by int) {
		add(s.putting, at, by)
		for above := range aboveOf(at) {
			add(s.below, above, by)
		}
		if bucket, prefix, err := s.layout.space(space); err == nil {
			delete(s.dirs, spot{bucket, prefix + item}) // it may be there
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
func aboveOf(at spot) iter.Seq[spot] {
	return func(yield func(spot) bool) {
		for i, c := range at.key {
			if c == '/' && i < len(at.key)-1 && !yield(spot{at.bucket, at.key[:i]}) {
				return
			}
		}
	}
}

func add(to map[spot]int, at spot, n int) {
	if to[at] += n; to[at] == 0 {
		delete(to, at)
	}
}

func (s *Store) lookForNested(ctx context.Context, space, item string) error {
	bucket, prefix, err := s.layout.space(space)
	if err != nil {
		return err
	}
	for above := range aboveOf(spot{bucket, item}) {
		if strings.TrimSpace(prefix+above.key) == "" { // which cannot be a key
			continue
		}
		if there, err := s.blocks(ctx, spot{bucket, prefix + above.key}); err != nil {
			return fmt.Errorf("look for what is above %s: %w", named(space, item), err)
		} else if there {
			return hidden(fmt.Sprintf("%s would lie below %q", named(space, item), above.key))
		}
	}
	if strings.HasSuffix(item, "/") {
		return nil
	}
	if full, err := s.any(ctx, bucket, prefix+item+"/"); err != nil || !full {
		return err
	}
	return hidden("there are items below " + named(space, item))
}

func hidden(what string) error {
	return retry.Permanent(fmt.Errorf("%s, and the service would not list both: %w", what, storage.ErrName))
}

// blocks says whether there is an object that hides what lies below it. A delete marker does so too.
func (s *Store) blocks(ctx context.Context, at spot) (bool, error) {
	s.mu.Lock()
	seen, ok := s.dirs[at]
	s.mu.Unlock()
	if ok && time.Since(seen) < spaceFresh {
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
	if len(s.dirs) > 10_000 {
		clear(s.dirs)
	}
	s.dirs[at] = time.Now()
	return false, nil
}

// probeKeys tries keys that services which keep objects as files stumble over.
func (s *Store) probeKeys(ctx context.Context, f *Facts, name string) error {
	bucket, prefix := s.layout.control()
	put := func(key string) (stored bool, err error) {
		err = s.ownPut(ctx, key, []byte(key))
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
			_ = s.ownDelete(ctx, name+plain)
		}
		_ = s.ownDelete(ctx, name+odd)
	}
	name += "-n"
	if err := s.ownPut(ctx, name, []byte("above")); err != nil {
		return err
	}
	defer func() { _ = s.ownDelete(context.WithoutCancel(ctx), name) }()
	stored, err := put(name + "/below")
	if err != nil || !stored { // it refuses that by itself
		return err
	}
	keys := 0
	for info := range s.core.ListObjectsIter(listed(ctx), bucket, minio.ListObjectsOptions{Prefix: prefix + name, Recursive: true}) {
		if info.Err != nil {
			return s.translate(ctx, aBucket, fmt.Sprintf("list bucket %q", bucket), info.Err)
		}
		keys++
	}
	f.Hides = keys < 2
	return s.ownDelete(ctx, name+"/below")
}
