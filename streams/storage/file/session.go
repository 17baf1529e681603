package file

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/schemas"
)

// A session is one root directory, held open, with what this process keeps in it.
type session struct {
	tree
	dev, ino uint64
	// ordered says that the file system has one journal for all metadata: what is synced
	// in a directory brings all renames before it to disk, wherever they were.
	ordered bool

	users   int  // calls under way; guarded by Store.mu
	retired bool // closed when users is 0; guarded by Store.mu

	admitted atomic.Bool // the marker was read and is right, and prepare has returned

	mu    sync.Mutex // guards prepare
	ready atomic.Bool
	// What follows is set once, before ready.
	tmp     string // path of our directory for temporary files
	tmpFD   int    // the same, locked as long as we live
	lockFD  int
	counter atomic.Uint64

	// pending holds directories that are being made and are not on disk yet.
	pending struct {
		n  atomic.Int32
		mu sync.Mutex
		m  map[string]chan struct{}
	}
}

const (
	tmpDir     = ownDir + "/tmp"
	lockFile   = ownDir + "/locks"
	markerFile = ownDir + "/marker.json"
	metaDir    = ownDir + "/meta"
	keptDir    = ownDir + "/quarantine"
)

func openSession(root string) (*session, error) {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, named("open", root, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(named("stat", root, err), unix.Close(fd))
	}
	s := &session{tree: newTree(fd), dev: st.Dev, ino: st.Ino, tmpFD: -1, lockFD: -1}
	var fs unix.Statfs_t
	s.ordered = unix.Fstatfs(fd, &fs) == nil && (fs.Type == unix.EXT4_SUPER_MAGIC || fs.Type == unix.XFS_SUPER_MAGIC)
	s.pending.m = map[string]chan struct{}{}
	return s, nil
}

func (s *session) is(st *unix.Stat_t) bool { return s.dev == st.Dev && s.ino == st.Ino }

func (s *session) hasOwnDir() bool {
	st, err := s.stat(ownDir)
	return err == nil && isDir(&st)
}

// close removes our temporary files and lets go of everything.
func (s *session) close() {
	if s.tmpFD >= 0 {
		_ = s.removeFlat(s.tmp) // what stays is removed by the next process
		unix.Close(s.tmpFD)
	}
	if s.lockFD >= 0 {
		unix.Close(s.lockFD)
	}
	unix.Close(s.fd)
}

// prepare makes what writing needs: our own directories, the file with the locks, and a
// directory for temporary files that is known to be ours by a lock on it. It removes
// those whose processes are dead.
func (s *session) prepare() error {
	if s.ready.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready.Load() {
		return nil
	}
	for _, dir := range []string{ownDir, tmpDir, metaDir} {
		if err := s.mkdir(dir); err != nil {
			return refine(err)
		}
	}
	lockFD, err := s.create(lockFile, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return refine(err)
	}
	// No other process looks for the dead while our directory is not locked yet.
	if err := setLock(lockFD, openStripe, unix.F_WRLCK, unix.F_OFD_SETLKW); err != nil {
		return errors.Join(named("lock", lockFile, err), unix.Close(lockFD))
	}
	tmp := tmpDir + "/" + schemas.NewID()
	tmpFD, err := s.lockedDir(tmp)
	if err == nil {
		err = s.removeDead()
	}
	if err := errors.Join(err, setLock(lockFD, openStripe, unix.F_UNLCK, unix.F_OFD_SETLK)); err != nil {
		if tmpFD >= 0 {
			unix.Close(tmpFD)
		}
		return errors.Join(refine(err), unix.Close(lockFD))
	}
	s.lockFD, s.tmpFD, s.tmp = lockFD, tmpFD, tmp
	s.ready.Store(true)
	return nil
}

// mkdir makes a directory that may be there; what is above it is.
func (s *session) mkdir(dir string) error {
	return s.within(dir, func(fd int, name string) error {
		switch err := unix.Mkdirat(fd, name, 0o777); err {
		case nil:
			return fsync(fd, dir)
		case unix.EEXIST:
			return nil
		default:
			return named("mkdir", dir, err)
		}
	})
}

