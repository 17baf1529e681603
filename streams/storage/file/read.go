package file

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

func object(item string, st *unix.Stat_t, a aspect) storage.Object {
	ns := st.Mtim.Nano()
	return storage.Object{
		Item: item, Size: st.Size, Modified: time.Unix(0, ns).UTC(), Version: versionOf(ns),
		Digests: a.Digests, Properties: a.properties(), Original: a.Original.original(),
	}
}

// Stat implements storage.Store.
func (s *Store) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	if ctx.Err() != nil {
		return storage.Object{}, context.Cause(ctx)
	}
	p, err := newPlace(space, item)
	if err != nil {
		return storage.Object{}, err
	}
	sess, err := s.enter()
	if err != nil {
		return storage.Object{}, err
	}
	defer s.leave(sess)
	_, st, err := sess.locate(p)
	var a aspect
	if err == nil {
		a, err = sess.about(p, &st)
	}
	if err != nil {
		return storage.Object{}, storage.Absent(err, s.now())
	}
	return object(item, &st, a), nil
}

// about returns what the sidecar says of the item's file. Where a writer is just
// replacing or removing both it looks again, and st is then of the file as it is now.
func (s *session) about(p place, st *unix.Stat_t) (aspect, error) {
	for range maxTries {
		sc, err := s.readSidecar(p)
		if err != nil {
			return aspect{}, fmt.Errorf("item %q: %w", p.item, err)
		}
		a, known := sc.of(st.Mtim.Nano())
		if known {
			return a, nil
		}
		_, now, err := s.locate(p)
		if err != nil {
			return aspect{}, err
		}
		if now.Mtim == st.Mtim && now.Ino == st.Ino {
			return a, nil // the file is, or was changed, by others than us
		}
		*st = now
	}
	return aspect{}, fmt.Errorf("item %q: its file keeps changing", p.item)
}

// Path returns where an item's file is. It is for people, and for tests that do harm.
func (s *Store) Path(space, item string) (string, error) {
	p, err := newPlace(space, item)
	if err != nil {
		return "", err
	}
	sess, err := s.enter()
	if err != nil {
		return "", err
	}
	defer s.leave(sess)
	at, _, err := sess.locate(p)
	if err != nil {
		return "", err
	}
	return filepath.Join(s.cfg.Root, filepath.FromSlash(at)), nil
}
