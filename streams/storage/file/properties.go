package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// SetProperties implements storage.Store. The bytes and the version of the item stay the same.
func (s *Store) SetProperties(
	ctx context.Context, space, item string, props storage.Properties, c storage.Condition,
) (_ storage.Object, err error) {
	begun := false
	defer func() {
		if !begun {
			err = storage.NotApplied(err)
		}
	}()
	p, err := newItemPath(space, item)
	if err != nil {
		return storage.Object{}, err
	}
	if err := checkProperties(props); err != nil {
		return storage.Object{}, err
	}
	sess, err := s.acquireForWrite()
	if err != nil {
		return storage.Object{}, err
	}
	defer s.release(sess)
	unlock, err := s.lock(ctx, sess, p.space, p.item)
	if err != nil {
		return storage.Object{}, err
	}
	defer unlock()
	at, err := sess.mustFind(p)
	if err != nil {
		return storage.Object{}, err
	}
	defer at.close()
	if err := c.Check(storage.Object{Version: versionOf(at.st.Mtim.Nano())}, true); err != nil {
		return storage.Object{}, fmt.Errorf("item %q: %w", item, err)
	}
	if sess.attrsMissing.Load() {
		return storage.Object{}, retry.Permanent(fmt.Errorf(
			"set properties of item %q: root %s was made with extended attributes, and its file system here has none: %w",
			item, s.cfg.Root, storage.ErrUnsupported))
	}
	was, err := sess.metadataAt(at, p)
	if err != nil {
		return storage.Object{}, fmt.Errorf("set properties of item %q: %w", item, err)
	}
	now := newMetadata(&at.st, was.Digests, props, was.Original)
	begun = true
	if err := s.updateMetadata(sess, at, p, now); err != nil {
		return storage.Object{}, fmt.Errorf("set properties of item %q: %w", item, classify(err))
	}
	return object(item, &at.st, now), nil
}

// updateMetadata writes the metadata of an existing file and returns when it is durable: to the attribute, or to a
// sidecar if the attribute cannot hold it. At each step at least one of the two is valid; if both are, the attribute
// takes precedence. Therefore a valid attribute that cannot be changed is a permanent error, and nothing is changed:
// the file is not writable, or has several hard links. The caller holds the lock of the item.
func (s *Store) updateMetadata(sess *session, at *location, p itemPath, a metadata) error {
	fd, err := at.open()
	if err != nil {
		return storage.NotApplied(err)
	}
	defer unix.Close(fd)
	attr, err := readAttr(fd, p.item)
	if err != nil && !errors.Is(err, errAttrDamaged) {
		return storage.NotApplied(err)
	}
	counts, shared := attr != nil && attr.Modified == at.st.Mtim.Nano(), at.st.Nlink > 1
	if counts && shared {
		return storage.NotApplied(retry.Permanent(fmt.Errorf(
			"%s has %d names (hard links), which share its attribute; write the item again to give it a file of its own: %w",
			at.path(), at.st.Nlink, storage.ErrUnsupported)))
	}
	var inAttr bool
	err = nil
	if sess.useAttrs.Load() && !shared {
		inAttr, err = writeAttr(fd, p.item, a, s.cfg.maxAttr)
	}
	if err == nil && counts && !inAttr { // the attribute is removed below: test whether that is permitted
		_, err = writeAttr(fd, p.item, *attr, 0)
	}
	switch {
	case errors.Is(err, fs.ErrPermission) && counts:
		return storage.NotApplied(retry.Permanent(err))
	case err != nil && !errors.Is(err, fs.ErrPermission):
		return err
	case inAttr:
		return s.syncAttr(sess, fd, at, p)
	}
	if err := sess.setSidecar(p, sidecar{Item: p.item, Current: a}); err != nil {
		return err
	}
	if err := s.stepDone("sidecar placed"); err != nil || !counts {
		return err
	}
	if err := removeAttr(fd); err != nil {
		return err
	}
	if err := s.stepDone("attribute removed"); err != nil {
		return err
	}
	return fsync(fd, at.path())
}

// syncAttr syncs the attribute of a file, and then removes the sidecar.
func (s *Store) syncAttr(sess *session, fd int, at *location, p itemPath) error {
	if err := s.stepDone("attribute written"); err != nil {
		return err
	}
	if err := fsync(fd, at.path()); err != nil {
		return err
	}
	if err := s.stepDone("attribute synced"); err != nil {
		return err
	}
	return sess.removeSidecar(p)
}
