package file

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
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

	// attrs says that what is known of a file that we write goes into its attribute: layout 2, on a file system that has
	// attributes.
	useAttrs      atomic.Bool
	attrsMissing  atomic.Bool // the root has layout 2 and its file system no attributes; set before admitted
	syncs         syncGroup
	writesAllowed atomic.Bool // the marker was read and is right, and prepare has returned

	locksRemoved atomic.Bool // the file of locks was removed: others lock another one

	mu         sync.Mutex // guards prepare and gone
	oldScratch []*scratch // closed with the session: calls under way may use them
	ready      atomic.Bool
	// What follows is set once, before ready.
	supportsAttrs bool // the file system has attributes
	lockFD        int
	scratch       atomic.Pointer[scratch]
	counter       atomic.Uint64

	// pending holds directories that are being made and are not on disk yet.
	pending struct {
		n  atomic.Int32
		mu sync.Mutex
		m  map[string]chan struct{}
	}
}

const (
	scratchDir    = ownDir + "/scratch"
	tmpDir        = ownDir + "/tmp" // of older versions; in layout 2 it is a file, so that they cannot write
	lockFile      = ownDir + "/locks"
	markerFile    = ownDir + "/marker.json"
	metaDir       = ownDir + "/meta"
	quarantineDir = ownDir + "/quarantine"
)

func openSession(root string) (*session, error) {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, pathError("open", root, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(pathError("stat", root, err), unix.Close(fd))
	}
	s := &session{tree: newTree(fd), dev: st.Dev, ino: st.Ino, lockFD: -1, ordered: keepsOrder(fd, st.Dev)}
	s.pending.m = map[string]chan struct{}{}
	return s, nil
}

// keepsOrder reports whether the file system that fd is in is known to have one journal for all metadata.
func keepsOrder(fd int, dev uint64) bool {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return false
	}
	switch fs.Type {
	case unix.XFS_SUPER_MAGIC:
		return true
	case unix.EXT4_SUPER_MAGIC: // with a journal or without, as ext2, 3 or 4
		disk, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(dev), unix.Minor(dev)))
		if err != nil {
			return false
		}
		task, err := os.ReadFile("/sys/fs/ext4/" + path.Base(disk) + "/journal_task")
		return err == nil && journalled(string(task))
	}
	return false
}

// journalled reads the id of the process that writes ext4's journal. It is 0 if that process is in another
// namespace, and no number if there is no journal.
func journalled(task string) bool {
	_, err := strconv.Atoi(strings.TrimSpace(task))
	return err == nil
}

func (s *session) sameDir(st *unix.Stat_t) bool { return s.dev == st.Dev && s.ino == st.Ino }

func (s *session) hasOwnDir() bool {
	st, err := s.stat(ownDir)
	return err == nil && isDir(&st)
}

// close removes our temporary files and lets go of everything.
func (s *session) close() {
	if t := s.scratch.Load(); t != nil {
		_ = s.removeFlat(t.path) // what stays is removed by the next process
		s.oldScratch = append(s.oldScratch, t)
	}
	for _, t := range s.oldScratch {
		unix.Close(t.fd)
	}
	if s.lockFD >= 0 {
		unix.Close(s.lockFD)
	}
	unix.Close(s.fd)
}

// prepare makes what writing needs: our own directories, the file with the locks, and a
// directory for temporary files. It removes those whose processes are dead.
func (s *session) prepare() error {
	if s.ready.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready.Load() {
		return nil
	}
	for _, dir := range []string{ownDir, scratchDir, metaDir} {
		if err := s.mkdir(dir); err != nil {
			return classify(err)
		}
	}
	lockFD, err := s.create(lockFile, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return classify(err)
	}
	s.lockFD = lockFD
	if err := s.newScratch(); err != nil {
		s.lockFD = -1
		return errors.Join(classify(err), unix.Close(lockFD))
	}
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
			return pathError("mkdir", dir, err)
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
		return pathError("create", path, err)
	})
	return fd, err
}

// A scratch is a directory of one session for temporary files.
type scratch struct {
	path string
	fd   int // closed with the session
}

// renew gives the session a directory for temporary files, and removes those of the dead. A session is alive while
// it holds the lock on the byte of the file of locks that the name of its directory leads to, which all machines
// that share the file system see.
func (s *session) newScratch() (err error) {
	t := &scratch{path: scratchDir + "/" + schemas.NewID(), fd: -1}
	// No other process looks for the dead while our directory is not locked yet.
	if err := setLock(s.lockFD, openByte, unix.F_WRLCK, unix.F_OFD_SETLKW); err != nil {
		return pathError("lock", lockFile, err)
	}
	defer func() {
		if s.scratch.Load() != t { // it was refused, or failed
			if t.fd >= 0 {
				unix.Close(t.fd)
			}
			_ = s.removeFlat(t.path) // what stays is removed by the next process
			_ = setLock(s.lockFD, livenessByte(t.path), unix.F_UNLCK, unix.F_OFD_SETLK)
		}
		err = errors.Join(err, setLock(s.lockFD, openByte, unix.F_UNLCK, unix.F_OFD_SETLK))
	}()
	if err := setLock(s.lockFD, livenessByte(t.path), unix.F_WRLCK, unix.F_OFD_SETLK); err != nil {
		return pathError("lock", lockFile, err)
	}
	if err := s.mkdir(t.path); err != nil {
		return err
	}
	if t.fd, err = s.dir(t.path); err != nil {
		return err
	}
	if err := checkFolding(t.fd); err != nil {
		return retry.Unavailable(err)
	}
	if !s.ready.Load() {
		if s.supportsAttrs, err = probeAttrs(t.fd); err != nil {
			return err
		}
	}
	if err := errors.Join(s.removeDeadScratch(t.path), s.initSlots()); err != nil {
		return err
	}
	if was := s.scratch.Swap(t); was != nil {
		s.oldScratch = append(s.oldScratch, was)
	}
	return nil
}

