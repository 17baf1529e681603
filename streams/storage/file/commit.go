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

// A write commits one temporary file as the file of an item. The metadata is in the attribute, which is synced with
// the file, or in a sidecar, which is installed before the file.
type write struct {
	s          *Store
	sess       *session
	p          itemPath
	t          *temp       // the bytes
	st         unix.Stat_t // of t
	o          storage.PutOptions
	digests    digest.Set
	useSidecar bool      // the metadata is in a sidecar, not in the attribute
	sidecar    *temp     // the sidecar, until it is installed
	prev       *metadata // of the file that is replaced
	visible    bool      // other processes may see the file under its final name
}

func (w *write) discard() {
	if w.sidecar != nil {
		w.sidecar.discard()
		w.sidecar = nil
	}
}

// syncEarly syncs the bytes before the item is locked, to keep the lock short. The modification time and the metadata
// are set later, under the lock. A small file on a file system without ordered metadata is synced only then: its
// modification time must be durable before its name, so an early sync would be a second one.
func (w *write) syncEarly() error {
	if w.t.size < largeFile && !w.sess.ordered {
		return nil
	}
	return w.syncFile()
}

// readPrev returns the metadata of the file at the location; nil if there is none.
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

// writeMetadata writes the metadata to the attribute of the file, or else to a sidecar, which also holds the metadata
// of the file that is replaced. It syncs neither.
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

// flush syncs the file and its sidecar.
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

// syncFile syncs the file. It drops a large file from the page cache, so that the next read, a verification for
// example, reads from the disk.
func (w *write) syncFile() error {
	if err := fsync(w.t.fd, w.t.path()); err != nil {
		return err
	}
	if w.t.size >= largeFile {
		_ = unix.Fadvise(w.t.fd, 0, 0, unix.FADV_DONTNEED) // advice only
	}
	return nil
}

// commit gives the file its final name and returns when file, name and metadata are durable.
func (w *write) commit(ctx context.Context) error {
	var err error
	for range maxTries {
		var at *location
		if at, err = w.tryCommit(ctx); err == nil {
			err = w.waitDurable(ctx, at)
			at.close()
			return err
		}
		retryable := isAbsent(err) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EISDIR)
		if w.visible || errors.Is(err, errTempRemoved) || !retryable {
			return err
		}
		// A parent directory is missing, or another program, which takes no lock, has created a file there.
		if err := w.s.makeParents(ctx, w.sess, w.p); err != nil {
			return err
		}
	}
	return fmt.Errorf("directories keep changing: %w", err)
}

// tryCommit gives the file its final name if the condition holds. It locks the item meanwhile.
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

// finalize sets the modification time, writes the metadata and syncs both. The time is taken while the item is locked.
// In milliseconds, the resolution of changes, it is later than the replaced file and the last delete: no earlier
// operation or observation of another process has a later time than this write.
func (w *write) finalize(ctx context.Context, at *location) error {
	var modified time.Time
	if at.present {
		modified = modTime(&at.st)
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
	// With ordered metadata syncEarly has synced the bytes, and the journal makes the rest durable with the name.
	if w.useSidecar || !w.sess.ordered {
		if err := w.flush(); err != nil {
			return err
		}
	}
	return w.s.stepDone("written")
}

// putNew gives the file its final name if the item has no file.
func (w *write) putNew(at *location) error {
	if err := w.installSidecar(); err != nil {
		return err
	}
	err := w.move(at.dir, at.name, unix.RENAME_NOREPLACE)
	if err == nil || w.visible {
		return err
	}
	if errors.Is(err, unix.EEXIST) {
		serr := at.lookup(at.name)
		switch obstacle := obstacleOf(&at.st); {
		case serr == nil && obstacle == obstacleDir:
			err = w.putNewAtAlt(at)
		case serr == nil && obstacle == obstacleOther:
			err = retry.Permanent(fmt.Errorf("the path is neither a regular file nor a directory: %w", storage.ErrName))
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

// An obstacle is a file that keeps a new item from its name.
type obstacle uint8

const (
	obstacleNone  obstacle = iota // it was removed, or is the file of another put of the item: look again
	obstacleDir                   // the item gets its alternative name
	obstacleOther                 // a link, a device: the item cannot have the name
)

func obstacleOf(st *unix.Stat_t) obstacle {
	switch {
	case st.Mode == 0 || isRegular(st): // Mode 0: there is nothing
		return obstacleNone
	case isDir(st):
		return obstacleDir
	}
	return obstacleOther
}

// putNewAtAlt gives the file its alternate name, because a directory has its own name, and sets the location to it.
func (w *write) putNewAtAlt(at *location) error {
	if dir := path.Dir(w.p.alt); dir != at.dirPath { // a long name, which is split over directories
		if err := w.sess.mkdirs(at.dirPath, dir); err != nil {
			return err
		}
		alt, err := w.sess.locationOf(w.p.alt)
		if err != nil {
			return err
		}
		at.close()
		*at = *alt
	}
	at.name = path.Base(w.p.alt)
	return w.move(at.dir, at.name, unix.RENAME_NOREPLACE)
}

// replace renames the file over the existing one.
func (w *write) replace(at *location) (err error) {
	if err := w.installSidecar(); err != nil {
		return err
	}
	undo := func() error { return nil }
	if w.o.KeepReplaced {
		if undo, err = w.s.quarantineLink(w.sess, w.p, at, *w.prev); err != nil {
			return fmt.Errorf("quarantine the replaced file: %w", err)
		}
	}
	err = pathError("rename", at.path(), w.move(at.dir, at.name, 0))
	if err != nil && !w.visible {
		return errors.Join(err, undo())
	}
	return err
}

// move renames the temporary file and records whether the new name may be visible.
func (w *write) move(dir int, name string, flags uint) error {
	err := w.t.move(dir, name, flags)
	if w.visible = !storage.IsNotApplied(err); err == nil {
		err = w.s.stepDone("moved")
	}
	return err
}

// installSidecar renames the sidecar, if there is one, to its path, before the file is renamed. It also holds the
// metadata of the old file, so nothing is lost if the rename of the file does not follow.
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
	// The name of the sidecar must be durable before the name of the file.
	dir, _ := sidecarPath(w.p)
	if err := w.sess.syncDir(dir); err != nil {
		return err
	}
	return w.s.stepDone("sidecar synced")
}

// removeStaleSidecar removes the sidecar of an item after its file was deleted, or replaced by a file with an
// attribute. The caller holds the lock of the item. Without ordered metadata it syncs the directory of the file first:
// otherwise a crash could bring back the old file without its sidecar.
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

// waitDurable returns when the name of the file is durable. The name of the sidecar already is: it came first, and the
// journal or installSidecar has synced it.
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

// setModTime sets the modification time of the file.
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

// setModTimeAfter sets the modification time to at, or later if the file system has coarse times and would round it
// to the millisecond of than. It does not sync.
func (t *temp) setModTimeAfter(at, than time.Time) (st unix.Stat_t, err error) {
	for _, step := range []time.Duration{0, time.Millisecond, time.Second, 2 * time.Second} {
		st, err = t.setModTime(at.Add(step))
		if err != nil {
			return st, err
		}
		if modTime(&st).UnixMilli() > than.UnixMilli() {
			return st, nil
		}
	}
	return st, fmt.Errorf("set modification time of %s to %v: the file system does not keep that time", t.name, at)
}
