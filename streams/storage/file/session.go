package file

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A session is an open root directory with this process's locks and temporary files in it.
type session struct {
	tree
	dev, ino uint64
	// ordered: the file system has one journal for all metadata, so an fsync of one directory also makes
	// all earlier renames durable, in whatever directory.
	ordered bool
	local   bool // isLocal

	users   int  // active calls; guarded by root.mu
	retired bool // close when users is 0; guarded by root.mu

	// useAttrs: metadata is written to the attribute of a file, unless the marker says sidecars or the file system has
	// no attributes.
	useAttrs      atomic.Bool
	attrsMissing  atomic.Bool // the marker does not say sidecars, and attributes are missing; set before writesAllowed
	syncs         syncGroup
	writesAllowed atomic.Bool // the marker is the right one and prepare has succeeded

	locksRemoved atomic.Bool // the lock file was removed; other processes may use a new one

	mu         sync.Mutex // guards prepare and oldScratch
	oldScratch []*scratch // active calls may use them; closed with the session
	ready      atomic.Bool
	// The fields below are set before ready.
	supportsAttrs bool // the file system has attributes
	wholeSeconds  bool // the file system keeps no parts of seconds
	lockFD        int
	scratch       atomic.Pointer[scratch]
	counter       atomic.Uint64

	// pending holds the paths of new directories that are not durable yet. A channel is closed when its directory is.
	pending struct {
		n  atomic.Int32
		mu sync.Mutex
		m  map[string]chan struct{}
	}
}

const (
	scratchDir    = ownDir + "/scratch"
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
	kind := fileSystem(fd)
	s := &session{tree: newTree(fd), dev: st.Dev, ino: st.Ino, lockFD: -1, ordered: keepsOrder(kind, st.Dev),
		local: isLocal(kind)}
	s.pending.m = map[string]chan struct{}{}
	return s, nil
}

// fileSystem returns the kind of the file system of fd; 0: it is unknown.
func fileSystem(fd int) int64 {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0
	}
	return fs.Type
}

// isLocal reports whether a file system sets the change times of files itself, at each write, by the clock of this
// machine. Of others it is not known: they may be set by a server, late, or not at all.
func isLocal(kind int64) bool {
	const zfs = 0x2fc12fc1
	return slices.Contains([]int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC,
		unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, zfs}, kind)
}

// keepsOrder reports whether a file system is known to have one journal for all metadata.
func keepsOrder(kind int64, dev uint64) bool {
	switch kind {
	case unix.XFS_SUPER_MAGIC:
		return true
	case unix.EXT4_SUPER_MAGIC: // ext2, ext3 or ext4, with or without a journal
		disk, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(dev), unix.Minor(dev)))
		if err != nil {
			return false
		}
		task, err := os.ReadFile("/sys/fs/ext4/" + path.Base(disk) + "/journal_task")
		return err == nil && journalled(string(task))
	}
	return false
}

// journalled reports whether task, the content of ext4's journal_task, is a process id. It is 0 if the journal
// process is in another PID namespace, and not a number if there is no journal.
func journalled(task string) bool {
	_, err := strconv.Atoi(strings.TrimSpace(task))
	return err == nil
}

func (s *session) sameDir(st *unix.Stat_t) bool { return s.dev == st.Dev && s.ino == st.Ino }

func (s *session) hasOwnDir() bool {
	st, err := s.stat(ownDir)
	return err == nil && isDir(&st)
}