// bar makes tmpDir a plain file, on disk. It has no directories of living processes.
func (s *session) blockOldVersions() error {
	if err := s.unlink(tmpDir, unix.AT_REMOVEDIR); err != nil {
		return err
	}
	fd, err := s.create(tmpDir, unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return err
	}
	return errors.Join(unix.Close(fd), s.syncDir(ownDir))
}

// aliveByte is the byte of the file of locks that the process of a directory for temporary files has locked. It is
// behind those of the stripes.
func livenessByte(dir string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(path.Base(dir))) // never fails
	return int64(h.Sum64()>>2) | 1<<32
}

// others calls f for each directory for temporary files but ours. alive says whether its process lives: one of an older
// version locks the directory only.
func (s *session) eachOtherScratch(ours string, f func(dir string, alive bool) error) error {
	for _, in := range []string{scratchDir, tmpDir} {
		names, err := s.names(in)
		if err != nil && !isAbsent(err) {
			return err
		}
		for _, name := range names {
			dir := in + "/" + name
			if dir == ours {
				continue
			}
			if err := s.visitScratch(dir, f); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) visitScratch(dir string, f func(dir string, alive bool) error) error {
	fd, err := s.dir(dir)
	if err != nil {
		return nil // not a directory of ours, or gone by now
	}
	defer unix.Close(fd)
	alive := setLock(s.lockFD, livenessByte(dir), unix.F_WRLCK, unix.F_OFD_SETLK) != nil
	if !alive {
		_ = setLock(s.lockFD, livenessByte(dir), unix.F_UNLCK, unix.F_OFD_SETLK) // cannot fail on a lock that is held
		alive = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil
	}
	return f(dir, alive)
}

// removeDead removes the temporary files of processes that are gone.
func (s *session) removeDeadScratch(ours string) error {
	return s.eachOtherScratch(ours, func(dir string, alive bool) error {
		if alive {
			return nil
		}
		if err := s.removeFlat(dir); err != nil {
			return fmt.Errorf("remove temporary files that were left: %w", err)
		}
		return nil
	})
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
		return pathError("remove", path, unix.Unlinkat(fd, name, flags))
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
	in   *scratch
	name string // in its directory; "" when it has moved
	fd   int
	size int64 // of what was written
}

func (t *temp) path() string { return t.in.path + "/" + t.name }

// temp makes a temporary file. If the directory for them has gone it makes that anew.
func (s *session) temp() (*temp, error) {
	for again := false; ; again = true {
		t := &temp{s: s, in: s.scratch.Load(), name: strconv.FormatUint(s.counter.Add(1), 36)}
		err := retryEINTR(func() (err error) {
			t.fd, err = unix.Openat(t.in.fd, t.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o666)
			return err
		})
		if err == nil {
			return t, nil
		}
		if again || !isRemoved(err) {
			return nil, pathError("create", t.path(), err)
		}
		if err := s.replaceScratch(t.in); err != nil {
			return nil, err
		}
	}
}

// lost reports whether an error is that of a directory that was removed; on NFS its handle is stale.
func isRemoved(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) }

// replace makes a directory for temporary files in place of one that has gone.
func (s *session) replaceScratch(gone *scratch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scratch.Load() != gone {
		return nil
	}
	if err := s.mkdir(scratchDir); err != nil {
		return err
	}
	return s.newScratch()
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
		_ = unix.Unlinkat(t.in.fd, t.name, 0) // else the next process removes it
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
			return done, pathError("write", t.path(), err)
		}
	}
}

// move gives the file its name in an opened directory, over what has it, or with
// RENAME_NOREPLACE only where nothing has. An error that is marked by storage.NotApplied
// says that the file is not there. On NFS an answer can get lost, and the error is then
// that of the request that was sent again.
func (t *temp) move(dir int, name string, flags uint) error {
	err := rename(t.in.fd, t.name, dir, name, flags)
	if err == nil {
		t.name = ""
		return nil
	}
	var own, st unix.Stat_t
	if serr := unix.Fstat(t.fd, &own); serr != nil {
		return err
	}
	switch serr := retryEINTR(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) }); {
	case serr == nil && st.Ino == own.Ino:
		t.name = ""
		return nil
	case serr != nil && !isAbsent(serr):
		return err
	}
	if isRemoved(err) && isRemoved(retryEINTR(func() error { return unix.Fstatat(t.in.fd, t.name, &st, unix.AT_SYMLINK_NOFOLLOW) })) {
		err = fmt.Errorf("%w: %w", errTempRemoved, pathError("rename", t.path(), err))
	}
	return storage.NotApplied(err)
}

// errRemoved is of a temporary file that somebody has removed: what is written must be written again.
var errTempRemoved = errors.New("the temporary file was removed under way")

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
