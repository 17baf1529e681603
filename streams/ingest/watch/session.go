package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// errMissed: something happened of which there was no hint.
var errMissed = errors.New("hints were missed")

// A session is one time of watching a root that stays where it is.
type session struct {
	*Watch
	notify *notifier
	root   fs.FileInfo
	walk   *walk
	mark   *mark

	begun     time.Time
	published time.Time // all that was before is published
	missed    bool      // the kernel or the queue dropped hints: the tree must be walked again
	unsure    bool      // the root could not be looked at the last time

	mu sync.Mutex // guards the rest
	// dirs are the directories that were seen, by path below the root ("." is the root), with their watches; 0: not watched.
	// The parent of each is there, too.
	dirs map[string]int
	// paths has for each watch the path that it was made for. A directory that was moved is in dirs under two paths until
	// the event of that is read; its events come under the old one.
	paths  map[int]string
	failed bool // a directory is not watched, or there is no mark
	full   bool // the kernel has no watches left: reported once
}

func (w *Watch) newSession(notify *notifier) *session {
	return &session{Watch: w, notify: notify, dirs: map[string]int{}, paths: map[int]string{}}
}

// A seen says up to when all that happened in a root is published, but for what is in the directories that wait to be read
// again. Without a root nothing is.
type seen struct {
	root  fs.FileInfo
	until time.Time
	later map[string]found
}

// session watches until ctx is done, the root goes, or the tree must be walked again (errMissed). The walk leaves out what
// is older than from, if the root is the same. upTo is from of the next session, if err is not errGone.
func (w *Watch) session(ctx context.Context, from seen) (upTo seen, err error) {
	notify, err := newNotifier()
	if err != nil {
		return from, err
	}
	defer notify.close()
	s := w.newSession(notify)
	if s.root, err = os.Stat(w.cfg.Root); err != nil {
		return from, goneIf(err, fs.ErrNotExist, unix.ENOTDIR)
	}
	now := time.Now()
	if from.root == nil || !os.SameFile(s.root, from.root) ||
		wentBack(now.Round(0).Sub(from.until.Round(0)), now.Sub(from.until), w.cfg.margin) {
		from = seen{root: s.root}
	}
	if err := s.there(ctx); err != nil {
		return from, err
	}
	if s.mark, err = newMark(notify); err != nil {
		s.failed, s.mark = true, new(mark)
		w.log.Warn("how far events are read is not known: after dropped events more files are looked at than need be", "err", err)
	}
	defer s.mark.close()
	s.walk, s.begun, s.published = newWalk(s, from), now, from.until
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return notify.run(gctx) })
	g.Go(func() error { return s.walk.run(gctx) })
	g.Go(func() error { return s.watch(gctx) })
	if err = g.Wait(); !errors.Is(err, errMissed) {
		return from, err // the walk may not be at its end
	}
	return seen{s.root, s.published, s.walk.later}, err
}

// errGone: the root or the store in it is gone. What comes back may be another tree.
var errGone = errors.New("the root is gone, or another's")

