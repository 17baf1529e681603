// Package file stores items as ordinary files in a directory tree. The files of a space
// are below root/<space>, under the item's own id wherever the file system can hold it as
// a name (name.go describes the escapes).
//
// A write becomes visible as a whole or not at all, and is durable when the call returns.
// An item exists if and only if its file exists: a file that another program put into the
// tree is an item without digests, and its properties are unknown. Properties and digests
// are in an extended attribute of the file (attr.go), or in a sidecar file below
// root/.millrace (sidecar.go). The bytes can be read even if the attribute and the sidecar
// are lost or damaged.
//
// Only regular files are items. Symbolic links below the root are never followed. Several
// processes may use one root, also on several machines if byte-range locks work between
// them. A root without the store's marker is never written to, unless Config.Unmarked is
// set. A result that says that an item is absent is valid only if Marker succeeds afterwards.
//
// The version of an item is the modification time of its file. If another program changes
// the bytes and restores the modification time, the version and the recorded digests stay
// the same; a fixity check finds the difference.
//
// Items are not spread over hashed directories: creating the millionth file of an ext4
// directory takes 16 µs, the first one 12 µs. The sidecars of a space are spread over 64.
//
// Plain is a read-only store of a tree that was not written with this package.
//
// The package needs Linux.
package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Config configures a Store.
type Config struct {
	ID   string // the store's id, in its marker
	Root string // a directory; it may be reached through symbolic links
	// Create makes Root and its parents if they do not exist.
	Create bool
	// Unmarked allows writes to a Root without a marker. By default only WriteMarker writes to such a Root, because it
	// may be the mount point of a disk that is not mounted. A Root with the marker of another store is never written to.
	Unmarked bool
	// ReadOnly refuses all writes. The Store then creates no files of its own.
	ReadOnly bool
	// digests are the algorithms of the digests that Put computes and records; nil: md5 and sha256.
	digests []string
	// now is the clock for modification times; nil: the system clock.
	now func() time.Time
	// sidecars writes metadata to sidecars in a Root that gets its marker, as on a file system without attributes.
	sidecars bool
	// maxAttr bounds the length of an attribute, in bytes; 0: the limit of the file system. Negative: no attributes.
	maxAttr int
	// step is a test hook. A mutation calls it after each of its effects, and fails if it returns an error.
	step func(done string) error
	// Skipped, if set, is called by listings for each entry of the tree that is neither an item nor a space, with
	// its path below Root (arbitrary bytes) and the reason. It must be safe for concurrent use.
	Skipped func(path, reason string)
}

// A Store is a storage.Store in a directory tree.
type Store struct {
	root
	cfg   Config
	pool  *digest.Pool
	locks *stripes
	bufs  sync.Pool // of *[]byte, for streaming
	// window is the number of names of one directory that a listing holds in memory.
	window       int
	wholeSeconds atomic.Bool // session.wholeSeconds

	clock sync.Mutex // guards last
	last  int64      // the last result of now, in ns since 1970
}

var _ storage.Store = (*Store)(nil)

const bufBytes = 256 << 10

// Open opens the tree below cfg.Root and removes the temporary files of processes that died. It fails if the
// file system folds names. If the root cannot be written to now (the disk is full or read-only, the marker is
// missing), Open succeeds: the store can be read, and writes return the reason.
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
	s := &Store{
		cfg: cfg, pool: pool, locks: newStripes(), window: windowNames,
		root: root{dir: dir, readOnly: cfg.ReadOnly, isStore: (*session).hasOwnDir},
	}
	s.bufs.New = func() any { b := make([]byte, bufBytes); return &b }
	if s.sess, err = openSession(dir); err != nil {
		return nil, fmt.Errorf("open root of file store %q: %w", cfg.ID, s.explain(err))
	}
	if s.sess.foldsOwnDir() {
		err = retry.Unavailable(fmt.Errorf("%w: the file system treats upper and lower case as the same", errFolded))
	} else if !cfg.ReadOnly && s.sess.hasOwnDir() {
		err = s.allowWrites(s.sess)
	}
	// A root that cannot be written to now can still be read.
	if err != nil && (retry.ClassOf(err) != retry.ClassUnavailable || errors.Is(err, errFolded)) {
		return nil, errors.Join(fmt.Errorf("open file store %q in %s: %w", cfg.ID, dir, err), s.Close())
	}
	return s, nil
}

// Capabilities implements storage.Store.
func (s *Store) Capabilities() storage.Capabilities {
	w := !s.cfg.ReadOnly
	return storage.Capabilities{
		Kind: "file", TimeResolution: s.resolution(), ConditionalPut: w, ConditionalDelete: w, UniqueVersions: true,
		KeepsReplaced: w, Digests: slices.Clone(s.cfg.digests), SetProperties: w, ReadOnly: !w,
	}
}

// acquireForWrite is acquire for mutations. Its errors are marked with storage.NotApplied.
func (s *Store) acquireForWrite() (*session, error) { return s.acquireAfter(s.allowWrites) }

// acquireAfter returns a session for a mutation after ready has succeeded on it.
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
		if errors.Is(err, ErrDenied) {
			err = retry.Unavailable(err)
		}
		return nil, storage.NotApplied(err)
	}
	return sess, nil
}

// allowWrites prepares a session for writes if the marker of its root is that of this store.
func (s *Store) allowWrites(sess *session) error {
	if sess.writesAllowed.Load() {
		return nil
	}
	doc, err := s.marker(sess)
	unmarked := s.cfg.Unmarked && errors.Is(err, storage.ErrNoMarker)
	if err != nil && !unmarked {
		return retry.Unavailable(err)
	}
	if err := s.prepare(sess); err != nil {
		return err
	}
	if unmarked {
		doc = s.newMarker(sess)
	}
	sess.useAttrs.Store(!doc.Sidecars && s.hasAttrs(sess))
	sess.attrsMissing.Store(!doc.Sidecars && !s.hasAttrs(sess))
	sess.writesAllowed.Store(true)
	return nil
}

// ErrDenied means that the user of this process may not use the directory of a store. An error that wraps it names the
// owner (package denied).
var ErrDenied = errors.New("file store belongs to another user")

// deniedError is an error that wraps ErrDenied and does not repeat it.
type deniedError struct{ error }

func (e deniedError) Is(target error) bool { return target == ErrDenied }
func (e deniedError) Unwrap() error        { return e.error }

// explainDenied returns an error that wraps ErrDenied if err reports a lack of permission, otherwise err.
func (s *Store) explainDenied(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return deniedError{s.explain(err)}
}

func (s *Store) prepare(sess *session) error {
	err := s.explainDenied(sess.prepare())
	if err == nil {
		s.wholeSeconds.Store(sess.wholeSeconds)
	}
	return err
}

// resolution returns the resolution of the times of files, as far as it is known: from the first write on.
func (s *Store) resolution() time.Duration {
	if s.wholeSeconds.Load() {
		return time.Second
	}
	return time.Nanosecond
}

// now returns the current time, or 1 ns after its last result if that is later, so that results increase. If the
// last result is more than maxSkew ahead, the clock has been corrected, and results continue from the clock.
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

// stepDone calls the test hook after an effect of a mutation.
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

// classify adds the retry class to an error of the file system: a full or read-only disk makes the store
// unavailable, a name that is too long is a permanent error.
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
