package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A write brings one temporary file, with a sidecar, to its place. Four things must be
// on disk in the end: both files, and then both their names.
type write struct {
	s       *Store
	sess    *session
	p       place
	t       *temp       // the bytes
	st      unix.Stat_t // of t
	o       storage.PutOptions
	digests digest.Set
	side    *temp   // the sidecar; nil when it has to be written anew
	was     *aspect // what side says of the file that is replaced
	sideDir string
	shown   bool // others may see the file in its place
}

// move has the file take its place.
func (w *write) move(dir int, name string, flags uint) error {
	err := w.t.move(dir, name, flags)
	if w.shown = !storage.IsNotApplied(err); err == nil {
		err = w.s.did("moved")
	}
	return err
}

func (w *write) discard() {
	if w.side != nil {
		w.side.discard()
		w.side = nil
	}
}

// prepare dates the file and writes the sidecar, for the file that is in the place now,
// and has both on disk. No lock is held: what is in the place may be another one soon.
func (w *write) prepare() error {
	_, old, err := w.sess.locate(w.p)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	if err == nil {
		if w.was, err = w.aspectOf(&old); err != nil {
			return err
		}
	}
	if w.st, err = w.t.date(w.s.now()); err != nil {
		return err
	}
	if err := w.sidecar(); err != nil {
		return err
	}
	return both(
		w.t.flush,
		func() error { return fsync(w.side.fd, w.sideDir) })
}

// flush has the bytes on disk. A large file does not stay in the page cache: whoever reads
// it next, to see that it is intact, sees what the disk has.
func (t *temp) flush() error {
	if err := fsync(t.fd, t.path()); err != nil {
		return err
	}
	if t.size >= large {
		_ = unix.Fadvise(t.fd, 0, 0, unix.FADV_DONTNEED) // advice only
	}
	return nil
}

// both calls f and g at the same time.
func both(f, g func() error) error {
	var gErr error
	var wg sync.WaitGroup
	wg.Go(func() { gErr = g() })
	fErr := f()
	wg.Wait()
	return errors.Join(fErr, gErr)
}

// aspectOf returns what the sidecar says of the file that is in the place.
func (w *write) aspectOf(old *unix.Stat_t) (*aspect, error) {
	sc, err := w.sess.oldSidecar(w.p)
	if err != nil {
		return nil, err
	}
	a, _ := sc.of(old.Mtim.Nano())
	a.Modified, a.Size = old.Mtim.Nano(), old.Size
	return &a, nil
}

// sidecar writes the sidecar anew; it is not synced.
func (w *write) sidecar() error {
	w.discard()
	b, err := json.Marshal(sidecar{Item: w.p.item, Now: newAspect(&w.st, w.digests, w.o.Properties, newOriginal(w.o.Original)), Was: w.was})
	if err != nil {
		return err
	}
	w.sideDir, _ = sidecarPath(w.p)
	w.side, err = w.sess.tempOf(b)
	return err
}

// commit puts the file into its place, and returns when all is on disk.
func (w *write) commit(ctx context.Context) (err error) {
	var at string
	for range maxTries {
		at, err = w.try(ctx)
		if err == nil {
			return w.settle(ctx, at)
		}
		if errors.Is(err, errRemoved) || !isAbsent(err) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EISDIR) {
			return err
		}
		// A directory is missing, or the place was taken by what takes no lock.
		if err := w.s.makeRoom(ctx, w.sess, w.p); err != nil {
			return err
		}
	}
	return fmt.Errorf("others keep changing the directories: %w", err)
}

// try puts the file into its place, if the item is as the condition wants it, and
// returns the path.
func (w *write) try(ctx context.Context) (string, error) {
	unlock, err := w.s.lock(ctx, w.sess, w.p.space, w.p.item)
	if err != nil {
		return "", err
	}
	defer unlock()
	at, old, err := w.sess.locate(w.p)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return "", err
	}
	present := err == nil
	if err := w.o.Condition.Check(storage.Object{Version: versionOf(old.Mtim.Nano())}, present); err != nil {
		return "", err
	}
	if err := w.refresh(ctx, &old, present); err != nil {
		return "", err
	}
	if !present {
		return w.first()
	}
	return at, w.over(at)
}

