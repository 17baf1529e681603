package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A spaceDoc holds the name, the properties and the ACL of a space.
type spaceDoc struct {
	Name       string            `json:"name"`
	Properties map[string]string `json:"properties,omitempty"`
	ACL        map[string]string `json:"acl,omitempty"`
	// Unknown is Space.PropertiesUnknown.
	Unknown bool `json:"properties_unknown,omitempty"`
}

func spaceDocPath(dir string) string { return metaDir + "/" + dir + "/space.json" }

// Spaces implements storage.Store.
func (s *Store) Spaces(ctx context.Context) iter.Seq2[string, error] {
	return storage.Names(ctx, s.spaceNames)
}

func (s *Store) spaceNames() ([]string, error) {
	sess, err := s.acquire()
	if err != nil {
		return nil, err
	}
	defer s.release(sess)
	fd, err := sess.dir(".")
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd))
	defer f.Close()
	list, err := f.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("list root %s: %w", s.cfg.Root, err)
	}
	var names []string
	for _, d := range list {
		name, ok := decodeSpace(d.Name())
		switch {
		case d.Name() == ownDir || d.Name() == lostFound:
		case d.Type().IsRegular():
			s.skipped(d.Name(), "it is a file outside of any space")
		case !d.IsDir():
			s.skipped(d.Name(), "it is "+kind(d.Type()))
		case !ok:
			s.skipped(d.Name(), "its name is not one that this store writes for a space")
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// StatSpace implements storage.Store.
func (s *Store) StatSpace(ctx context.Context, space string) (storage.Space, error) {
	dir, err := spaceDir(space)
	if err != nil {
		return storage.Space{}, err
	}
	sess, err := s.acquire()
	if err != nil {
		return storage.Space{}, err
	}
	defer s.release(sess)
	if err := sess.checkSpace(dir); err != nil {
		return storage.Space{}, err
	}
	b, err := sess.read(spaceDocPath(dir))
	if isAbsent(err) {
		return storage.Space{Name: space, PropertiesUnknown: true}, nil
	}
	var doc spaceDoc
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		return storage.Space{}, fmt.Errorf("read the properties of space %q: %w", space, err)
	}
	return storage.Space{Name: space, Properties: doc.Properties, ACL: doc.ACL, PropertiesUnknown: doc.Unknown}, nil
}

// withSpaceLock calls f for a space while it holds the lock of the space.
func (s *Store) withSpaceLock(ctx context.Context, space string, f func(sess *session, dir string) error) error {
	dir, err := spaceDir(space)
	if err != nil {
		return storage.NotApplied(err)
	}
	sess, err := s.acquireForWrite()
	if err != nil {
		return err
	}
	defer s.release(sess)
	unlock, err := s.lock(ctx, sess, dir)
	if err != nil {
		return storage.NotApplied(err)
	}
	defer unlock()
	return classify(f(sess, dir))
}

// CreateSpace implements storage.Store.
func (s *Store) CreateSpace(ctx context.Context, space storage.Space) error {
	return s.withSpaceLock(ctx, space.Name, func(sess *session, dir string) error {
		switch st, err := sess.stat(dir); {
		case err == nil && isDir(&st):
			return storage.NotApplied(fmt.Errorf("space %q: %w", space.Name, storage.ErrExists))
		case err == nil, isAbsent(err) && !errors.Is(err, fs.ErrNotExist): // a symbolic link
			return storage.NotApplied(retry.Permanent(
				fmt.Errorf("create space %q: its path is not a directory: %w", space.Name, storage.ErrName)))
		case !isAbsent(err):
			return storage.NotApplied(err)
		}
		if err := sess.writeSpace(dir, space); err != nil { // not visible without the directory
			return storage.NotApplied(err)
		}
		if err := unix.Mkdirat(sess.fd, dir, 0o777); err != nil {
			return pathError("mkdir", dir, err)
		}
		return fsync(sess.fd, ".")
	})
}

// SetSpace implements storage.Store.
func (s *Store) SetSpace(ctx context.Context, space storage.Space) error {
	return s.withSpaceLock(ctx, space.Name, func(sess *session, dir string) error {
		if err := sess.checkSpace(dir); err != nil {
			return storage.NotApplied(err)
		}
		return sess.writeSpace(dir, space)
	})
}

func (s *session) writeSpace(dir string, space storage.Space) error {
	err := errors.Join(checkProperties(storage.Properties{User: space.Properties}),
		checkProperties(storage.Properties{User: space.ACL}))
	if err != nil {
		return err
	}
	b, err := json.Marshal(spaceDoc{space.Name, space.Properties, space.ACL, space.PropertiesUnknown})
	if err != nil {
		return err
	}
	if err := s.mkdirs(ownDir, metaDir+"/"+dir); err != nil {
		return err
	}
	if err := s.writeOwn(spaceDocPath(dir), b); err != nil {
		return err
	}
	return s.syncDir(metaDir + "/" + dir)
}

// DeleteSpace implements storage.Store. It removes directories only: any file in the space, even one that is not an
// item, makes it return ErrNotEmpty.
func (s *Store) DeleteSpace(ctx context.Context, space string) error {
	return s.withSpaceLock(ctx, space, func(sess *session, dir string) error {
		if err := sess.checkSpace(dir); err != nil {
			return storage.NotApplied(err)
		}
		if err := sess.removeEmpty(dir); err != nil {
			if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
				return storage.NotApplied(fmt.Errorf("space %q: %w", space, storage.ErrNotEmpty))
			}
			return err
		}
		if err := fsync(sess.fd, "."); err != nil {
			return err
		}
		return sess.removeMeta(dir)
	})
}

// removeEmpty removes a directory and the directories in it. It fails at the first file; some of the inner directories
// may then be removed.
func (s *session) removeEmpty(dir string) error {
	names, err := s.names(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		st, err := s.stat(dir + "/" + name)
		if err != nil && !isAbsent(err) {
			return err
		}
		if err == nil && !isDir(&st) {
			return pathError("remove", dir, unix.ENOTEMPTY)
		}
		if err == nil {
			if err := s.removeEmpty(dir + "/" + name); err != nil && !isAbsent(err) {
				return err
			}
		}
	}
	return s.unlink(dir, unix.AT_REMOVEDIR)
}

// removeMeta removes the sidecars and the document of a space.
func (s *session) removeMeta(dir string) error {
	meta := metaDir + "/" + dir
	names, err := s.names(meta)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if len(name) == 2 {
			err = s.removeFlat(meta + "/" + name)
		} else {
			err = s.unlink(meta+"/"+name, 0)
		}
		if err != nil && !isAbsentOrNotEmpty(err) {
			return err
		}
	}
	if err := s.unlink(meta, unix.AT_REMOVEDIR); !isAbsentOrNotEmpty(err) {
		return err
	}
	return nil
}

// isAbsentOrNotEmpty reports whether removing a directory failed because it is gone, or because a concurrent call put a
// file into it. That call will find that the space is gone.
func isAbsentOrNotEmpty(err error) bool { return isAbsent(err) || errors.Is(err, unix.ENOTEMPTY) }
