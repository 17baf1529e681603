package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// maxTries bounds how often a call starts over because others change the directories
// that it goes through.
const maxTries = 100

// locate finds an item's file: under its own name, or beside a directory of that name.
// The order matters: files only ever move from the first to the second.
func (s *session) locate(p itemPath) (path string, st unix.Stat_t, err error) {
	for _, path := range []string{p.path, p.alt} {
		st, err := s.stat(path)
		if err == nil && isRegular(&st) {
			return path, st, nil
		}
		if err != nil && !isAbsent(err) {
			return "", st, err
		}
	}
	return "", st, s.absentError(p)
}

// A spot is where an item's file is, or would be: a directory, held open, and the name in it. Whatever happens to the
// directory, what is done in a spot is done in one and the same.
type location struct {
	dir     int
	dirPath string // the directory's path
	name    string
	st      unix.Stat_t // of the file
	present bool
}

func (p *location) path() string { return p.dirPath + "/" + p.name }

func (p *location) close() { unix.Close(p.dir) }

// look looks for the file of a name in the directory.
func (p *location) lookup(name string) error {
	p.name = name
	err := retryEINTR(func() error { return unix.Fstatat(p.dir, name, &p.st, unix.AT_SYMLINK_NOFOLLOW) })
	p.present = err == nil && isRegular(&p.st)
	if isAbsent(err) {
		return nil
	}
	return pathError("stat", p.path(), err)
}