// create opens a file that may have to be made.
func (s *session) create(path string, flags int) (fd int, err error) {
	err = s.within(path, func(dir int, name string) error {
		err := retryEINTR(func() (err error) {
			fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o666)
			return err
		})
		return named("create", path, err)
	})
	return fd, err
}

func (s *session) lockedDir(dir string) (int, error) {
	if err := s.mkdir(dir); err != nil {
		return -1, err
	}
	fd, err := s.dir(dir)
	if err != nil {
		return -1, err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return -1, errors.Join(named("lock", dir, err), unix.Close(fd))
	}
	return fd, nil
}

// removeDead removes the temporary files of processes that are gone.
func (s *session) removeDead() error {
	names, err := s.names(tmpDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		dir := tmpDir + "/" + name
		fd, err := s.dir(dir)
		if err != nil {
			continue // not a directory of ours, or gone by now
		}
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = s.removeFlat(dir)
		}
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("remove temporary files that were left: %w", err)
		}
	}
	return nil
}

// removeFlat removes a directory and the files in it.
func (s *session) removeFlat(dir string) error {
	names, err := s.names(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.unlink(dir+"/"+name, 0); err != nil {
			return err
		}
	}
	return s.unlink(dir, unix.AT_REMOVEDIR)
}

// unlink removes a file or an empty directory, which may be gone already.
func (s *session) unlink(path string, flags int) error {
	err := s.within(path, func(fd int, name string) error {
		return named("remove", path, unix.Unlinkat(fd, name, flags))
	})
	if isAbsent(err) {
		return nil
	}
	return err
}

// names lists a directory, in no order.
func (s *session) names(dir string) ([]string, error) {
	fd, err := s.dir(dir)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	return f.Readdirnames(-1)
}

// A temp is a file that nobody sees yet.
type temp struct {
	s    *session
	name string // in the session's directory for temporary files; "" when it has moved
	fd   int
	size int64 // of what was written
}

func (s *session) temp() (*temp, error) {
	t := &temp{s: s, name: strconv.FormatUint(s.counter.Add(1), 36)}
	err := retryEINTR(func() (err error) {
		t.fd, err = unix.Openat(s.tmpFD, t.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o666)
		return err
	})
	if err != nil {
		return nil, named("create", s.tmp+"/"+t.name, err)
	}
	return t, nil
}

// tempOf returns a temporary file with these bytes, which are not synced.
func (s *session) tempOf(b []byte) (*temp, error) {
	t, err := s.temp()
	if err != nil {
		return nil, err
	}
	if _, err := t.Write(b); err != nil {
		t.discard()
		return nil, err
	}
	return t, nil
}

// discard closes the file, and removes it unless it has moved.
func (t *temp) discard() {
	unix.Close(t.fd)
	if t.name != "" {
		_ = unix.Unlinkat(t.s.tmpFD, t.name, 0) // else the next process removes it
	}
}

func (t *temp) Write(p []byte) (int, error) {
	for done := 0; ; {
		var n int
		err := retryEINTR(func() (err error) { n, err = unix.Write(t.fd, p[done:]); return err })
		if n > 0 {
			done += n
			t.size += int64(n)
		}
		if err != nil || done == len(p) {
			return done, named("write", t.s.tmp+"/"+t.name, err)
		}
	}
}

// move gives the file its name in an opened directory, over what has it, or with
// RENAME_NOREPLACE only where nothing has.
func (t *temp) move(dir int, name string, flags uint) error {
	err := rename(t.s.tmpFD, t.name, dir, name, flags)
	if err == nil {
		t.name = ""
	}
	return err
}

// rename is renameat2. Where a file system does not know RENAME_NOREPLACE a link does the same.
func rename(fromDir int, from string, toDir int, to string, flags uint) error {
	err := retryEINTR(func() error { return unix.Renameat2(fromDir, from, toDir, to, flags) })
	if flags == unix.RENAME_NOREPLACE && (err == unix.EINVAL || err == unix.ENOSYS) {
		if err = unix.Linkat(fromDir, from, toDir, to, 0); err == nil {
			err = unix.Unlinkat(fromDir, from, 0)
		}
	}
	return err
}
