// Package denied describes directories that the user of this process may not use, such as a volume that another user
// owns.
package denied

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// An Error is an error of a file operation that was refused for lack of permission. Its text names the owner.
type Error struct {
	dir   string // the directory that the process wants to use
	path  string // the file or directory that refuses; it exists
	owner int    // of path; -1: unknown
	mode  fs.FileMode
	// closed is set if path is a directory that this process may not look into.
	closed   bool
	readOnly bool // the process only wants to read dir
	uid      int  // of this process
	err      error
}

// Explain returns err as an *Error if it reports a lack of permission for dir or for something in it, otherwise err
// itself. A path in err may be relative to dir.
func Explain(dir string, err error) error { return explainAs(&Error{dir: dir}, err) }

// ExplainRead is Explain for a directory that this process only reads. It belongs to somebody else, so the remedy
// leaves the owner as it is.
func ExplainRead(dir string, err error) error {
	return explainAs(&Error{dir: dir, readOnly: true}, err)
}

func explainAs(e *Error, err error) error {
	var known *Error
	if !errors.Is(err, fs.ErrPermission) || errors.As(err, &known) {
		return err
	}
	e.uid, e.err = os.Geteuid(), err
	return e.explain()
}

// explain finds what refuses.
func (e *Error) explain() *Error {
	e.dir = filepath.Clean(e.dir)
	e.inspect(e.dir)
	var p *fs.PathError
	if e.path == e.dir && (e.owner == e.uid || e.readOnly) && errors.As(e.err, &p) {
		// The directory is right, so what is in it is not: for example a file that root has made.
		within := p.Path
		if !filepath.IsAbs(within) && !Contains(e.dir, within) {
			within = filepath.Join(e.dir, within)
		}
		if Contains(e.dir, within) {
			e.inspect(within)
		}
	}
	return e
}

// Contains reports whether path is dir or below it. It compares names and follows no links.
func Contains(dir, path string) bool {
	outer, err := filepath.Abs(dir)
	inner, innerErr := filepath.Abs(path)
	if err != nil || innerErr != nil {
		return false
	}
	rel, err := filepath.Rel(outer, inner)
	return err == nil && filepath.IsLocal(rel)
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
	switch parent := e.path != e.dir && Contains(e.path, e.dir); {
	case e.readOnly && e.owner == e.uid:
		return fmt.Sprintf("give its owner the right to read (chmod u+rX %s)", e.path)
	case e.readOnly && parent:
		return fmt.Sprintf("give this user the right to read (a group, or setfacl -m u:%d:x %s and "+
			"setfacl -R -m u:%d:rX %s)", e.uid, e.path, e.uid, e.dir)
	case e.readOnly:
		return fmt.Sprintf("give this user the right to read (a group, or setfacl -R -m u:%d:rX %s)", e.uid, e.dir)
	case e.closed:
		return "choose a directory that this user can reach" + e.orRun()
	case parent:
		return fmt.Sprintf("create %s and give it to this user (install -d -o %d %s)%s", e.dir, e.uid, e.dir, e.orRun())
	case e.owner == e.uid:
		return fmt.Sprintf("give its owner the right to write (chmod u+rwX %s)", e.path)
	}
	return fmt.Sprintf("give it to this user (chown -R %d %s)%s", e.uid, e.dir, e.orRun())
}

// orRun proposes to run as the owner, unless it is root or unknown.
func (e *Error) orRun() string {
	if e.owner <= 0 {
		return ""
	}
	return fmt.Sprintf(", or run as uid %d", e.owner)
}

// RemedyOf returns the remedy of an error that Explain has described, or "".
func RemedyOf(err error) string {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Remedy()
	}
	return ""
}
