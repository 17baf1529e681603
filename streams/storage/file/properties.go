package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// SetProperties implements storage.Store. Neither file nor version changes.
func (s *Store) SetProperties(
	ctx context.Context, space, item string, props storage.Properties, c storage.Condition,
) (_ storage.Object, err error) {
	begun := false
	defer func() {
		if !begun {
			err = storage.NotApplied(err)
		}
	}()
	p, err := newPlace(space, item)
	if err != nil {
		return storage.Object{}, err
	}
	if err := checkProperties(props); err != nil {
		return storage.Object{}, err
	}
	sess, err := s.enterWrite()
	if err != nil {
		return storage.Object{}, err
	}
	defer s.leave(sess)
	unlock, err := s.lock(ctx, sess, p.space, p.item)
	if err != nil {
		return storage.Object{}, err
	}
	defer unlock()
	at, err := sess.present(p)
	if err != nil {
		return storage.Object{}, err
	}
	defer at.close()
	if err := c.Check(storage.Object{Version: versionOf(at.st.Mtim.Nano())}, true); err != nil {
		return storage.Object{}, fmt.Errorf("item %q: %w", item, err)
	}
	was, err := sess.aspectAt(at, p)
	if err != nil {
		return storage.Object{}, fmt.Errorf("set properties of item %q: %w", item, err)
	}
	now := newAspect(&at.st, was.Digests, props, was.Original)
	begun = true
	if _, err := s.describe(sess, at, p, now); err != nil {
		return storage.Object{}, fmt.Errorf("set properties of item %q: %w", item, refine(err))
	}
	return object(item, &at.st, now), nil
}

// describe writes what is known of a file that is in its place and returns when that is on disk: to the attribute, or,
// if the attribute cannot have it, to a sidecar. It reports whether the attribute has it. At each step one of the two
// speaks for the file; if both do, the attribute counts. The caller has locked the item.
func (s *Store) describe(sess *session, at *spot, p place, a aspect) (inAttr bool, err error) {
	fd, err := at.open()
	if err == nil {
		defer unix.Close(fd)
		if sess.attrs.Load() {
			inAttr, err = s.tryAttr(fd, at, p, a)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrPermission) { // of a file that may not be written to
		return false, err
	}
	if inAttr {
		if err := s.did("attribute written"); err != nil {
			return false, err
		}
		if err := fsync(fd, at.path()); err != nil {
			return false, err
		}
		if err := s.did("attribute synced"); err != nil {
			return false, err
		}
		return true, sess.removeSidecar(p)
	}
	if err := sess.setSidecar(p, sidecar{Item: p.item, Now: a}); err != nil {
		return false, err
	}
	if err := s.did("sidecar placed"); err != nil || fd < 0 {
		return false, err
	}
	if _, err := fgetxattr(fd, nil); noAttr(err) {
		return false, nil
	}
	if err := removeAttr(fd); err != nil {
		return false, err
	}
	return false, fsync(fd, at.path())
}

// tryAttr writes the attribute, if there is room. A file that has several names keeps what is known beside it, unless
// it has an attribute already: others may be items too.
func (s *Store) tryAttr(fd int, at *spot, p place, a aspect) (bool, error) {
	if at.st.Nlink > 1 {
		if _, err := fgetxattr(fd, nil); noAttr(err) {
			return false, nil
		}
	}
	return writeAttr(fd, p.item, a, s.cfg.attrRoom)
}
