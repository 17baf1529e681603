// Package file is a storage driver for directory trees, made for real archives: the
// items of a space are ordinary files below root/<space>, under their own names
// wherever a file system can hold them (see name.go for the rest).
//
// A file becomes visible whole or not at all, and is on disk when a call returns. An
// item exists if and only if its bytes do: files that others put into the tree are items,
// without digests, and with properties that are unknown. Properties and digests are kept in
// an extended attribute of the item's file (attr.go), or beside the tree, in root/.millrace
// (sidecar.go). The bytes are read whatever became of those.
// No symbolic link below the root is ever followed, and nothing but regular files is
// an item. Several processes may use one root, on several machines if locks on bytes of
// files work between them. Nothing is written into a root that is not marked as the store,
// unless Config.Unmarked says so. An item that is found to be absent is absent only if
// Marker succeeds afterwards.
//
// An item's version is its modification time: a file whose bytes were changed behind
// the driver's back and whose time was set back is still the version that it was, and
// its recorded digests still speak of it. That is what a fixity check is for.
//
// Names are not spread over more directories than people gave them: a directory of ext4 takes its
// millionth file in 16 µs where it took its first in 12. The sidecars of a space are, over 64.
//
// A Plain is a store of an ordinary tree that nobody wrote with this package.
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
	// Unmarked lets writes into a Root that has no marker. Without it only WriteMarker does that: Root may be the
	// mount point of a disk that is not mounted. It never lets writes into a root that is marked as another store.
	Unmarked bool
	// ReadOnly refuses all writes, and writes nothing of its own.
	ReadOnly bool
	// digests are the algorithms kept as evidence S; nil: md5 and sha256.
	digests []string
	// now is the clock that files are dated by; nil: the machine's.
	now func() time.Time
	// format is that of a root that this store marks; 0: the newest that the file system has room for.
	format int
	// attrRoom is how long an attribute may be; 0: as the file system says. Negative: there are none.
	maxAttr int
	// step is called between the effects of a mutation; its error is that of the next one. nil: nothing is called.
	step func(done string) error
	// Skipped, where it is set, is told by listings of what is in the tree and is no
	// item or space: its path below Root, which may be any bytes, and why. It may be
	// called by many at once.
	Skipped func(path, reason string)
}

// A Store is a storage.Store in a directory tree.
type Store struct {
	root
	cfg   Config
	pool  *digest.Pool
	locks *stripes
	bufs  sync.Pool // of *[]byte, for streaming
	// window is how many names of a directory a listing holds.
	window int

	clock sync.Mutex // guards last
	last  int64      // what now returned last, in ns
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
	dir, err := filepath.Abs(cfg.Root)
	if err != nil {
		return nil, err
	}
	cfg.Root = dir
	if cfg.digests == nil {
		cfg.digests = []string{digest.MD5, digest.SHA256}
	}
	if cfg.now == nil {
		cfg.now = time.Now
	}
	pool, err := digest.NewPool(cfg.digests...)
	if err != nil {
		return nil, fmt.Errorf("file store %q: %w", cfg.ID, err)
	}
	if cfg.Create && !cfg.ReadOnly {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, fmt.Errorf("make root of file store %q: %w", cfg.ID, err)
		}
	}
	s := &Store{cfg: cfg, pool: pool, locks: newStripes(), window: windowNames, root: root{dir: dir, isStore: (*session).hasOwnDir}}
	s.bufs.New = func() any { b := make([]byte, bufBytes); return &b }
	if s.sess, err = openSession(dir); err != nil {
		return nil, fmt.Errorf("open root of file store %q: %w", cfg.ID, err)
	}
	if s.sess.foldsOwnDir() {
		err = retry.Unavailable(fmt.Errorf("%w: the file system takes upper and lower case for the same", errFolded))
	} else if !cfg.ReadOnly && s.sess.hasOwnDir() {
		err = s.allowWrites(s.sess)
	}
	// What takes no writes now, a full disk, a read-only one or one without a marker, can be read.
	if err != nil && (retry.ClassOf(err) != retry.ClassUnavailable || errors.Is(err, errFolded)) {
		return nil, errors.Join(fmt.Errorf("open file store %q in %s: %w", cfg.ID, dir, err), s.Close())
	}
	return s, nil
}

// Capabilities implements storage.Store.
func (s *Store) Capabilities() storage.Capabilities {
	w := !s.cfg.ReadOnly
	return storage.Capabilities{
		Kind: "file", TimeResolution: time.Nanosecond, ConditionalPut: w, ConditionalDelete: w, UniqueVersions: true,
		KeepsReplaced: w, Digests: slices.Clone(s.cfg.digests), SetProperties: w, ReadOnly: !w,
	}
}

// enterWrite is enter for calls that change something. Its errors are marked by storage.NotApplied.
func (s *Store) acquireForWrite() (*session, error) { return s.acquireAfter(s.allowWrites) }

// enterFor is enter for calls that write, once ready has returned nil for the session.
func (s *Store) acquireAfter(ready func(*session) error) (*session, error) {
	if s.cfg.ReadOnly {
		return nil, storage.NotApplied(retry.Permanent(fmt.Errorf("store %q: %w", s.cfg.ID, storage.ErrReadOnly)))
	}
	sess, err := s.acquire()
	if err != nil {
		return nil, storage.NotApplied(err)
	}
	if err := ready(sess); err != nil {
		s.release(sess)
		return nil, storage.NotApplied(err)
	}
	return sess, nil
}

// admit has a session take writes, when it has read that its root is marked as this store.
func (s *Store) allowWrites(sess *session) error {
	if sess.writesAllowed.Load() {
		return nil
	}
	if _, err := s.writableFormat(sess); err != nil {
		return err
	}
	if err := sess.prepare(); err != nil {
		return err
	}
	format, err := s.writableFormat(sess) // once more: from prepare on no other process changes it
	if err != nil {
		return err
	}
	has := sess.supportsAttrs && s.cfg.maxAttr >= 0
	sess.useAttrs.Store(format == layoutAttrs && has)
	sess.attrsMissing.Store(format == layoutAttrs && !has)
	sess.writesAllowed.Store(true)
	return nil
}

// admits returns the layout of a root that takes our writes.
func (s *Store) writableFormat(sess *session) (format int, err error) {
	doc, err := s.marker(sess)
	switch {
	case err == nil:
		return doc.Format, nil
	case s.cfg.Unmarked && errors.Is(err, storage.ErrNoMarker):
		return s.newFormat(sess), nil
	}
	return 0, retry.Unavailable(err)
}

// now returns the clock's time, later than all that it returned before, unless the clock was far ahead then and has
// been set right.
func (s *Store) now() time.Time {
	t := s.cfg.now().UnixNano()
	s.clock.Lock()
	defer s.clock.Unlock()
	if s.last-t <= int64(maxSkew) {
		t = max(t, s.last+1)
	}
	s.last = t
	return time.Unix(0, t).UTC()
}

// did is called after each effect of a mutation.
func (s *Store) stepDone(effect string) error {
	if s.cfg.step == nil {
		return nil
	}
	return s.cfg.step(effect)
}

func (s *Store) skipped(path, reason string) {
	if s.cfg.Skipped != nil {
		s.cfg.Skipped(path, reason)
	}
}

func versionOf(ns int64) string { return strconv.FormatInt(ns, 10) }

// refine says of errors of the file system what it knows: a store that takes no writes
// now is away, and a name that is too long for it stays so.
func classify(err error) error {
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
