package outbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/denied"
	"github.com/millrace/millrace/streams/storage/outbox/disk"
)

// A directory is a locked disk in the file system.
type directory struct {
	path     string
	lock     *os.File // nil: there is none, and the directory is only read
	readOnly bool
	// self stays open for fsync, unless the directory is only read. An fsync that had to open it first could
	// fail for lack of a descriptor, and would miss a write error that was already reported to another open
	// file.
	self *os.File
}

var _ disk.Disk = (*directory)(nil)

// ErrLocked is wrapped by the error of an outbox that another process or File has open.
var ErrLocked = errors.New("outbox is in use")

const lockName = "lock"

// explain names the owner and the remedy in an error that reports a lack of permission.
func explain(path string, err error) error {
	err = denied.Explain(path, err)
	if remedy := denied.RemedyOf(err); remedy != "" {
		return fmt.Errorf("outbox: %w: %s", err, remedy)
	}
	return err
}

// openDirectory creates a directory if needed and locks it.
func openDirectory(path string) (*directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, explain(path, fmt.Errorf("make outbox: %w", err))
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, explain(path, fmt.Errorf("lock outbox: %w", err))
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
		return nil, explain(path, fmt.Errorf("open outbox: %w", err))
	}
	return &directory{path: path, lock: lock, self: self}, nil
}

// readDirectory opens a directory for reading and keeps writers out if it has a lock file. It writes
// nothing: an outbox that was ever opened for writing has a lock file.
func readDirectory(path string) (*directory, error) {
	d := &directory{path: path, readOnly: true}
	lock, err := os.Open(filepath.Join(path, lockName))
	if isNotExist(err) {
		return d, nil
	}
	if err != nil {
		return nil, explain(path, fmt.Errorf("lock outbox: %w", err))
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
		// A child process that is just being started may still have a copy of the lock's descriptor, so closing
		// alone does not always unlock.
		err = errors.Join(err, flock(d.lock, unix.LOCK_UN), d.lock.Close())
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

// locked returns the error of a failed flock. If another process holds the lock, the error names it.
func locked(path string, lock *os.File, err error) error {
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("lock outbox %s: %w", path, err)
	}
	return fmt.Errorf("outbox %s: %w by %s", path, ErrLocked, holder(lock))
}

// holder names the process that has an outbox open, if it is known.
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

func (d *directory) Names() ([]string, error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func (d *directory) Open(name string, create bool) (disk.File, error) {
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

func (d *directory) Rename(from, to string) error {
	return os.Rename(filepath.Join(d.path, from), filepath.Join(d.path, to))
}

func (d *directory) Remove(name string) error { return os.Remove(filepath.Join(d.path, name)) }

func (d *directory) Sync() error { return d.self.Sync() }

// A syncedFile is an os.File that Sync flushes with fdatasync.
type syncedFile struct{ *os.File }

var _ disk.File = syncedFile{}

func (f syncedFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// Sync makes the file's bytes and its size durable, not its times.
func (f syncedFile) Sync() error {
	conn, err := f.SyscallConn() // keeps the descriptor open during Control
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
