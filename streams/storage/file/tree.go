package file

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// A tree opens paths below a directory. It follows no symbolic links and never leaves the directory.
type tree struct {
	fd     int
	byName bool // openat2 is not available: open the path name by name
}

const noLinks = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

func newTree(fd int) tree {
	probe, err := unix.Openat2(fd, ".", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: noLinks})
	if err != nil {
		return tree{fd, true}
	}
	unix.Close(probe)
	return tree{fd, false}
}

// open opens a slash-separated path. If a name in it is a symbolic link, the error is ELOOP or ENOTDIR.
func (t tree) open(path string, flags int) (fd int, err error) {
	if t.byName {
		return t.openByName(path, flags)
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: noLinks}
	err = retryEINTR(func() error {
		fd, err = unix.Openat2(t.fd, path, &how)
		return err
	})
	return fd, pathError("open", path, err)
}

func (t tree) openByName(path string, flags int) (int, error) {
	at, own := t.fd, false
	for rest := path; ; {
		name, below, more := strings.Cut(rest, "/")
		f := flags
		if more {
			f = unix.O_PATH | unix.O_DIRECTORY
		}
		var fd int
		err := retryEINTR(func() (err error) {
			fd, err = unix.Openat(at, name, f|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
			return err
		})
		if own {
			unix.Close(at)
		}
		if err != nil || !more {
			return fd, pathError("open", path, err)
		}
		at, own, rest = fd, true, below
	}
}

// dir opens a directory.
func (t tree) dir(path string) (int, error) { return t.open(path, unix.O_RDONLY|unix.O_DIRECTORY) }

// stat stats a path.
func (t tree) stat(path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := t.open(path, unix.O_PATH)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	err = retryEINTR(func() error { return unix.Fstat(fd, &st) })
	return st, pathError("stat", path, err)
}

// within calls f with the opened directory of a path, and the path's last name.
func (t tree) within(p string, f func(fd int, name string) error) error {
	dir, name := path.Split(p)
	if dir == "" {
		return f(t.fd, name)
	}
	fd, err := t.dir(strings.TrimSuffix(dir, "/"))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd, name)
}

// read reads a small file.
func (t tree) read(path string) ([]byte, error) {
	fd, err := t.open(path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 1024)
	for {
		var n int
		err := retryEINTR(func() (err error) { n, err = unix.Read(fd, b[len(b):cap(b)]); return err })
		if err != nil {
			return nil, pathError("read", path, err)
		}
		if b = b[:len(b)+n]; n == 0 {
			return b, nil
		}
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}

func fsync(fd int, path string) error {
	return pathError("sync", path, retryEINTR(func() error { return unix.Fsync(fd) }))
}

// syncDir makes the names in a directory durable. It succeeds if the directory does not exist.
func (t tree) syncDir(path string) error {
	fd, err := t.dir(path)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fsync(fd, path)
}

// pathError adds operation and path to an error of the file system; nil stays nil.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}

// isAbsent reports whether an error of open or stat means that the path does not exist. This includes paths through a
// file or a symbolic link.
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func isRegular(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }
func isDir(st *unix.Stat_t) bool     { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// kind describes a file that is neither regular nor a directory.
func kind(mode os.FileMode) string {
	switch {
	case mode&os.ModeSymlink != 0:
		return "a symbolic link"
	case mode&os.ModeNamedPipe != 0:
		return "a fifo"
	case mode&os.ModeSocket != 0:
		return "a socket"
	case mode&os.ModeDevice != 0:
		return "a device"
	}
	return fmt.Sprintf("no regular file (%v)", mode.Type())
}
