package file

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A write brings one temporary file to its place. What is known of it is in its attribute, and so on disk with it; or
// else in a sidecar, which takes its place first.
type write struct {
	s          *Store
	sess       *session
	p          itemPath
	t          *temp       // the bytes
	st         unix.Stat_t // of t
	o          storage.PutOptions
	digests    digest.Set
	useSidecar bool      // what is known is kept in a sidecar, and not in the attribute
	sidecar    *temp     // the sidecar, until it has its place
	prev       *metadata // what is known of the file that is replaced
	visible    bool      // others may see the file in its place
}

func (w *write) discard() {
	if w.sidecar != nil {
		w.sidecar.discard()
		w.sidecar = nil
	}
}

// prepare has the file on disk before the item is locked; it is dated and described under the lock. A small one on a file
// system that does not keep order is synced only then, once: its date has to be on disk before its name.
func (w *write) syncEarly() error {
	if w.t.size < largeFile && !w.sess.ordered {
		return nil
	}
	return w.syncFile()
}

// replaced returns what is known of the file that is in the place; nil if there is none.
func (w *write) readPrev(at *location) (*metadata, error) {
	if !at.present {
		return nil, nil
	}
	a, err := w.sess.metadataOrUnknown(at, w.p)
	if err != nil {
		return nil, err
	}
	a.Modified, a.Size = at.st.Mtim.Nano(), at.st.Size
	return &a, nil
}

// describe writes what is known of the file to its attribute, or to a sidecar, which also says what is known of the
// file that is replaced. Neither is synced.
func (w *write) writeMetadata(at *location) (err error) {
	w.discard()
	now := newMetadata(&w.st, w.digests, w.o.Properties, newOriginal(w.o.Original))
	inAttr := false
	if w.sess.useAttrs.Load() {
		if inAttr, err = writeAttr(w.t.fd, w.p.item, now, w.s.cfg.maxAttr); err != nil {
			return err
		}
	}
	w.useSidecar = !inAttr
	if w.useSidecar || w.o.KeepReplaced {
		if w.prev, err = w.readPrev(at); err != nil {
			return err
		}
	}
	if w.useSidecar {
		w.sidecar, err = w.sess.sidecarTemp(sidecar{Item: w.p.item, Current: now, Previous: w.prev})
	}
	return err
}

// flush has the file and its sidecar on disk.
func (w *write) flush() error {
	if w.sidecar == nil {
		return w.syncFile()
	}
	var sideErr error
	var wg sync.WaitGroup
	wg.Go(func() { sideErr = fsync(w.sidecar.fd, w.sidecar.path()) })
	err := w.syncFile()
	wg.Wait()
	return errors.Join(err, sideErr)
}

// syncFile has the file on disk. A large one does not stay in the page cache: the next who reads it, to see that it is
// intact, sees what the disk has.
func (w *write) syncFile() error {
	if err := fsync(w.t.fd, w.t.path()); err != nil {
		return err
	}
	if w.t.size >= largeFile {
		_ = unix.Fadvise(w.t.fd, 0, 0, unix.FADV_DONTNEED) // advice only
	}
	return nil
}

// commit puts the file into its place, and returns when all is on disk.
func (w *write) commit(ctx context.Context) error {
	var err error
	for range maxTries {
		var at *location
		if at, err = w.tryCommit(ctx); err == nil {
			err = w.waitDurable(ctx, at)
			at.close()
			return err
		}
		if w.visible || errors.Is(err, errTempRemoved) || !isAbsent(err) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EISDIR) {
			return err
		}
		// A directory is missing, or the place was taken by what takes no lock.
		if err := w.s.makeParents(ctx, w.sess, w.p); err != nil {
			return err
		}
	}
	return fmt.Errorf("others keep changing the directories: %w", err)
}

// try puts the file into its place, if the item is as the condition wants it.
func (w *write) tryCommit(ctx context.Context) (at *location, err error) {
	unlock, err := w.s.lock(ctx, w.sess, w.p.space, w.p.item)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if at, err = w.sess.find(w.p); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			at.close()
		}
	}()
	if err := w.o.Condition.Check(storage.Object{Version: versionOf(at.st.Mtim.Nano())}, at.present); err != nil {
		return at, err
	}
	if err := w.finalize(ctx, at); err != nil {
		return at, err
	}
	if at.present {
		err = w.replace(at)
	} else {
		err = w.putNew(at)
	}
	if err == nil && !w.useSidecar {
		err = w.s.removeStaleSidecar(w.sess, w.p, at)
	}
	return at, err
}

// date dates the file, describes it, and has that on disk. The date is that of now, while the item is locked, and later
// than that of the file in the place and of the newest delete, in the milliseconds of changes: what others did, or saw,
// before the file takes its place is not dated after it.
func (w *write) finalize(ctx context.Context, at *location) error {
	var modified time.Time
	if at.present {
		modified = time.Unix(0, at.st.Mtim.Nano())
	}
	newest, err := w.s.lastChange(w.sess, w.p, modified)
	if err != nil {
		return err
	}
	now, err := w.s.timeAfter(ctx, newest)
	if err != nil {
		return err
	}
	if w.st, err = w.t.setModTimeAfter(now, newest); err != nil {
		return err
	}
	if err := w.writeMetadata(at); err != nil {
		return err
	}
	// The bytes are on disk if the journal keeps order, and it has the rest on disk with the file's name.
	if w.useSidecar || !w.sess.ordered {
		if err := w.flush(); err != nil {
			return err
		}
	}
	return w.s.stepDone("written")
}