// open opens the file to be read.
func (p *location) open() (fd int, err error) {
	err = retryEINTR(func() error {
		fd, err = unix.Openat(p.dir, p.name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, pathError("open", p.path(), err) // -1 with an error
}

// spotOf opens the directory of a path and looks for the file there.
func (s *session) locationOf(file string) (*location, error) {
	p := &location{dirPath: path.Dir(file)}
	var err error
	if p.dir, err = s.dir(p.dirPath); err != nil {
		return nil, err
	}
	err = checkDirFolding(p.dir, p.dirPath)
	if err == nil {
		err = p.lookup(path.Base(file))
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// find is locate for calls that change something. If the item is absent it returns the spot of its own name. An error
// for which isAbsent holds says that its directory is absent.
func (s *session) find(p itemPath) (*location, error) {
	own, err := s.locationOf(p.path)
	if err != nil || own.present {
		return own, err
	}
	if path.Dir(p.alt) == own.dirPath {
		if err = own.lookup(path.Base(p.alt)); err == nil && !own.present {
			own.name = path.Base(p.path)
		}
		if err != nil {
			own.close()
			return nil, err
		}
		return own, nil
	}
	beside, err := s.locationOf(p.alt) // whose name is so long that it is split
	switch {
	case err == nil && beside.present:
		own.close()
		return beside, nil
	case err == nil:
		beside.close()
	case !isAbsent(err):
		own.close()
		return nil, err
	}
	return own, nil
}

// present is find for an item that must be there.
func (s *session) mustFind(p itemPath) (*location, error) {
	at, err := s.find(p)
	switch {
	case isAbsent(err):
		return nil, s.absentError(p)
	case err == nil && !at.present:
		at.close()
		return nil, s.absentError(p)
	}
	return at, err
}

// aspectAt returns what is known of the file that is in a spot, which the caller has locked.
func (s *session) metadataAt(at *location, p itemPath) (metadata, error) {
	fd, err := at.open()
	if errors.Is(err, fs.ErrPermission) {
		return metadata{Unknown: true}, nil
	}
	if err != nil {
		return metadata{}, err
	}
	defer unix.Close(fd)
	a, _, err := s.readMetadata(fd, p, &at.st)
	return a, err
}

// aspectOf is aspectAt for a file that is replaced or removed: what is damaged so that it cannot be read is unknown.
func (s *session) metadataOrUnknown(at *location, p itemPath) (metadata, error) {
	a, err := s.metadataAt(at, p)
	if isDamaged(err) {
		return metadata{Unknown: true}, nil
	}
	return a, err
}

// isDamaged reports whether an error of reading says that what is read is damaged, or is no file. Another one may work
// when it is called again.
func isDamaged(err error) bool {
	return slices.ContainsFunc([]error{unix.EIO, unix.EUCLEAN, unix.EBADMSG, unix.EISDIR, unix.ENXIO},
		func(e error) bool { return errors.Is(err, e) })
}

// absent returns the error for an item that is not there.
func (s *session) absentError(p itemPath) error {
	if err := s.checkSpace(p.space); err != nil {
		return err
	}
	return fmt.Errorf("item %q: %w", p.item, storage.ErrNotFound)
}

// hasSpace returns an error that wraps ErrNoSpace where the directory is not there.
func (s *session) checkSpace(dir string) error {
	st, err := s.stat(dir)
	switch {
	case isAbsent(err), err == nil && !isDir(&st):
		return fmt.Errorf("space in directory %s: %w", dir, storage.ErrNoSpace)
	}
	return err
}

// mkdirs makes a directory and those between it and base, which is there. Where a
// file is in the way the error is a *inTheWay.
func (s *session) mkdirs(base, dir string) error {
	if dir == base {
		return nil
	}
	names := strings.Split(strings.TrimPrefix(dir, base+"/"), "/")
	at := base
	for _, name := range names {
		at += "/" + name
		if err := s.mkdirSynced(at); err != nil {
			return err
		}
	}
	return nil
}

// mkdirSynced makes a directory that may be there. While it may not be on disk yet it
// is pending, so that nobody who uses it tells of success too early.
func (s *session) mkdirSynced(dir string) error {
	return s.within(dir, func(fd int, name string) error {
		var st unix.Stat_t
		err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && isDir(&st) {
			return nil
		}
		if err == nil {
			return &notDirError{dir, isRegular(&st)}
		}
		if err != unix.ENOENT {
			return pathError("stat", dir, err)
		}
		defer s.markPending(dir)()
		if err := unix.Mkdirat(fd, name, 0o777); err != nil && err != unix.EEXIST {
			return pathError("mkdir", dir, err)
		}
		return fsync(fd, dir)
	})
}

// begin makes a directory pending until end is called.
func (s *session) markPending(dir string) (end func()) {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	if _, ok := s.pending.m[dir]; ok {
		return func() {} // whoever was first syncs after us
	}
	done := make(chan struct{})
	s.pending.m[dir] = done
	s.pending.n.Add(1)
	return func() {
		s.pending.mu.Lock()
		defer s.pending.mu.Unlock()
		delete(s.pending.m, dir)
		s.pending.n.Add(-1)
		close(done)
	}
}

// settled waits until all directories above a path are on disk.
func (s *session) waitPending(ctx context.Context, p string) error {
	for s.pending.n.Load() > 0 && p != "." {
		p = path.Dir(p)
		s.pending.mu.Lock()
		done := s.pending.m[p]
		s.pending.mu.Unlock()
		if done == nil {
			continue
		}
		select {
		case <-done:
		case <-ctx.Done():
			return storage.Ended(ctx)
		}
	}
	return nil
}

// An inTheWay is a file that has the path that a directory should have.
type notDirError struct {
	path    string
	regular bool
}

func (e *notDirError) Error() string {
	return fmt.Sprintf("%s is not a directory", e.path)
}

// makeRoom makes the directories above an item's file. Files of other items that have
// their names are moved beside them. The caller holds no lock.
func (s *Store) makeParents(ctx context.Context, sess *session, p itemPath) error {
	dir := path.Dir(p.path)
	for range maxTries {
		if err := sess.checkSpace(p.space); err != nil {
			return err
		}
		if dir == p.space {
			return nil
		}
		err := sess.mkdirs(p.space, dir)
		var way *notDirError
		switch {
		case errors.As(err, &way) && way.regular:
			if err := s.moveToAlt(ctx, sess, p, way.path); err != nil {
				return err
			}
		case errors.As(err, &way):
			return retry.Permanent(fmt.Errorf("item %q: %w: %w", p.item, storage.ErrName, err))
		case err == nil, !isAbsent(err):
			return err
		}
		// Somebody took a directory away again, or a file has just moved: once more.
	}
	return fmt.Errorf("make directory %s: others keep removing it", dir)
}

// moveBeside moves the file of an item out of the way of a directory.
func (s *Store) moveToAlt(ctx context.Context, sess *session, p itemPath, from string) error {
	other, err := itemOfParent(p, from)
	if err != nil {
		return err
	}
	unlock, err := s.lock(ctx, sess, other.space, other.item)
	if err != nil {
		return err
	}
	defer unlock()
	st, err := sess.stat(from)
	if isAbsent(err) || err == nil && !isRegular(&st) {
		return nil // it went or moved by itself
	}
	if err != nil {
		return err
	}
	err = sess.within(other.path, func(fd int, name string) error {
		dir, besideName := path.Split(other.alt)
		if dir == path.Dir(other.path)+"/" {
			return rename(fd, name, fd, besideName, unix.RENAME_NOREPLACE)
		}
		if err := sess.mkdirs(other.space, path.Clean(dir)); err != nil {
			return err
		}
		return sess.within(other.alt, func(to int, besideName string) error {
			return rename(fd, name, to, besideName, unix.RENAME_NOREPLACE)
		})
	})
	return pathError("move", other.alt, err)
}

// itemAt returns the place of the item whose file is at a path above that of p.
func itemOfParent(p itemPath, at string) (itemPath, error) {
	id := p.item
	for {
		i := strings.LastIndexByte(id, '/')
		if i < 0 {
			return itemPath{}, fmt.Errorf("file %s has the name of no item above %q", at, p.item)
		}
		id = id[:i]
		if other := itemPathIn(p.space, id); other.path == at {
			return other, nil
		}
	}
}