// close removes the session's temporary files and closes its descriptors.
func (s *session) close() {
	if t := s.scratch.Load(); t != nil {
		_ = s.removeFlat(t.path) // the next process removes what remains
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

// prepare creates what writes need: the directories below ownDir, the lock file and a scratch directory. It removes
// the scratch directories of dead processes.
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

// mkdir makes a directory unless it exists. Its parent exists.
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

// create opens a file relative to the root. flags say whether it is created.
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

// A scratch is the directory of one session for temporary files.
type scratch struct {
	path string
	fd   int // closed with the session
}

// newScratch gives the session a new scratch directory and removes those of dead sessions. A session is alive while it
// holds the lock on the liveness byte of its scratch directory in the lock file; all machines that share the file
// system see that lock.
func (s *session) newScratch() (err error) {
	t := &scratch{path: scratchDir + "/" + schemas.NewID(), fd: -1}
	// Until the new directory's liveness byte is locked, no other process may look for dead sessions.
	if err := setLock(s.lockFD, openByte, unix.F_WRLCK, unix.F_OFD_SETLKW); err != nil {
		return pathError("lock", lockFile, err)
	}
	defer func() {
		if s.scratch.Load() != t { // a step below failed
			if t.fd >= 0 {
				unix.Close(t.fd)
			}
			_ = s.removeFlat(t.path) // the next process removes what remains
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
		if s.wholeSeconds, err = probeTimes(t.fd); err != nil {
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

// livenessByte returns the offset in the lock file that the process of a scratch directory locks. It is above the
// offsets of the stripes.
func livenessByte(dir string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(path.Base(dir))) // never fails
	return int64(h.Sum64()>>2) | 1<<32
}

// removeDeadScratch removes the scratch directories of dead processes, except ours.
func (s *session) removeDeadScratch(ours string) error {
	names, err := s.names(scratchDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		dir := scratchDir + "/" + name
		fd, err := s.dir(dir)
		if err != nil {
			continue // not a scratch directory, or removed meanwhile
		}
		unix.Close(fd)
		if dir == ours || setLock(s.lockFD, livenessByte(dir), unix.F_WRLCK, unix.F_OFD_SETLK) != nil {
			continue // its process is alive
		}
		_ = setLock(s.lockFD, livenessByte(dir), unix.F_UNLCK, unix.F_OFD_SETLK) // cannot fail on a lock that is held
		if err := s.removeFlat(dir); err != nil {
			return fmt.Errorf("remove temporary files of a dead process: %w", err)
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

// unlink removes a file or an empty directory. It succeeds if there is none.
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

// A temp is a temporary file in a scratch directory.
type temp struct {
	s    *session
	in   *scratch
	name string // in the scratch directory; "" after it was renamed
	fd   int
	size int64 // bytes written
}

func (t *temp) path() string { return t.in.path + "/" + t.name }

// temp creates a temporary file. If the scratch directory was removed, it creates a new one first.
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

// isRemoved reports whether an error means that an open directory was removed; NFS reports a stale handle.
func isRemoved(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) }

// replaceScratch creates a new scratch directory if gone, which was removed, is still the current one.
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

// tempOf returns a temporary file with the bytes b. It does not sync.
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

// discard closes the file, and removes it unless it was renamed.
func (t *temp) discard() {
	unix.Close(t.fd)
	if t.name != "" {
		_ = unix.Unlinkat(t.in.fd, t.name, 0) // on error the next process removes it
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

// move renames the file to name in an opened directory. It replaces an existing file, unless flags is
// RENAME_NOREPLACE. If an error is marked with storage.NotApplied, the file does not have the new name. NFS can lose a
// response and send the request again; the error is then about the second request, so move checks which file has the
// name.
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
	if isRemoved(err) {
		serr := retryEINTR(func() error { return unix.Fstatat(t.in.fd, t.name, &st, unix.AT_SYMLINK_NOFOLLOW) })
		if isRemoved(serr) {
			err = fmt.Errorf("%w: %w", errTempRemoved, pathError("rename", t.path(), err))
		}
	}
	return storage.NotApplied(err)
}

// errTempRemoved means that another program removed a temporary file. The write must be repeated from its start.
var errTempRemoved = errors.New("the temporary file was removed during the write")

// rename is renameat2. If the file system does not support RENAME_NOREPLACE, it links and unlinks instead.
func rename(fromDir int, from string, toDir int, to string, flags uint) error {
	err := retryEINTR(func() error { return unix.Renameat2(fromDir, from, toDir, to, flags) })
	if flags == unix.RENAME_NOREPLACE && (err == unix.EINVAL || err == unix.ENOSYS) {
		if err = unix.Linkat(fromDir, from, toDir, to, 0); err == nil {
			err = unix.Unlinkat(fromDir, from, 0)
		}
	}
	return err
}
