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
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// errMissed reports that hints were lost, so that the tree must be walked again.
var errMissed = errors.New("hints were missed")

// A session watches one root for as long as the root stays the same directory.
type session struct {
	*Watch
	notify *notifier
	root   fs.FileInfo
	walk   *walk
	asks   atomic.Bool // a round of reconcile is to be asked for

	missed      bool // the kernel dropped events: the tree must be walked again
	rootUnknown bool // the last examination of the root failed

	mu sync.Mutex // guards the rest
	// dirs holds the known directories and their watches, by path below the root ("." is the root); 0 means not watched.
	// It contains the parent of each directory.
	dirs map[string]int
	// paths holds the path that each watch was added for. A moved directory is in dirs under two paths until the event of
	// the move is read; its events have the old path.
	paths            map[int]string
	watchesExhausted bool // the kernel has no watches left, which was logged
}

func (w *Watch) newSession(notify *notifier) *session {
	return &session{Watch: w, notify: notify, dirs: map[string]int{}, paths: map[int]string{}}
}

// session watches until ctx is done, the root is gone (errGone), or the tree must be walked again (errMissed).
func (w *Watch) session(ctx context.Context) error {
	notify, err := newNotifier()
	if err != nil {
		return err
	}
	defer notify.close()
	s := w.newSession(notify)
	if s.root, err = os.Stat(w.cfg.Root); err != nil {
		return goneIf(err, fs.ErrNotExist, unix.ENOTDIR)
	}
	if err := s.checkRoot(ctx); err != nil {
		return err
	}
	s.walk = newWalk(s)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return notify.run(gctx) })
	g.Go(func() error { return s.walk.run(gctx) })
	g.Go(func() error { return s.watch(gctx) })
	return g.Wait()
}

// ask asks for a round of reconcile if one is needed. After a failure the next tick asks again.
func (s *session) ask(ctx context.Context) {
	if !s.asks.Swap(false) {
		return
	}
	if err := s.cfg.Ask(ctx); err != nil {
		s.asks.Store(true)
		if ctx.Err() == nil {
			s.log.Warn("retry request of a round of reconcile", "err", err, "retry_after", s.cfg.recheck)
		}
	}
}

// errGone reports that the root or the store in it is gone. A root that appears later may be another tree.
var errGone = errors.New("the root is gone or belongs to another store")

