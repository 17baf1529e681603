package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Delete implements storage.Store. It also removes parent directories that become empty.
func (s *Store) Delete(ctx context.Context, space, item string, o storage.DeleteOptions) (storage.Deleted, error) {
	p, err := newItemPath(space, item)
	if err != nil {
		return storage.Deleted{}, storage.NotApplied(err)
	}
	sess, err := s.acquireForWrite()
	if err != nil {
		return storage.Deleted{}, err
	}
	defer s.release(sess)
	at, d, err := s.remove(ctx, sess, p, o)
	if err != nil {
		return storage.Deleted{}, fmt.Errorf("delete item %q: %w", item, classify(err))
	}
	defer at.close()
	if err := sess.syncShared(at.dir, at.dirPath); err != nil {
		return storage.Deleted{}, classify(err)
	}
	sess.prune(p.space, at.dirPath)
	return d, nil
}

// remove removes the file of an item and returns its location, which the caller closes.
func (s *Store) remove(
	ctx context.Context, sess *session, p itemPath, o storage.DeleteOptions,
) (at *location, d storage.Deleted, err error) {
	begun := false
	defer func() {
		if !begun {
			err = storage.NotApplied(err)
		}
		if err != nil && at != nil {
			at.close()
		}
	}()
	unlock, err := s.lock(ctx, sess, p.space, p.item)
	if err != nil {
		return nil, d, err
	}
	defer unlock()
	if at, err = sess.mustFind(p); err != nil {
		return nil, d, err
	}
	if err := o.Condition.Check(storage.Object{Version: versionOf(at.st.Mtim.Nano())}, true); err != nil {
		return at, d, err
	}
	a, err := sess.metadataOrUnknown(at, p)
	if err != nil {
		return at, d, err
	}
	d.Object = object(p.item, &at.st, a)
	newest, err := s.lastChange(sess, p, d.Object.Modified)
	if err != nil {
		return at, d, err
	}
	if d.Time, err = s.timeAfter(ctx, newest); err != nil {
		return at, d, err
	}
	if err := sess.recordDelete(p, d.Time); err != nil {
		return at, d, err
	}
	if err := s.stepDone("recorded"); err != nil {
		return at, d, err
	}
	begun = true
	if o.KeepDeleted {
		a.Modified, a.Size = at.st.Mtim.Nano(), at.st.Size
		err = s.quarantineMove(sess, p, at, a)
	} else {
		err = pathError("remove", at.path(), unix.Unlinkat(at.dir, at.name, 0))
	}
	if err == nil {
		err = s.stepDone("removed")
	}
	if err == nil {
		err = s.removeStaleSidecar(sess, p, at)
	}
	return at, d, err
}

// maxSkew bounds how far ahead of the clock the time of the last change may be. The next change gets a later time if
// that is within maxSkew, and is refused otherwise.
const maxSkew = 5 * time.Minute

// lastChange returns the later of a file's modification time and the last delete in the item's slot; the next change
// must be later than both. The time of a delete more than maxSkew ahead of the clock is an error: all later changes
// would be dated ahead too. A program may have set that of a file, which says nothing then. The caller holds the lock
// of the item.
func (s *Store) lastChange(sess *session, p itemPath, modified time.Time) (time.Time, error) {
	deleted, err := sess.lastDelete(p)
	if err != nil {
		return time.Time{}, err
	}
	now := s.cfg.now()
	switch {
	case deleted.Sub(now) > maxSkew:
		return time.Time{}, retry.Permanent(fmt.Errorf(
			"the last recorded delete is of %v, ahead of the clock (%v): correct the clock; "+
				"if the clock was wrong at that time, remove %s while no process uses the store",
			deleted.UTC(), now.UTC(), lockFile))
	case deleted.After(modified), modified.Sub(now) > maxSkew:
		return deleted, nil
	}
	return modified, nil
}

