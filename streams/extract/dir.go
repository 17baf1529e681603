package extract

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"
)

// TempPrefix is the prefix of files that are not complete.
const TempPrefix = ".millrace-"

// maxPart is the longest name of a file or directory in bytes.
const maxPart = 255

// CheckName returns why an item cannot be a file; empty if it can.
func CheckName(item string) string {
	for part := range strings.SplitSeq(item, "/") {
		switch {
		case strings.HasPrefix(item, "/"):
			return "it begins with a slash"
		case part == "":
			return "a part of its name is empty"
		case part == "." || part == "..":
			return "a part of its name is " + part
		case len(part) > maxPart:
			return fmt.Sprintf("a part of its name has %d bytes, more than %d", len(part), maxPart)
		case strings.ContainsRune(part, 0):
			return "its name has a NUL"
		}
	}
	return ""
}

// A Dir is a directory that items are written into. Nothing is written outside it. Its methods are safe for concurrent
// use, except Close.
type Dir struct {
	root *os.Root

	mu      sync.Mutex
	changed map[string]bool // directories that Sync has not synced yet
}

// OpenDir opens a directory, which must exist.
func OpenDir(dir string) (*Dir, error) {
	root, err := os.OpenRoot(dir)
	return &Dir{root: root, changed: map[string]bool{}}, err
}

// Close closes the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Sync makes the names of files durable.
func (d *Dir) Sync() error {
	d.mu.Lock()
	changed := d.changed
	d.changed = map[string]bool{}
	d.mu.Unlock()
	for name := range changed {
		f, err := d.root.Open(name)
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return fmt.Errorf("sync %s: %w", d.path(name), err)
		}
	}
	return nil
}

// has returns an outcome if no bytes are needed: a file is there, or there can be none. Otherwise the result is empty.
func (d *Dir) has(ctx context.Context, name string, c Content) (Outcome, error) {
	if why := CheckName(name); why != "" {
		return Outcome{Result: Unnamed, Detail: why}, nil
	}
	if !c.Verifiable() {
		return Outcome{Result: Lacking, Detail: noDigests}, nil
	}
	info, err := d.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Outcome{}, nil
	case err != nil:
		return refused(err)
	}
	o := Outcome{Result: Differs, Detail: d.path(name) + " is there with other bytes"}
	switch {
	case !info.Mode().IsRegular():
		o.Detail = d.path(name) + " is there, and no regular file"
		return o, nil
	case c.Size >= 0 && info.Size() != c.Size:
		return o, nil
	}
	same, err := d.verify(ctx, name, c)
	if same {
		o = Outcome{Result: Present}
	}
	return o, err
}

// verify reports whether a file has the bytes of a content.
func (d *Dir) verify(ctx context.Context, name string, c Content) (bool, error) {
	s, err := newStream(&c)
	if err != nil {
		return false, err
	}
	f, err := d.root.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close() // only read from
	err = s.copy(ctx, io.Discard, f)
	var other *mismatch
	if errors.As(err, &other) {
		return false, nil
	}
	return err == nil, err
}

func (d *Dir) path(name string) string { return path.Join(d.root.Name(), name) }

// refused returns the outcome of an error of the file system about a name. Another error is returned.
func refused(err error) (Outcome, error) {
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return Outcome{Result: Differs, Detail: "a part of its name is that of a file"}, nil
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EILSEQ):
		return Outcome{Result: Unnamed, Detail: "the file system refuses its name"}, nil
	}
	return Outcome{}, err
}

// Extract writes the bytes of a content into the file name, from the first of places that has good ones. A file that is
// there stays as it is. An error is one of ctx, or of the directory, and names the file.
func (d *Dir) Extract(ctx context.Context, name string, c Content, places []Place) (o Outcome, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", d.path(name), err)
		}
	}()
	if o, err = d.has(ctx, name, c); err != nil || o.Result != "" {
		return o, err
	}
	if len(places) == 0 {
		o.lacking()
		return o, nil
	}
	in := path.Dir(name)
	if err := d.root.MkdirAll(in, 0o777); err != nil {
		return refused(err)
	}
	temp := path.Join(in, TempPrefix+rand.Text())
	f, err := d.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return o, err
	}
	defer func() {
		if gone := d.root.Remove(temp); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}()
	defer f.Close() // closed already unless there is an error
	for i := range places {
		s, err := newStream(&c)
		if err != nil {
			return o, err
		}
		err = s.read(ctx, f, &places[i], 0)
		var unwritten writeError
		switch {
		case ctx.Err() != nil:
			return o, ctx.Err()
		case errors.As(err, &unwritten):
			return o, unwritten.error
		case err == nil:
			o.Result, o.From, o.Bytes = Exported, &places[i], s.hasher.Size()
			if err := complete(d.root, f, temp, c.Modified); err != nil {
				return o, err
			}
			return d.name(ctx, temp, name, c, o)
		}
		o.fault(&places[i], err)
		_, unmoved := f.Seek(0, io.SeekStart)
		if err := errors.Join(unmoved, f.Truncate(0)); err != nil {
			return o, err
		}
	}
	o.lacking()
	return o, nil
}

// complete dates a file, if there is a date, and closes it when its bytes are on disk.
func complete(root *os.Root, f *os.File, name string, modified time.Time) error {
	if !modified.IsZero() {
		if err := root.Chtimes(name, time.Time{}, modified); err != nil {
			return err
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

// name gives a complete file its name, unless another one has it by now.
func (d *Dir) name(ctx context.Context, temp, name string, c Content, o Outcome) (Outcome, error) {
	err := d.root.Link(temp, name)
	if err != nil && !errors.Is(err, fs.ErrExist) { // a file system without links
		if _, is := d.root.Lstat(name); errors.Is(is, fs.ErrNotExist) {
			err = d.root.Rename(temp, name)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		now, err := d.has(ctx, name, c)
		now.Faults = o.Faults
		return now, err
	}
	if err != nil {
		return refused(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for dir := path.Dir(name); !d.changed[dir]; dir = path.Dir(dir) {
		d.changed[dir] = true
	}
	return o, nil
}
