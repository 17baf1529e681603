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

func object(item string, st *unix.Stat_t, a metadata) storage.Object {
	ns := st.Mtim.Nano()
	return storage.Object{
		Item: item, Size: st.Size, Modified: time.Unix(0, ns).UTC(), Version: versionOf(ns),
		Digests: a.Digests, Properties: a.properties(), PropertiesUnknown: a.Unknown, Original: a.Original.original(),
	}
}

// openItem opens an item's file to be read: under its own name, or beside a directory of that name. The order matters:
// files only ever move from the first to the second.
func (s *session) openItem(p itemPath) (fd int, at string, st unix.Stat_t, err error) {
	for _, at := range []string{p.path, p.alt} {
		fd, err := s.open(at, unix.O_RDONLY|unix.O_NONBLOCK)
		switch {
		case isAbsent(err), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV): // the latter two of sockets and devices
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

// look opens an item's file and returns what is known of it. The caller closes it. If its attribute and its sidecar
// cannot be read, as unread says, the bytes still can.
func (s *session) openWithMetadata(p itemPath) (fd int, at string, st unix.Stat_t, a metadata, unread, err error) {
	for range maxTries {
		if fd, at, st, err = s.openItem(p); err != nil {
			return -1, "", st, a, nil, err
		}
		var sure bool
		if a, sure, unread = s.readMetadata(fd, p, &st); sure || unread != nil {
			return fd, at, st, a, unread, nil
		}
		// A writer may just be replacing or removing file and sidecar, or moving what the sidecar says to the attribute: if
		// not, the file is, or was changed, by others.
		_, now, err := s.locate(p)
		if err == nil && now.Mtim == st.Mtim && now.Ino == st.Ino {
			for range 2 { // twice: it may move to and fro
				if a, sure, unread = s.readMetadata(fd, p, &st); sure || unread != nil {
					break
				}
			}
			return fd, at, st, a, unread, nil
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
		return storage.Object{}, storage.Ended(ctx)
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
	fd, _, st, a, unread, err := sess.openWithMetadata(p)
	if isItemAbsent(err) && sess.writesAllowed.Load() {
		// Once more while the item is locked: a Put whose file takes its place after that is dated after that too.
		unlock, lerr := s.lock(ctx, sess, p.space, p.item)
		if lerr != nil {
			return storage.Object{}, lerr
		}
		if fd, _, st, a, unread, err = sess.openWithMetadata(p); isItemAbsent(err) {
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
	if unread != nil {
		return storage.Object{}, fmt.Errorf("item %q: %w", item, unread)
	}
	return object(item, &st, a), nil
}

// Path returns where an item's file is. It is for people, and for tests that do harm.
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