// timeAfter returns the time for a change after modified: now, or the next millisecond after modified if that is
// later. Changes have times in milliseconds. It sleeps if the next millisecond is at most 2 ms away.
func (s *Store) timeAfter(ctx context.Context, modified time.Time) (time.Time, error) {
	first := modified.Truncate(time.Millisecond).Add(time.Millisecond)
	now := s.now()
	if wait := first.Sub(now); wait > 0 && wait <= 2*time.Millisecond {
		if retry.Sleep(ctx, wait) != nil {
			return time.Time{}, storage.ContextErr(ctx)
		}
		now = s.now()
	}
	if now.Before(first) {
		return first, nil
	}
	return now, nil
}

// absenceTime returns the time for an absence that was just observed: now, or the time of the last delete if that is
// later, within maxSkew. In the resolution of the times of files, it is not after a later Put. The caller holds the
// lock of the item.
func (s *Store) absenceTime(sess *session, p itemPath) (time.Time, error) {
	deleted, err := sess.lastDelete(p)
	now := s.now()
	if ahead := deleted.Sub(now); ahead > 0 && ahead <= maxSkew {
		return deleted.Truncate(s.resolution()), err
	}
	return now.Truncate(s.resolution()), err
}

// prune removes empty directories, from dir up to the directory of the space, which stays.
func (s *session) prune(space, dir string) {
	for ; dir != space && dir != "."; dir = path.Dir(dir) {
		err := s.within(dir, func(fd int, name string) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) })
		if err != nil && !isAbsent(err) {
			return // in use; an empty directory that remains is not an item
		}
	}
}

// Each quarantined file has its own directory with the bytes and a document that describes them.
const (
	quarantineBytes = "bytes"
	quarantineAbout = "about.json"
)

// The values of quarantineDoc.Reason.
const (
	quarantineReplaced = "replaced"
	quarantineDeleted  = "deleted"
)

type quarantineDoc struct {
	SpaceDir string `json:"spaceDirectory"`
	Item     string `json:"item"`
	Reason   string `json:"why"`
	metadata
}

// makeQuarantineDir makes a directory in quarantine, with the document in it, durably.
func (s *Store) makeQuarantineDir(sess *session, p itemPath, a metadata, why string) (string, error) {
	now := s.now()
	process := path.Base(sess.scratch.Load().path)[:8]
	dir := quarantineDir + "/" + now.Format(quarantineDay) + "/" + now.Format(quarantineTime) + "-" + process
	b, err := json.MarshalIndent(quarantineDoc{p.space, p.item, why, a}, "", "  ")
	if err != nil {
		return "", err
	}
	if err := sess.mkdirs(ownDir, dir); err != nil {
		return "", err
	}
	return dir, sess.writeOwn(dir+"/"+quarantineAbout, append(b, '\n'))
}

// quarantineLink links a file that is about to be replaced into quarantine. undo removes it from there.
func (s *Store) quarantineLink(sess *session, p itemPath, at *location, a metadata) (undo func() error, err error) {
	dir, err := s.makeQuarantineDir(sess, p, a, quarantineReplaced)
	if err != nil {
		return nil, err
	}
	undo = func() error {
		return errors.Join(sess.unlink(dir+"/"+quarantineBytes, 0), sess.unlink(dir+"/"+quarantineAbout, 0),
			sess.unlink(dir, unix.AT_REMOVEDIR))
	}
	err = sess.within(dir+"/"+quarantineBytes, func(to int, name string) error {
		if err := unix.Linkat(at.dir, at.name, to, name, 0); err != nil {
			return pathError("link", at.path(), err)
		}
		return fsync(to, dir)
	})
	if err == nil {
		err = s.stepDone("kept")
	}
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// quarantineMove deletes a file by moving it into quarantine.
func (s *Store) quarantineMove(sess *session, p itemPath, at *location, a metadata) error {
	dir, err := s.makeQuarantineDir(sess, p, a, quarantineDeleted)
	if err != nil {
		return err
	}
	return sess.within(dir+"/"+quarantineBytes, func(to int, name string) error {
		if err := rename(at.dir, at.name, to, name, unix.RENAME_NOREPLACE); err != nil {
			return pathError("move", at.path(), err)
		}
		return fsync(to, dir)
	})
}
