package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

func object(item string, st *unix.Stat_t, a aspect) storage.Object {
	ns := st.Mtim.Nano()
	return storage.Object{
		Item: item, Size: st.Size, Modified: time.Unix(0, ns).UTC(), Version: versionOf(ns),
		Digests: a.Digests, Properties: a.properties(),
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
	if err != nil {
		return storage.Object{}, err
	}
	a, err := sess.about(p, &st)
	if err != nil {
		return storage.Object{}, err
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

// Open implements storage.Store. A file that is replaced or deleted later is read to
// its end; one that is changed in place ends in ErrChanged.
func (s *Store) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	if ctx.Err() != nil {
		return nil, storage.Object{}, context.Cause(ctx)
	}
	p, err := newPlace(space, item)
	if err != nil {
		return nil, storage.Object{}, err
	}
	sess, err := s.enter()
	if err != nil {
		return nil, storage.Object{}, err
	}
	defer s.leave(sess)
	for range maxTries {
		r, o, err := sess.openFile(p, version)
		if errors.Is(err, errAgain) {
			continue
		}
		if err != nil {
			return nil, storage.Object{}, err
		}
		return r, o, nil
	}
	return nil, storage.Object{}, fmt.Errorf("open item %q: its file keeps changing", item)
}

var errAgain = errors.New("file was replaced while it was opened")

// sequential is from which size on the kernel is told that a file is read to its end.
const sequential = 1 << 20

func (s *session) openFile(p place, version string) (io.ReadCloser, storage.Object, error) {
	at, _, err := s.locate(p)
	if err != nil {
		return nil, storage.Object{}, err
	}
	fd, err := s.open(at, unix.O_RDONLY|unix.O_NONBLOCK)
	if isAbsent(err) {
		return nil, storage.Object{}, errAgain
	}
	if err != nil {
		return nil, storage.Object{}, err
	}
	f := os.NewFile(uintptr(fd), at)
	o, err := s.opened(fd, p, version)
	if err != nil {
		return nil, storage.Object{}, errors.Join(err, f.Close())
	}
	if o.Size >= sequential {
		_ = unix.Fadvise(fd, 0, 0, unix.FADV_SEQUENTIAL) // advice only
	}
	return &reader{f: f, version: o.Version}, o, nil
}

// opened tells of the file that was opened, not of one that came in its place since.
func (s *session) opened(fd int, p place, version string) (storage.Object, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return storage.Object{}, named("stat", p.path, err)
	}
	if !isRegular(&st) {
		return storage.Object{}, errAgain
	}
	o := object(p.item, &st, aspect{})
	if err := (storage.Condition{Version: version}).Check(o, true); err != nil {
		return storage.Object{}, err
	}
	now := st
	a, err := s.about(p, &now)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return storage.Object{}, err
	}
	if err != nil || now.Mtim != st.Mtim {
		return storage.Object{}, errAgain
	}
	return object(p.item, &st, a), nil
}

// A reader reads a file, and tells at its end whether it was one and the same all the time.
type reader struct {
	f       *os.File
	version string
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.f.Read(p)
	if err == io.EOF {
		st, serr := r.f.Stat()
		if serr != nil {
			return n, serr
		}
		if v := versionOf(st.ModTime().UnixNano()); v != r.version {
			return n, fmt.Errorf("%s was version %s and is %s: %w", r.f.Name(), r.version, v, storage.ErrChanged)
		}
	}
	return n, err
}

func (r *reader) Close() error { return r.f.Close() }

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