// goneIf makes err errGone as well if it is one of those.
func goneIf(err error, those ...error) error {
	if slices.ContainsFunc(those, func(e error) bool { return errors.Is(err, e) }) {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

// wentBack reports whether the clock of the wall was set back by more than margin while so much time went by, by it and by
// one that is never set: what changed since may have an earlier time than what changed before.
func wentBack(wall, passed, margin time.Duration) bool { return passed-wall > margin }

// watch takes what the kernel says until ctx is done; its error ends the session.
func (s *session) watch(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.again)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case e := <-s.notify.events:
			err = s.event(e)
		case <-tick.C:
			err = s.tick(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// tick looks whether the root is there, and finds out up to when all is published. An error ends the session.
func (s *session) tick(ctx context.Context) error {
	switch err := s.there(ctx); {
	case errors.Is(err, errGone):
		return err
	case err != nil: // which says nothing of the tree: it is watched on
		if !s.unsure && ctx.Err() == nil {
			s.log.Warn("the root cannot be looked at now: it is tried again", "root", s.cfg.Root, "err", err, "again", s.cfg.again)
		}
		s.unsure = true
		return nil
	}
	s.unsure = false
	if s.walk.busy() {
		return nil // a walk that was begun is done first, or none would end while there is much to do
	}
	missed, upTo := s.queue.missed() || s.missed, s.mark.passed
	if missed || s.unwatched() {
		upTo = s.begun // what was before is found
	}
	if t := s.queue.since(upTo).Add(-s.cfg.margin); t.After(s.published) {
		s.published = t
	}
	if missed {
		return errMissed
	}
	s.walk.again(time.Now())
	s.mark.set(time.Now())
	return nil
}

func (s *session) unwatched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// there looks whether the root is what it was, and the store's. It returns errGone if not, and other errors if that cannot
// be found out.
func (s *session) there(ctx context.Context) error {
	now, err := os.Stat(s.cfg.Root)
	if err != nil {
		return goneIf(err, fs.ErrNotExist, unix.ENOTDIR)
	}
	if !os.SameFile(now, s.root) {
		return fmt.Errorf("%w: another directory has come in the place of %s", errGone, s.cfg.Root)
	}
	store, ok := s.store.Store(s.cfg.Account, s.cfg.Store)
	if !ok {
		return fmt.Errorf("%w: account %q has no store %q", errGone, s.cfg.Account, s.cfg.Store)
	}
	return goneIf(store.Marker(ctx), storage.ErrNoMarker, storage.ErrWrongMarker)
}

// own says whether a directory is the driver's, or the file system's own.
func own(rel string) bool { return rel == ".millrace" || rel == "lost+found" }

// what is what the kernel reports of a directory.
const what = unix.IN_ONLYDIR | unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_DELETE_SELF |
	unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_MOVE_SELF

// add watches a directory. is: it is there. One that went again, or whose parent went, is not. The root must be there.
func (s *session) add(rel string) (is bool, err error) {
	name, mask := filepath.Join(s.cfg.Root, rel), uint32(what|unix.IN_DONT_FOLLOW)
	if rel == "." {
		mask = what // it may be a link
	}
	s.mu.Lock() // or forget could miss what is added under a name that it forgets
	defer s.mu.Unlock()
	if _, is := s.dirs[filepath.Dir(rel)]; !is && rel != "." {
		return false, nil
	}
	watch, err := s.notify.add(name, mask)
	if before := s.dirs[rel]; err == nil && before != 0 && before != watch {
		// Another directory took its place. The events of that follow, but not all of them need be read before this, and a
		// directory that a process holds open reports its removal when that closes it.
		s.forget(rel)
		watch, err = s.notify.add(name, mask) // forget may have ended it
	}
	switch {
	case err == nil:
		if s.dirs[rel] = watch; s.paths[watch] == "" {
			s.paths[watch] = rel
		}
		return true, nil
	case rel == ".":
		return false, fmt.Errorf("watch %s: %w", name, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return false, nil
	case errors.Is(err, unix.ENOSPC):
		if s.failed = true; !s.full {
			s.full = true
			s.log.Error("the kernel has no watches left: raise fs.inotify.max_user_watches above the number of directories, and start "+
				"again; what happens in the others is found when the tree is walked, at a start or after dropped events",
				"path", rel, "watched", len(s.paths), "limit", watchLimit())
		}
	default:
		s.failed = true
		if before, known := s.dirs[rel]; known && before == 0 {
			break // it was logged
		}
		s.log.Warn("a directory is not watched: what happens in it is found when the tree is walked, at a start or after dropped events",
			"path", rel, "err", err)
	}
	s.dirs[rel] = 0
	return true, nil
}

// watchLimit is how many watches one user may have, as far as the kernel says.
func watchLimit() string {
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// event takes what the kernel says. An error ends the session.
func (s *session) event(e event) error {
	s.mu.Lock()
	dir, known := s.paths[e.watch]
	if e.mask&unix.IN_IGNORED != 0 {
		delete(s.paths, e.watch) // the kernel ended it, since the directory went
	}
	s.mu.Unlock()
	rel := filepath.Join(dir, e.name)
	isDir := e.mask&unix.IN_ISDIR != 0
	switch {
	case e.mask&unix.IN_Q_OVERFLOW != 0:
		s.dropped()
	case s.mark.is(e), !known, own(strings.SplitN(rel, "/", 2)[0]):
	case e.mask&unix.IN_UNMOUNT != 0:
		return fmt.Errorf("%w: the file system of %s was unmounted", errGone, filepath.Join(s.cfg.Root, dir))
	case e.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 && dir == ".":
		return fmt.Errorf("%w: it was moved or removed", errGone)
	case e.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0,
		e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0 && isDir:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.forget(rel) {
			s.walk.add(rel) // another may be there, which was read already
		}
	case e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 && isDir:
		s.walk.add(rel)
	case e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		s.noted(rel, true)
	case e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_MODIFY) != 0:
		s.noted(rel, false)
	}
	return nil
}

// forget ends the watch of a directory that went, and of those below it. Which items they held is not known. Those that
// were read under a new name already have no watch of their own: they are watched and read anew. known: it was in dirs.
// The caller holds mu.
func (s *session) forget(rel string) (known bool) {
	if _, known = s.dirs[rel]; !known {
		return false
	}
	for again := s.drop(rel); len(again) > 0; {
		dir := again[0]
		again = again[1:]
		if _, is := s.dirs[dir]; is {
			again = append(again, s.drop(dir)...)
			s.walk.add(dir)
		}
	}
	s.log.Info("a directory went: the removal of what was in it, and did not go file by file, is not picked up", "path", rel)
	return true
}

// drop ends the watch of a directory and of all below it. It returns the other paths of these, parents first. The caller
// holds mu.
func (s *session) drop(rel string) (others []string) {
	ended := map[int]bool{}
	for dir, watch := range s.dirs {
		if dir != rel && !strings.HasPrefix(dir, rel+"/") {
			continue
		}
		delete(s.dirs, dir)
		if s.paths[watch] == dir {
			s.notify.remove(watch)
			delete(s.paths, watch)
			ended[watch] = true
		}
	}
	for dir, watch := range s.dirs {
		if ended[watch] {
			others = append(others, dir)
		}
	}
	slices.Sort(others)
	return others
}

// dropped notes that the kernel had no room for events.
func (s *session) dropped() {
	if !s.missed {
		s.missed = true
		s.log.Warn("the kernel dropped events, since they came too fast: the tree is walked again, and deletes among them are not "+
			"picked up; raise fs.inotify.max_queued_events", "root", s.cfg.Root)
	}
}
