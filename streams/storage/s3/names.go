package s3

import (
	"context"
	"fmt"
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
func (s *Store) nested(ctx context.Context, space, item string) error {
	if !s.facts.Load().Hides {
		return nil
	}
	bucket, prefix, err := s.layout.space(space)
	if err != nil {
		return err
	}
	for i, c := range item {
		if c != '/' || i == len(item)-1 || strings.TrimSpace(prefix+item[:i]) == "" { // which cannot be a key
			continue
		}
		if there, err := s.blocks(ctx, spot{bucket, prefix + item[:i]}); err != nil {
			return fmt.Errorf("look for what is above %s: %w", named(space, item), err)
		} else if there {
			return hidden(fmt.Sprintf("%s would lie below %q", named(space, item), item[:i]))
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
	for info := range s.core.ListObjectsIter(ctx, bucket, minio.ListObjectsOptions{Prefix: prefix + name, Recursive: true}) {
		if info.Err != nil {
			return s.translate(ctx, aBucket, fmt.Sprintf("list bucket %q", bucket), info.Err)
		}
		keys++
	}
	f.Hides = keys < 2
	return s.ownDelete(ctx, name+"/below")
}