// first puts the file where no file of the item is.
func (w *write) putNew(at *location) error {
	if err := w.installSidecar(); err != nil {
		return err
	}
	err := w.move(at.dir, at.name, unix.RENAME_NOREPLACE)
	if err == nil || w.visible {
		return err
	}
	if errors.Is(err, unix.EEXIST) {
		switch serr := at.lookup(at.name); {
		case serr == nil && isDir(&at.st):
			err = w.putNewAtAlt(at)
		case serr == nil && !isRegular(&at.st):
			err = retry.Permanent(fmt.Errorf("what is neither file nor directory is there: %w", storage.ErrName))
		}
	}
	if err == nil || w.visible {
		return err
	}
	err = pathError("rename", w.p.path, err)
	if w.useSidecar {
		err = errors.Join(err, w.sess.removeSidecar(w.p))
	}
	return err
}

// firstBeside puts the file beside the directory that has its name, and moves the spot there.
func (w *write) putNewAtAlt(at *location) error {
	if dir := path.Dir(w.p.alt); dir != at.dirPath { // the name is so long that it is split
		if err := w.sess.mkdirs(at.dirPath, dir); err != nil {
			return err
		}
		beside, err := w.sess.locationOf(w.p.alt)
		if err != nil {
			return err
		}
		at.close()
		*at = *beside
	}
	at.name = path.Base(w.p.alt)
	return w.move(at.dir, at.name, unix.RENAME_NOREPLACE)
}

// over puts the file over the one that is there.
func (w *write) replace(at *location) (err error) {
	if err := w.installSidecar(); err != nil {
		return err
	}
	undo := func() error { return nil }
	if w.o.KeepReplaced {
		if undo, err = w.s.quarantineLink(w.sess, w.p, at, *w.prev); err != nil {
			return fmt.Errorf("keep what is replaced: %w", err)
		}
	}
	err = pathError("rename", at.path(), w.move(at.dir, at.name, 0))
	if err != nil && !w.visible {
		return errors.Join(err, undo())
	}
	return err
}

// move has the file take its place.
func (w *write) move(dir int, name string, flags uint) error {
	err := w.t.move(dir, name, flags)
	if w.visible = !storage.IsNotApplied(err); err == nil {
		err = w.s.stepDone("moved")
	}
	return err
}

// placeSidecar has the sidecar, if there is one, take its place, before the file does. It tells of the old
// file too, so nothing is lost where the file does not follow.
func (w *write) installSidecar() error {
	if w.sidecar == nil {
		return nil
	}
	err := w.sess.installSidecar(w.p, w.sidecar)
	w.discard()
	if err == nil {
		err = w.s.stepDone("sidecar placed")
	}
	if err != nil || w.sess.ordered {
		return err
	}
	// The file's name must not be on disk before the sidecar's is.
	dir, _ := sidecarPath(w.p)
	if err := w.sess.syncDir(dir); err != nil {
		return err
	}
	return w.s.stepDone("sidecar synced")
}

// dropSidecar removes an item's sidecar after its file was replaced by one with an attribute, or removed. The caller has
// locked the item. Where the journal keeps no order that is on disk first: else the file of before could come back
// without its sidecar.
func (s *Store) removeStaleSidecar(sess *session, p itemPath, at *location) error {
	if !sess.ordered {
		_, path := sidecarPath(p)
		if _, err := sess.stat(path); err != nil {
			return ignoreAbsent(err)
		}
		if err := sess.syncShared(at.dir, at.dirPath); err != nil {
			return err
		}
		if err := s.stepDone("directory synced"); err != nil {
			return err
		}
	}
	return sess.removeSidecar(p)
}

// settle returns when the file's name is on disk. Its sidecar's was given first, and is: by the journal, or by a sync.
func (w *write) waitDurable(ctx context.Context, at *location) error {
	if err := w.sess.syncShared(at.dir, at.dirPath); err != nil {
		return err
	}
	if err := w.sess.waitPending(ctx, at.path()); err != nil {
		return err
	}
	if !w.useSidecar {
		return nil
	}
	sideDir, _ := sidecarPath(w.p)
	return w.sess.waitPending(ctx, sideDir+"/")
}

// date sets the file's modification time.
func (t *temp) setModTime(at time.Time) (unix.Stat_t, error) {
	name := t.path()
	var st unix.Stat_t
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return st, pathError("date", name, err)
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}
	if err := unix.UtimesNanoAt(t.in.fd, t.name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err = pathError("date", name, err); isRemoved(err) {
			err = fmt.Errorf("%w: %w", errTempRemoved, err)
		}
		return st, err
	}
	err = unix.Fstat(t.fd, &st)
	return st, pathError("stat", name, err)
}

// dateLater dates the file at a time, or after it where a file system with coarse times
// would not tell it from another's millisecond. That is not synced.
func (t *temp) setModTimeAfter(at, than time.Time) (st unix.Stat_t, err error) {
	for _, step := range []time.Duration{0, time.Millisecond, time.Second, 2 * time.Second} {
		st, err = t.setModTime(at.Add(step))
		if err != nil {
			return st, err
		}
		if modMillis(&st) > than.UnixMilli() {
			return st, nil
		}
	}
	return st, fmt.Errorf("date %s at %v: the file system keeps no such time", t.name, at)
}

// milli is a file's modification time as changes tell it.
func modMillis(st *unix.Stat_t) int64 { return time.Unix(0, st.Mtim.Nano()).UnixMilli() }