// refresh has the sidecar tell of the file that is in the place now, and dates the new
// file later than that and than the newest delete, in the milliseconds of changes: of
// two writers at the same time the one that was last is the one that counts.
func (w *write) refresh(ctx context.Context, old *unix.Stat_t, present bool) (err error) {
	var was *aspect
	var modified time.Time
	if present {
		if was, err = w.aspectOf(old); err != nil {
			return err
		}
		modified = time.Unix(0, old.Mtim.Nano())
	}
	newest, err := w.s.newest(w.sess, w.p, modified)
	if err != nil {
		return err
	}
	stale := milli(&w.st) <= newest.UnixMilli()
	if stale {
		at, err := w.s.after(ctx, newest)
		if err != nil {
			return err
		}
		if w.st, err = w.t.dateLater(at, newest); err != nil {
			return err
		}
	}
	if !stale && w.side != nil && reflect.DeepEqual(w.was, was) {
		return nil
	}
	w.was = was
	if err := w.sidecar(); err != nil {
		return err
	}
	return fsync(w.side.fd, w.sideDir)
}

// first puts the file where no file of the item is.
func (w *write) first() (string, error) {
	dir, err := w.sess.dir(path.Dir(w.p.path))
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	if err := checkNames(dir, path.Dir(w.p.path)); err != nil {
		return "", err
	}
	if err := w.moveSidecar(); err != nil {
		return "", err
	}
	err = w.move(dir, path.Base(w.p.path), unix.RENAME_NOREPLACE)
	if err == nil || w.shown {
		return w.p.path, err
	}
	if errors.Is(err, unix.EEXIST) {
		st, serr := w.sess.stat(w.p.path)
		switch {
		case serr == nil && isDir(&st):
			if err = w.firstBeside(); err == nil {
				return w.p.beside, nil
			}
		case serr == nil && !isRegular(&st):
			err = retry.Permanent(fmt.Errorf("what is neither file nor directory is there: %w", storage.ErrName))
		}
	}
	if w.shown {
		return "", err
	}
	return "", errors.Join(named("rename", w.p.path, err), w.sess.removeSidecar(w.p))
}

func (w *write) firstBeside() error {
	beside := path.Dir(w.p.beside)
	if beside != path.Dir(w.p.path) { // the name is so long that it is split
		if err := w.sess.mkdirs(path.Dir(w.p.path), beside); err != nil {
			return err
		}
	}
	return w.sess.within(w.p.beside, func(dir int, name string) error {
		return w.move(dir, name, unix.RENAME_NOREPLACE)
	})
}

// over puts the file over the one that is there.
func (w *write) over(at string) (err error) {
	if err := w.moveSidecar(); err != nil {
		return err
	}
	undo := func() error { return nil }
	if w.o.KeepReplaced {
		if undo, err = w.s.keepLink(w.sess, w.p, at, *w.was); err != nil {
			return fmt.Errorf("keep what is replaced: %w", err)
		}
	}
	err = w.sess.within(at, func(dir int, name string) error {
		if err := checkNames(dir, path.Dir(at)); err != nil {
			return err
		}
		return named("rename", at, w.move(dir, name, 0))
	})
	if err != nil && !w.shown {
		return errors.Join(err, undo())
	}
	return err
}

// moveSidecar has the sidecar take its place, before the file does. It tells of the old
// file too, so nothing is lost where the file does not follow.
func (w *write) moveSidecar() error {
	err := w.sess.placeSidecar(w.p, w.side)
	w.discard()
	return err
}

// settle returns when the names of both files are on disk. The sidecar's was given
// first, so where the journal keeps the order of renames it is there when the other is.
func (w *write) settle(ctx context.Context, at string) error {
	err := w.sess.syncDir(path.Dir(at))
	if err == nil && !w.sess.ordered {
		err = w.sess.syncDir(w.sideDir)
	}
	if err != nil {
		return err
	}
	if err := w.sess.settled(ctx, at); err != nil {
		return err
	}
	return w.sess.settled(ctx, w.sideDir+"/")
}

// date sets the file's modification time.
func (t *temp) date(at time.Time) (unix.Stat_t, error) {
	name := t.path()
	var st unix.Stat_t
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return st, named("date", name, err)
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}
	if err := unix.UtimesNanoAt(t.in.fd, t.name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, named("date", name, err)
	}
	err = unix.Fstat(t.fd, &st)
	return st, named("stat", name, err)
}

// dateLater dates the file at a time, or after it where a file system with coarse times
// would not tell it from another's millisecond, and has that on disk.
func (t *temp) dateLater(at, than time.Time) (st unix.Stat_t, err error) {
	for _, step := range []time.Duration{0, time.Millisecond, time.Second, 2 * time.Second} {
		st, err = t.date(at.Add(step))
		if err != nil {
			return st, err
		}
		if milli(&st) > than.UnixMilli() {
			return st, fsync(t.fd, t.path())
		}
	}
	return st, fmt.Errorf("date %s at %v: the file system keeps no such time", t.name, at)
}

// milli is a file's modification time as changes tell it.
func milli(st *unix.Stat_t) int64 { return time.Unix(0, st.Mtim.Nano()).UnixMilli() }