// goneIf makes err wrap errGone if it is one of those.
func goneIf(err error, those ...error) error {
	if slices.ContainsFunc(those, func(e error) bool { return errors.Is(err, e) }) {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

// watch handles the events of the kernel until ctx is done. An error ends the session.
func (s *session) watch(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.recheck)
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

// tick checks the root, and asks for what is missing. An error ends the session.
func (s *session) tick(ctx context.Context) error {
	switch err := s.checkRoot(ctx); {
	case errors.Is(err, errGone):
		return err
	case err != nil: // the state of the root is unknown: keep watching
		if !s.rootUnknown && ctx.Err() == nil {
			s.log.Warn("retry root: it cannot be examined now", "root", s.cfg.Root, "err", err, "retry_after", s.cfg.recheck)
		}
		s.rootUnknown = true
		return nil
	}
	s.rootUnknown = false
	if s.walk.busy() {
		return nil // finish the walk first, or no walk would ever finish under load
	}
	if s.queue.takeMissed() || s.missed {
		return errMissed
	}
	s.walk.readDeferred(time.Now())
	s.ask(ctx)
	return nil
}

// checkRoot checks that the root is the same directory and belongs to the store. It returns errGone if not, and other
// errors if that is unknown.
func (s *session) checkRoot(ctx context.Context) error {
	now, err := os.Stat(s.cfg.Root)
	if err != nil {
		return goneIf(err, fs.ErrNotExist, unix.ENOTDIR)
	}
	if !os.SameFile(now, s.root) {
		return fmt.Errorf("%w: %s is another directory now", errGone, s.cfg.Root)
	}
	store, ok := s.store.Store(s.cfg.Account, s.cfg.Store)
	if !ok {
		return fmt.Errorf("%w: account %q has no store %q", errGone, s.cfg.Account, s.cfg.Store)
	}
	return goneIf(store.Marker(ctx), storage.ErrNoMarker, storage.ErrWrongMarker)
}

// isInternal reports whether a directory belongs to the driver or the file system.
func isInternal(rel string) bool { return rel == ".millrace" || rel == "lost+found" }

// eventMask is the set of events that the kernel reports for a directory.
const eventMask = unix.IN_ONLYDIR | unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_DELETE_SELF |
	unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_MOVE_SELF

// addWatch watches a directory. is reports whether the directory exists and its parent is known. A missing root is an
// error.
func (s *session) addWatch(rel string) (is bool, err error) {
	name, mask := filepath.Join(s.cfg.Root, rel), uint32(eventMask|unix.IN_DONT_FOLLOW)
	if rel == "." {
		mask = eventMask // the root may be a symbolic link
	}
	s.mu.Lock() // or forget could miss a watch that is added below a directory that it forgets
	defer s.mu.Unlock()
	if _, is := s.dirs[filepath.Dir(rel)]; !is && rel != "." {
		return false, nil
	}
	watch, err := s.notify.add(name, mask)
	if before := s.dirs[rel]; err == nil && before != 0 && before != watch {
		// Another directory has replaced it. Its removal event may still be unread, and if a process holds the old
		// directory open, the kernel reports the removal only when that process closes it.
		s.forget(rel)
		watch, err = s.notify.add(name, mask) // forget may have removed the watch
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
		if !s.watchesExhausted {
			s.watchesExhausted = true
			s.log.Error("stop adding watches: the kernel has none left; raise fs.inotify.max_user_watches above the number of "+
				"directories, and restart; changes in the other directories are found only by the sweep reconcile",
				"path", rel, "watched", len(s.paths), "limit", watchLimit())
		}
	default:
		if before, known := s.dirs[rel]; known && before == 0 {
			break // it was logged before
		}
		s.log.Warn("skip directory: it cannot be watched; changes in it are found only by the sweep reconcile",
			"path", rel, "err", err)
	}
	s.dirs[rel] = 0
	return true, nil
}

// watchLimit returns the largest number of watches per user, or a text if it cannot be read.
func watchLimit() string {
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// event handles an event of the kernel. An error ends the session.
func (s *session) event(e event) error {
	s.mu.Lock()
	dir, known := s.paths[e.watch]
	if e.mask&unix.IN_IGNORED != 0 {
		delete(s.paths, e.watch) // the kernel has removed the watch with its directory
	}
	s.mu.Unlock()
	rel := filepath.Join(dir, e.name)
	isDir := e.mask&unix.IN_ISDIR != 0
	switch {
	case e.mask&unix.IN_Q_OVERFLOW != 0:
		s.eventsDropped()
	case !known, isInternal(strings.SplitN(rel, "/", 2)[0]):
	case e.mask&unix.IN_UNMOUNT != 0:
		return fmt.Errorf("%w: the file system of %s was unmounted", errGone, filepath.Join(s.cfg.Root, dir))
	case e.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 && dir == ".":
		return fmt.Errorf("%w: it was moved or removed", errGone)
	case e.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0,
		e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0 && isDir:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.forget(rel) {
			s.walk.readDir(rel) // another directory may have replaced it and been read already
		}
	case e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 && isDir:
		s.walk.readDir(rel)
	case e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		s.enqueue(rel, true)
	case e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_MODIFY) != 0:
		s.enqueue(rel, false)
	}
	return nil
}

// forget removes the watches of a removed directory and of all directories below it. The items in them are unknown.
// Directories that were already read under a new path shared these watches: forget has them watched and read again.
// known reports whether the directory was in dirs. The caller holds mu.
func (s *session) forget(rel string) (known bool) {
	if _, known = s.dirs[rel]; !known {
		return false
	}
	for again := s.drop(rel); len(again) > 0; {
		dir := again[0]
		again = again[1:]
		if _, is := s.dirs[dir]; is {
			again = append(again, s.drop(dir)...)
			s.walk.readDir(dir)
		}
	}
	s.log.Info("forget directory: reconcile finds the deletes of its files unless they were reported one by one",
		"path", rel)
	return true
}

// drop removes the watches of a directory and of all directories below it. It returns the other paths of these watches,
// parents first. The caller holds mu.
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

// eventsDropped records that the kernel dropped events.
func (s *session) eventsDropped() {
	if !s.missed {
		s.missed = true
		s.log.Warn("schedule walk: the kernel dropped events; the sweep reconcile finds what changed; "+
			"raise fs.inotify.max_queued_events", "root", s.cfg.Root)
	}
}
