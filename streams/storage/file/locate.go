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
func (s *session) locate(p place) (path string, st unix.Stat_t, err error) {
	for _, path := range []string{p.path, p.beside} {
		st, err := s.stat(path)
		if err == nil && isRegular(&st) {
			return path, st, nil
		}
		if err != nil && !isAbsent(err) {
			return "", st, err
		}
	}
	return "", st, s.absent(p)
}

// A spot is where an item's file is, or would be: a directory, held open, and the name in it. Whatever happens to the
// directory, what is done in a spot is done in one and the same.
type spot struct {
	dir     int
	at      string // the directory's path
	name    string
	st      unix.Stat_t // of the file
	present bool
}

func (p *spot) path() string { return p.at + "/" + p.name }

func (p *spot) close() { unix.Close(p.dir) }

// look looks for the file of a name in the directory.
func (p *spot) look(name string) error {
	p.name = name
	err := retryEINTR(func() error { return unix.Fstatat(p.dir, name, &p.st, unix.AT_SYMLINK_NOFOLLOW) })
	p.present = err == nil && isRegular(&p.st)
	if isAbsent(err) {
		return nil
	}
	return named("stat", p.path(), err)
}

// open opens the file to be read.
func (p *spot) open() (fd int, err error) {
	err = retryEINTR(func() error {
		fd, err = unix.Openat(p.dir, p.name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, named("open", p.path(), err) // -1 with an error
}

// spotOf opens the directory of a path and looks for the file there.
func (s *session) spotOf(file string) (*spot, error) {
	p := &spot{at: path.Dir(file)}
	var err error
	if p.dir, err = s.dir(p.at); err != nil {
		return nil, err
	}
	err = checkNames(p.dir, p.at)
	if err == nil {
		err = p.look(path.Base(file))
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// find is locate for calls that change something. If the item is absent it returns the spot of its own name. An error
// for which isAbsent holds says that its directory is absent.
func (s *session) find(p place) (*spot, error) {
	own, err := s.spotOf(p.path)
	if err != nil || own.present {
		return own, err
	}
	if path.Dir(p.beside) == own.at {
		if err = own.look(path.Base(p.beside)); err == nil && !own.present {
			own.name = path.Base(p.path)
		}
		if err != nil {
			own.close()
			return nil, err
		}
		return own, nil
	}
	beside, err := s.spotOf(p.beside) // whose name is so long that it is split
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
func (s *session) present(p place) (*spot, error) {
	at, err := s.find(p)
	switch {
	case isAbsent(err):
		return nil, s.absent(p)
	case err == nil && !at.present:
		at.close()
		return nil, s.absent(p)
	}
	return at, err
}

// aspectAt returns what is known of the file that is in a spot, which the caller has locked.
func (s *session) aspectAt(at *spot, p place) (aspect, error) {
	fd, err := at.open()
	if errors.Is(err, fs.ErrPermission) {
		return aspect{Unknown: true}, nil
	}
	if err != nil {
		return aspect{}, err
	}
	defer unix.Close(fd)
	a, _, err := s.aspect(fd, p, &at.st)
	return a, err
}

// aspectOf is aspectAt for a file that is replaced or removed: what is damaged so that it cannot be read is unknown.
func (s *session) aspectOf(at *spot, p place) (aspect, error) {
	a, err := s.aspectAt(at, p)
	if isDamaged(err) {
		return aspect{Unknown: true}, nil
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
func (s *session) absent(p place) error {
	if err := s.hasSpace(p.space); err != nil {
		return err
	}
	return fmt.Errorf("item %q: %w", p.item, storage.ErrNotFound)
}

// hasSpace returns an error that wraps ErrNoSpace where the directory is not there.
func (s *session) hasSpace(dir string) error {
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
			return &inTheWay{dir, isRegular(&st)}
		}
		if err != unix.ENOENT {
			return named("stat", dir, err)
		}
		defer s.begin(dir)()
		if err := unix.Mkdirat(fd, name, 0o777); err != nil && err != unix.EEXIST {
			return named("mkdir", dir, err)
		}
		return fsync(fd, dir)
	})
}

// begin makes a directory pending until end is called.
func (s *session) begin(dir string) (end func()) {
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
func (s *session) settled(ctx context.Context, p string) error {
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
type inTheWay struct {
	path    string
	regular bool
}

func (e *inTheWay) Error() string {
	return fmt.Sprintf("%s is not a directory", e.path)
}

// makeRoom makes the directories above an item's file. Files of other items that have
// their names are moved beside them. The caller holds no lock.
func (s *Store) makeRoom(ctx context.Context, sess *session, p place) error {
	dir := path.Dir(p.path)
	for range maxTries {
		if err := sess.hasSpace(p.space); err != nil {
			return err
		}
		if dir == p.space {
			return nil
		}
		err := sess.mkdirs(p.space, dir)
		var way *inTheWay
		switch {
		case errors.As(err, &way) && way.regular:
			if err := s.moveBeside(ctx, sess, p, way.path); err != nil {
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
func (s *Store) moveBeside(ctx context.Context, sess *session, p place, from string) error {
	other, err := itemAt(p, from)
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
		dir, besideName := path.Split(other.beside)
		if dir == path.Dir(other.path)+"/" {
			return rename(fd, name, fd, besideName, unix.RENAME_NOREPLACE)
		}
		if err := sess.mkdirs(other.space, path.Clean(dir)); err != nil {
			return err
		}
		return sess.within(other.beside, func(to int, besideName string) error {
			return rename(fd, name, to, besideName, unix.RENAME_NOREPLACE)
		})
	})
	return named("move", other.beside, err)
}

// itemAt returns the place of the item whose file is at a path above that of p.
func itemAt(p place, at string) (place, error) {
	id := p.item
	for {
		i := strings.LastIndexByte(id, '/')
		if i < 0 {
			return place{}, fmt.Errorf("file %s has the name of no item above %q", at, p.item)
		}
		id = id[:i]
		if other := placeIn(p.space, id); other.path == at {
			return other, nil
		}
	}
}
