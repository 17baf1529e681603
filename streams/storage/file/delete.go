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

// Delete implements storage.Store. Directories that it leaves empty go too.
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

// remove takes the item's file away and returns where it was, which the caller closes.
func (s *Store) remove(ctx context.Context, sess *session, p itemPath, o storage.DeleteOptions) (at *location, d storage.Deleted, err error) {
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
	if o.Keep {
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

// maxAhead is how far ahead of the clock a time may be for what comes next to be dated after it. Changes that are dated
// further ahead are refused.
const maxSkew = 5 * time.Minute

// newest returns the later of a file's time and that of the newest delete in its item's slot: what comes next is
// dated after both. One that is too far ahead of the clock is refused, since all that comes next would be too.
// The caller has locked the item.
func (s *Store) lastChange(sess *session, p itemPath, modified time.Time) (time.Time, error) {
	deleted, err := sess.lastDelete(p)
	if err != nil {
		return time.Time{}, err
	}
	now := s.cfg.now()
	switch {
	case modified.Sub(now) > maxSkew:
		return time.Time{}, retry.Permanent(fmt.Errorf(
			"the item's file is dated %v, ahead of the clock, which says %v: set the file's time, or the clock, right", modified.UTC(), now.UTC()))
	case deleted.Sub(now) > maxSkew:
		return time.Time{}, retry.Permanent(fmt.Errorf(
			"a delete is on record for %v, ahead of the clock, which says %v: set the clock right; if the clock was wrong then, "+
				"remove %s while no process uses the store", deleted.UTC(), now.UTC(), lockFile))
	case deleted.After(modified):
		return deleted, nil
	}
	return modified, nil
}

// after returns the time of what comes after modified: now, but later than that in
// milliseconds, which is what the times of changes are told in.
func (s *Store) timeAfter(ctx context.Context, modified time.Time) (time.Time, error) {
	first := modified.Truncate(time.Millisecond).Add(time.Millisecond)
	now := s.now()
	if wait := first.Sub(now); wait > 0 && wait <= 2*time.Millisecond {
		if retry.Sleep(ctx, wait) != nil {
			return time.Time{}, storage.Ended(ctx)
		}
		now = s.now()
	}
	if now.Before(first) {
		return first, nil
	}
	return now, nil
}

// absentAt returns the time of an absence that has just been seen: now, or that of the newest delete, if that is later.
// The caller has locked the item.
func (s *Store) absenceTime(sess *session, p itemPath) (time.Time, error) {
	deleted, err := sess.lastDelete(p)
	now := s.now()
	if ahead := deleted.Sub(now); ahead > 0 && ahead <= maxSkew {
		return deleted, err
	}
	return now, err
}

// prune removes the directories from dir upwards, to the space's, that are empty.
func (s *session) prune(space, dir string) {
	for ; dir != space && dir != "."; dir = path.Dir(dir) {
		err := s.within(dir, func(fd int, name string) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) })
		if err != nil && !isAbsent(err) {
			return // somebody needs it; a directory too many is no item
		}
	}
}

// What is kept lies in a directory of its own: the bytes, and a document that says
// what they were.
const (
	quarantineBytes = "bytes"
	quarantineAbout = "about.json"
)

type quarantineDoc struct {
	SpaceDir string `json:"spaceDirectory"`
	Item     string `json:"item"`
	Reason   string `json:"why"`
	metadata
}

// keepDir makes a directory for what is kept, with its document, on disk.
func (s *Store) makeQuarantineDir(sess *session, p itemPath, a metadata, why string) (string, error) {
	now := s.now()
	dir := quarantineDir + "/" + now.Format(quarantineDay) + "/" + now.Format(quarantineTime) + "-" + path.Base(sess.scratch.Load().path)[:8]
	b, err := json.MarshalIndent(quarantineDoc{p.space, p.item, why, a}, "", "  ")
	if err != nil {
		return "", err
	}
	if err := sess.mkdirs(ownDir, dir); err != nil {
		return "", err
	}
	return dir, sess.writeOwn(dir+"/"+quarantineAbout, append(b, '\n'))
}

// keepLink keeps a file that is about to be replaced. undo removes what was kept.
func (s *Store) quarantineLink(sess *session, p itemPath, at *location, a metadata) (undo func() error, err error) {
	dir, err := s.makeQuarantineDir(sess, p, a, "replaced")
	if err != nil {
		return nil, err
	}
	undo = func() error {
		return errors.Join(sess.unlink(dir+"/"+quarantineBytes, 0), sess.unlink(dir+"/"+quarantineAbout, 0), sess.unlink(dir, unix.AT_REMOVEDIR))
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

// keepMove keeps a file that is deleted.
func (s *Store) quarantineMove(sess *session, p itemPath, at *location, a metadata) error {
	dir, err := s.makeQuarantineDir(sess, p, a, "deleted")
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
