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

// maxTries bounds how often a call starts over because the directories on its path change meanwhile.
const maxTries = 100

// locate finds the file of an item: under its own name, or under its alternate name if a directory has the own name.
// It tries them in this order because files only move from the own to the alternate name.
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

// A location is where the file of an item is, or would be: an open directory and a name in it. All operations on a
// location use this directory, even if its path leads to another one meanwhile.
type location struct {
	dir     int
	dirPath string // of the directory
	name    string
	st      unix.Stat_t // of the file
	present bool
}

func (p *location) path() string { return p.dirPath + "/" + p.name }

func (p *location) close() { unix.Close(p.dir) }

// lookup sets the name of the location and stats its file.
func (p *location) lookup(name string) error {
	p.name = name
	err := retryEINTR(func() error { return unix.Fstatat(p.dir, name, &p.st, unix.AT_SYMLINK_NOFOLLOW) })
	p.present = err == nil && isRegular(&p.st)
	if isAbsent(err) {
		p.st = unix.Stat_t{}
		return nil
	}
	return pathError("stat", p.path(), err)
}

// open opens the file for reading.
func (p *location) open() (fd int, err error) {
	err = retryEINTR(func() error {
		fd, err = unix.Openat(p.dir, p.name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, pathError("open", p.path(), err) // -1 with an error
}

// locationOf opens the directory of a path and looks the file up in it.
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

// find is locate for mutations. If the item is absent, it returns the location of its own name. If the error satisfies
// isAbsent, the directory of the file is absent.
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
	alt, err := s.locationOf(p.alt) // a long name, which is split over directories
	switch {
	case err == nil && alt.present:
		own.close()
		return alt, nil
	case err == nil:
		alt.close()
	case !isAbsent(err):
		own.close()
		return nil, err
	}
	return own, nil
}

// mustFind is find for an item that must exist.
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

// metadataAt returns the metadata of the file at a location. The caller holds the lock of the item.
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

// metadataOrUnknown is metadataAt for a file that is replaced or deleted: damaged metadata that cannot be read is
// returned as unknown.
func (s *session) metadataOrUnknown(at *location, p itemPath) (metadata, error) {
	a, err := s.metadataAt(at, p)
	if isDamaged(err) {
		return metadata{Unknown: true}, nil
	}
	return a, err
}

// isDamaged reports whether a read error means that the data is damaged, or is not a file. Other errors may be
// transient.
func isDamaged(err error) bool {
	return slices.ContainsFunc([]error{unix.EIO, unix.EUCLEAN, unix.EBADMSG, unix.EISDIR, unix.ENXIO},
		func(e error) bool { return errors.Is(err, e) })
}

// absentError returns the error for an absent item: ErrNotFound, or ErrNoSpace if the space is absent too.
func (s *session) absentError(p itemPath) error {
	if err := s.checkSpace(p.space); err != nil {
		return err
	}
	return fmt.Errorf("item %q: %w", p.item, storage.ErrNotFound)
}

// checkSpace returns an error that wraps ErrNoSpace if the directory of the space does not exist.
func (s *session) checkSpace(dir string) error {
	st, err := s.stat(dir)
	switch {
	case isAbsent(err), err == nil && !isDir(&st):
		return fmt.Errorf("space in directory %s: %w", dir, storage.ErrNoSpace)
	}
	return err
}

// mkdirs makes a directory and those between it and base, which exists. If one of the paths is not a directory, the
// error is a *notDirError.
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

// mkdirSynced makes a directory durably, unless it exists. Until the directory is durable it is pending, so that a
// concurrent call that writes into it does not return success too early.
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

// markPending makes a directory pending until end is called.
func (s *session) markPending(dir string) (end func()) {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	if _, ok := s.pending.m[dir]; ok {
		return func() {} // the call that marked it first syncs after this one
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

// waitPending waits until all directories above a path are durable.
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
			return storage.ContextErr(ctx)
		}
	}
	return nil
}

// A notDirError means that a path that must be a directory is something else.
type notDirError struct {
	path    string
	regular bool
}

func (e *notDirError) Error() string {
	return fmt.Sprintf("%s is not a directory", e.path)
}

// makeParents makes the directories above the file of an item. Files of other items with these paths are renamed to
// their alternate names. The caller holds no lock.
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
		// A directory was removed meanwhile, or a file was renamed just now: try again.
	}
	return fmt.Errorf("make directory %s: it keeps being removed", dir)
}

// moveToAlt renames the file of an item to its alternate name, to free its own name for a directory.
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
		return nil // removed or renamed meanwhile
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

// itemOfParent returns the paths of the item that has its file at the path at, which is a parent of p.
func itemOfParent(p itemPath, at string) (itemPath, error) {
	id := p.item
	for {
		i := strings.LastIndexByte(id, '/')
		if i < 0 {
			return itemPath{}, fmt.Errorf("file %s is not the path of an item above %q", at, p.item)
		}
		id = id[:i]
		if other := itemPathIn(p.space, id); other.path == at {
			return other, nil
		}
	}
}
