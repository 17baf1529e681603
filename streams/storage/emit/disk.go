package emit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A disk is the directory of an outbox: what may fail at any step, and forget what was not synced.
type disk interface {
	// names returns the files, in no order.
	names() ([]string, error)
	// open opens a file; with create it is made, and must not be there.
	open(name string, create bool) (diskFile, error)
	rename(from, to string) error
	remove(name string) error
	// sync has made, renamed and removed files on disk.
	sync() error
}

type diskFile interface {
	readWriterAt
	io.Closer
	Sync() error
	Truncate(size int64) error
	size() (int64, error)
}

type readWriterAt interface {
	io.ReaderAt
	io.WriterAt
}

// A directory is a disk, and locked.
type directory struct {
	path     string
	lock     *os.File // nil: it has none, and is only read
	readOnly bool
	// self is open all the time, to be synced, unless the directory is only read: an fsync that had to open it could
	// fail for want of a descriptor, and would miss an error of writing that another open file has been told of.
	self *os.File
}

var _ disk = (*directory)(nil)

// ErrLocked is what an error wraps where another has the outbox open.
var ErrLocked = errors.New("outbox is in use")

const lockName = "lock"

// openDirectory makes a directory where it is missing, and locks it.
func openDirectory(path string) (*directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make outbox: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock outbox: %w", err)
	}
	if err := flock(lock, unix.LOCK_EX); err != nil {
		defer lock.Close()
		if flock(lock, unix.LOCK_SH) == nil {
			return nil, fmt.Errorf("outbox %s: %w by a process that reads it, as outbox check does", path, ErrLocked)
		}
		return nil, locked(path, lock, err)
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	if err := errors.Join(lock.Truncate(0), writeAt(lock, []byte(pid), 0)); err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock outbox %s: %w", path, err)
	}
	self, err := os.Open(path)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	return &directory{path: path, lock: lock, self: self}, nil
}

// readDirectory opens a directory to read it, and keeps writers out if it has a lock. Nothing is written: an outbox that
// was ever opened to be written has a lock.
func readDirectory(path string) (*directory, error) {
	d := &directory{path: path, readOnly: true}
	lock, err := os.Open(filepath.Join(path, lockName))
	if isNotExist(err) {
		return d, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock outbox: %w", err)
	}
	if err := flock(lock, unix.LOCK_SH); err != nil {
		defer lock.Close()
		return nil, locked(path, lock, err)
	}
	d.lock = lock
	return d, nil
}

func (d *directory) close() (err error) {
	if d.self != nil {
		err = d.self.Close()
	}
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != unix.EINTR {
			return err
		}
	}
}

// locked returns the error of a lock that was not given: if another has it, with the process that has the outbox open.
func locked(path string, lock *os.File, err error) error {
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("lock outbox %s: %w", path, err)
	}
	return fmt.Errorf("outbox %s: %w by %s", path, ErrLocked, holder(lock))
}

// holder names the process that has an outbox open, as far as it is known.
func holder(lock *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(lock, 0, 32))
	pid, perr := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || perr != nil {
		return "another process"
	}
	if pid == os.Getpid() {
		return "this process"
	}
	return "process " + strconv.Itoa(pid)
}

func writeAt(f io.WriterAt, b []byte, at int64) error {
	_, err := f.WriteAt(b, at)
	return err
}

func (d *directory) names() ([]string, error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func (d *directory) open(name string, create bool) (diskFile, error) {
	flags := os.O_RDWR
	if d.readOnly {
		flags = os.O_RDONLY
	}
	if create {
		flags |= os.O_CREATE | os.O_EXCL
	}
	f, err := os.OpenFile(filepath.Join(d.path, name), flags, 0o600)
	if err != nil {
		return nil, err
	}
	return syncedFile{f}, nil
}

func (d *directory) rename(from, to string) error {
	return os.Rename(filepath.Join(d.path, from), filepath.Join(d.path, to))
}

func (d *directory) remove(name string) error { return os.Remove(filepath.Join(d.path, name)) }

func (d *directory) sync() error { return d.self.Sync() }

// osFile is an os.File whose length is of the disk's own making.
type syncedFile struct{ *os.File }

var _ diskFile = syncedFile{}

func (f syncedFile) size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// Sync has the file's bytes on disk, and its length; nobody needs its times.
func (f syncedFile) Sync() error {
	conn, err := f.SyscallConn() // which keeps it open meanwhile
	if err != nil {
		return err
	}
	var serr error
	if err := conn.Control(func(fd uintptr) {
		for serr = unix.Fdatasync(int(fd)); serr == unix.EINTR; {
			serr = unix.Fdatasync(int(fd))
		}
	}); err != nil {
		return err
	}
	if serr != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: serr}
	}
	return nil
}
