// Package denied describes directories that the user of this process may not use, such as a volume that another user
// owns.
package denied

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// An Error is an error of a file operation that was refused for lack of permission. Its text names the owner.
type Error struct {
	dir   string // the directory that the process wants to use
	path  string // the file or directory that refuses; it exists
	owner int    // of path; -1: unknown
	mode  fs.FileMode
	// closed is set if path is a directory that this process may not look into.
	closed bool
	uid    int // of this process
	err    error
}

// Explain returns err as an *Error if it reports a lack of permission for dir or for something in it, otherwise err
// itself. A path in err may be relative to dir.
func Explain(dir string, err error) error {
	var known *Error
	if !errors.Is(err, fs.ErrPermission) || errors.As(err, &known) {
		return err
	}
	return explain(dir, err, os.Geteuid())
}

func explain(dir string, err error, uid int) *Error {
	e := &Error{dir: dir, uid: uid, err: err}
	e.inspect(dir)
	var p *fs.PathError
	if e.path == dir && e.owner == e.uid && errors.As(err, &p) {
		// The directory is right, so what is in it is not: for example a file that root has made.
		within := p.Path
		if !filepath.IsAbs(within) && !strings.HasPrefix(within, dir+"/") {
			within = filepath.Join(dir, within)
		}
		e.inspect(within)
	}
	return e
}

// inspect describes path, or the nearest directory above it that this process can see.
func (e *Error) inspect(path string) {
	e.closed = false
	for {
		st, err := os.Lstat(path)
		if err == nil {
			e.path, e.mode, e.owner = path, st.Mode(), -1
			if sys, ok := st.Sys().(*syscall.Stat_t); ok {
				e.owner = int(sys.Uid)
			}
			return
		}
		e.closed = errors.Is(err, fs.ErrPermission)
		up := filepath.Dir(path)
		if up == path {
			e.path, e.owner = path, -1
			return
		}
		path = up
	}
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s is owned by uid %d with mode %04o, and this process runs as uid %d (%v)",
		e.path, e.owner, e.mode.Perm(), e.uid, e.err)
}

// Unwrap returns the error of the operation.
func (e *Error) Unwrap() error { return e.err }

// Remedy says what an operator can do.
func (e *Error) Remedy() string {
	switch {
	case e.closed:
		return fmt.Sprintf("choose a directory that this user can reach, or run as uid %d", e.owner)
	case e.path != e.dir && len(e.path) < len(e.dir):
		return fmt.Sprintf("create %s and give it to this user (install -d -o %d %s), or run as the owner of %s",
			e.dir, e.uid, e.dir, e.path)
	case e.owner == e.uid:
		return fmt.Sprintf("give its owner the right to write (chmod u+rwX %s)", e.path)
	}
	return fmt.Sprintf("give it to this user (chown -R %d %s), or run as uid %d", e.uid, e.dir, e.owner)
}

// RemedyOf returns the remedy of an error that Explain has described, or "".
func RemedyOf(err error) string {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Remedy()
	}
	return ""
}
