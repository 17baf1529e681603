// Package file is a storage driver for directory trees, made for real archives: the
// items of a space are ordinary files below root/<space>, under their own names
// wherever a file system can hold them (see name.go for the rest).
//
// A file becomes visible whole or not at all, and is on disk when a call returns. An
// item exists if and only if its bytes do: files that others put into the tree are items,
// without digests. Properties and digests are kept beside the tree, in root/.millrace.
// No symbolic link below the root is ever followed, and nothing but regular files is
// an item. Several processes may use one root. An item that is found to be absent is
// absent only if Marker succeeds afterwards.
//
// An item's version is its modification time: a file whose bytes were changed behind
// the driver's back and whose time was set back is still the version that it was, and
// its recorded digests still speak of it. That is what a fixity check is for.
//
// The package wants Linux.
package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Config is how a Store is opened.
type Config struct {
	ID   string // the store's id, in its marker
	Root string // a directory; it may be reached through symbolic links
	// Create makes Root, and what is above it, where it is missing.
	Create bool
	// ReadOnly refuses all writes, and writes nothing of its own.
	ReadOnly bool
	// Digests are the algorithms kept as evidence S; nil: md5 and sha256.
	Digests []string
	// Now is the clock that files are dated by; nil: the machine's.
	Now func() time.Time
	// Skipped, where it is set, is told by listings of what is in the tree and is no
	// item or space: its path below Root, which may be any bytes, and why. It may be
	// called by many at once.
	Skipped func(path, reason string)
}

// A Store is a storage.Store in a directory tree.
type Store struct {
	cfg   Config
	pool  *digest.Pool
	locks *stripes
	bufs  sync.Pool // of *[]byte, for streaming

	mu     sync.Mutex // guards what follows
	sess   *session
	closed bool
	last   int64 // the newest time given to a file, in ns; times only grow
}

var _ storage.Store = (*Store)(nil)

const bufBytes = 256 << 10

// Open opens the tree below cfg.Root. It removes temporary files of processes that died.
func Open(cfg Config) (*Store, error) {
	if cfg.ID == "" {
		return nil, errors.New("file store has no id")
	}
	if cfg.Root == "" {
		return nil, fmt.Errorf("file store %q has no root", cfg.ID)
	}
	root, err := filepath.Abs(cfg.Root)
	if err != nil {
		return nil, err
	}
	cfg.Root = root
	if cfg.Digests == nil {
		cfg.Digests = []string{digest.MD5, digest.SHA256}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	pool, err := digest.NewPool(cfg.Digests...)
	if err != nil {
		return nil, fmt.Errorf("file store %q: %w", cfg.ID, err)
	}
	if cfg.Create && !cfg.ReadOnly {
		if err := os.MkdirAll(root, 0o777); err != nil {
			return nil, fmt.Errorf("make root of file store %q: %w", cfg.ID, err)
		}
	}
	s := &Store{cfg: cfg, pool: pool, locks: newStripes()}
	s.bufs.New = func() any { b := make([]byte, bufBytes); return &b }
	if s.sess, err = openSession(root); err != nil {
		return nil, fmt.Errorf("open root of file store %q: %w", cfg.ID, err)
	}
	if !cfg.ReadOnly && s.sess.hasOwnDir() {
		if err := s.sess.prepare(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// Close lets go of the tree. Calls that are under way may end first; others fail.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.retire()
	}
	return nil
}

// retire forgets the session, which is closed when the last call leaves it; s.mu is held.
func (s *Store) retire() {
	if sess := s.sess; sess != nil {
		s.sess = nil
		if sess.retired = true; sess.users == 0 {
			sess.close()
		}
	}
}

// Capabilities implements storage.Store.
func (s *Store) Capabilities() storage.Capabilities {
	return storage.Capabilities{
		Kind: "file", TimeResolution: time.Nanosecond, ConditionalPut: true, ConditionalDelete: true, UniqueVersions: true,
		KeepsReplaced: true, Digests: slices.Clone(s.cfg.Digests), SetProperties: true, ReadOnly: s.cfg.ReadOnly,
	}
}

var errClosed = errors.New("file store is closed")

// enter returns the session of the root as it is now; the caller leaves it. A root that
// is gone, or that is another directory now without our own in it (a disk that is not
// mounted), is no store: all of it is unknown.
func (s *Store) enter() (*session, error) {
	var st unix.Stat_t
	err := retryEINTR(func() error { return unix.Stat(s.cfg.Root, &st) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if err != nil {
		return nil, s.gone(err)
	}
	if s.sess == nil || !s.sess.is(&st) {
		sess, err := openSession(s.cfg.Root)
		if err != nil {
			return nil, s.gone(err)
		}
		if !sess.hasOwnDir() {
			sess.close()
			return nil, s.gone(errors.New("another directory is in its place"))
		}
		s.retire()
		s.sess = sess
	}
	s.sess.users++
	return s.sess, nil
}

func (s *Store) gone(err error) error {
	return retry.Unavailable(fmt.Errorf("root %s: %w: %w", s.cfg.Root, storage.ErrNoMarker, err))
}

// enterWrite is enter for calls that change something.
func (s *Store) enterWrite() (*session, error) {
	if s.cfg.ReadOnly {
		return nil, retry.Permanent(fmt.Errorf("store %q: %w", s.cfg.ID, storage.ErrReadOnly))
	}
	sess, err := s.enter()
	if err != nil {
		return nil, err
	}
	if err := sess.prepare(); err != nil {
		s.leave(sess)
		return nil, err
	}
	return sess, nil
}

func (s *Store) leave(sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess.users--; sess.users == 0 && sess.retired {
		sess.close()
	}
}

// now returns the clock's time, later than all that it returned before.
func (s *Store) now() time.Time {
	t := s.cfg.Now().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(t, s.last+1)
	return time.Unix(0, s.last).UTC()
}

// passed has now return times that are not before t from here on.
func (s *Store) passed(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last, t.UnixNano())
}

func (s *Store) skipped(path, reason string) {
	if s.cfg.Skipped != nil {
		s.cfg.Skipped(path, reason)
	}
}

func versionOf(ns int64) string { return strconv.FormatInt(ns, 10) }

// refine says of errors of the file system what it knows: a store that takes no writes
// now is away, and a name that is too long for it stays so.
func refine(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EROFS):
		return retry.Unavailable(fmt.Errorf("%w: %w", storage.ErrReadOnly, err))
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return retry.Unavailable(err)
	case errors.Is(err, unix.ENAMETOOLONG):
		return retry.Permanent(fmt.Errorf("%w: %w", storage.ErrName, err))
	}
	return err
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
