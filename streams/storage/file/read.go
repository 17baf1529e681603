package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// modTime returns the modification time of a file. A count of nanoseconds ends in 2262; times of files do not.
func modTime(st *unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()).UTC() }

func object(item string, st *unix.Stat_t, a metadata) storage.Object {
	return storage.Object{
		Item: item, Size: st.Size, Modified: modTime(st), Version: versionOf(st.Mtim.Nano()),
		Digests: a.Digests, Properties: a.properties(), PropertiesUnknown: a.Unknown, Original: a.Original.original(),
	}
}

// openItem opens the file of an item for reading: under its own name, or under its alternate name if a directory has
// the own name. It tries them in this order because files only move from the own to the alternate name.
func (s *session) openItem(p itemPath) (fd int, at string, st unix.Stat_t, err error) {
	for _, at := range []string{p.path, p.alt} {
		fd, err := s.open(at, unix.O_RDONLY|unix.O_NONBLOCK)
		switch {
		case isAbsent(err), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV): // the last two for sockets and devices
			continue
		case errors.Is(err, fs.ErrPermission):
			if st, serr := s.stat(at); isAbsent(serr) || serr == nil && !isRegular(&st) {
				continue
			}
			return -1, "", st, err
		case err != nil:
			return -1, "", st, err
		}
		err = pathError("stat", at, retryEINTR(func() error { return unix.Fstat(fd, &st) }))
		if err == nil && isRegular(&st) {
			return fd, at, st, nil
		}
		unix.Close(fd)
		if err != nil {
			return -1, "", st, err
		}
	}
	return -1, "", st, s.absentError(p)
}

// openWithMetadata opens the file of an item and returns its metadata. The caller closes fd. If the attribute or the
// sidecar cannot be read, metaErr is the reason; the bytes can still be read.
func (s *session) openWithMetadata(p itemPath) (fd int, at string, st unix.Stat_t, a metadata, metaErr, err error) {
	for range maxTries {
		if fd, at, st, err = s.openItem(p); err != nil {
			return -1, "", st, a, nil, err
		}
		var exact bool
		if a, exact, metaErr = s.readMetadata(fd, p, &st); exact || metaErr != nil {
			return fd, at, st, a, metaErr, nil
		}
		// The metadata is of another modification time. Either a writer is just changing file, sidecar or attribute, or
		// another program has written the file. If the path still leads to the same file, read the metadata again.
		_, now, err := s.locate(p)
		if err == nil && now.Mtim == st.Mtim && now.Ino == st.Ino {
			for range 2 { // twice: the metadata may move to the sidecar and back
				if a, exact, metaErr = s.readMetadata(fd, p, &st); exact || metaErr != nil {
					break
				}
			}
			return fd, at, st, a, metaErr, nil
		}
		unix.Close(fd)
		if err != nil {
			return -1, "", st, a, nil, err
		}
	}
	return -1, "", st, a, nil, fmt.Errorf("item %q: its file keeps changing", p.item)
}

func isItemAbsent(err error) bool {
	return errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrNoSpace)
}

// Stat implements storage.Store.
func (s *Store) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	if ctx.Err() != nil {
		return storage.Object{}, storage.ContextErr(ctx)
	}
	p, err := newItemPath(space, item)
	if err != nil {
		return storage.Object{}, err
	}
	sess, err := s.acquire()
	if err != nil {
		return storage.Object{}, err
	}
	defer s.release(sess)
	at := s.now()
	fd, _, st, a, metaErr, err := sess.openWithMetadata(p)
	if isItemAbsent(err) && sess.writesAllowed.Load() {
		// Check again under the lock of the item, so that a later Put also has a later modification time.
		unlock, lerr := s.lock(ctx, sess, p.space, p.item)
		if lerr != nil {
			return storage.Object{}, lerr
		}
		if fd, _, st, a, metaErr, err = sess.openWithMetadata(p); isItemAbsent(err) {
			if at, lerr = s.absenceTime(sess, p); lerr != nil {
				err = lerr
			}
		}
		unlock()
	}
	if err != nil {
		return storage.Object{}, storage.Absent(err, at)
	}
	unix.Close(fd)
	if metaErr != nil {
		return storage.Object{}, fmt.Errorf("item %q: %w", item, metaErr)
	}
	return object(item, &st, a), nil
}

// Path returns the path of an item's file in the file system, for output and for tests that damage files.
func (s *Store) Path(space, item string) (string, error) {
	p, err := newItemPath(space, item)
	if err != nil {
		return "", err
	}
	sess, err := s.acquire()
	if err != nil {
		return "", err
	}
	defer s.release(sess)
	at, _, err := sess.locate(p)
	if err != nil {
		return "", err
	}
	return filepath.Join(s.cfg.Root, filepath.FromSlash(at)), nil
}
