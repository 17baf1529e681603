package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// errMissed: something happened of which there was no hint.
var errMissed = errors.New("hints were missed")

// A session is one time of watching a root that stays where it is.
type session struct {
	*Watch
	notify *fsnotify.Watcher
	root   fs.FileInfo
	walk   *walk
	mark   *mark

	missed bool // the kernel or the queue dropped hints: the tree must be walked again

	mu     sync.Mutex      // guards the rest
	dirs   map[string]bool // watched, by path below the root; "." is the root
	failed bool            // a directory is not watched, or not read, or there is no mark
	full   bool            // the kernel has no watches left: reported once
}

// session watches until ctx is done, the root goes, or the tree must be walked again (errMissed). The walk leaves out what
// is older than since. published is the moment up to which all that happened is published.
func (w *Watch) session(ctx context.Context, since time.Time) (published time.Time, err error) {
	notify, err := fsnotify.NewWatcher()
	if errors.Is(err, unix.EMFILE) {
		err = fmt.Errorf("%w: fs.inotify.max_user_instances or the limit of open files is reached", err)
	}
	if err != nil {
		return since, fmt.Errorf("begin to watch: %w", err)
	}
	defer notify.Close()
	s := &session{Watch: w, notify: notify, dirs: map[string]bool{}}
	if s.root, err = os.Stat(w.cfg.Root); err != nil {
		return since, err
	}
	if err := s.there(ctx); err != nil {
		return since, err
	}
	now := time.Now()
	if now.Before(since) {
		since = time.Time{} // the clock went back
	}
	if s.mark, err = newMark(notify); err != nil {
		s.failed, s.mark = true, new(mark)
		w.log.Warn("how far events are read is not known: after dropped events more files are looked at than need be", "err", err)
	}
	defer s.mark.close()
	s.walk = newWalk(s, since)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.walk.run(gctx) })
	g.Go(func() (err error) {
		published, err = s.watch(gctx, since)
		return err
	})
	err = g.Wait()
	return published, err
}

// watch takes what the kernel says until ctx is done; its error ends the session.
func (s *session) watch(ctx context.Context, published time.Time) (time.Time, error) {
	begun := time.Now()
	tick := time.NewTicker(s.cfg.again)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return published, nil
		case e, ok := <-s.notify.Events:
			if err := s.event(e, ok); err != nil {
				return published, err
			}
		case err, ok := <-s.notify.Errors:
			if err := s.dropped(err, ok); err != nil {
				return published, err
			}
		case <-tick.C:
			if err := s.there(ctx); err != nil {
				return published, err
			}
			if s.walk.busy() {
				continue // a walk that was begun is done first, or none would end while there is much to do
			}
			missed, upTo := s.queue.missed() || s.missed, s.mark.passed
			if missed || s.unwatched() {
				upTo = begun // what was before is found
			}
			if t := s.queue.since(upTo).Add(-s.cfg.margin); t.After(published) {
				published = t
			}
			if missed {
				return published, errMissed
			}
			s.mark.set(time.Now())
		}
	}
}

func (s *session) unwatched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// there says whether the root is what it was, and the store's.
func (s *session) there(ctx context.Context) error {
	now, err := os.Stat(s.cfg.Root)
	if err != nil {
		return err
	}
	if !os.SameFile(now, s.root) {
		return fmt.Errorf("another directory has come in the place of %s", s.cfg.Root)
	}
	store, ok := s.store.Store(s.cfg.Account, s.cfg.Store)
	if !ok {
		return fmt.Errorf("account %q has no store %q", s.cfg.Account, s.cfg.Store)
	}
	return store.Marker(ctx)
}

// own says whether a directory is the driver's, or the file system's own.
func own(rel string) bool { return rel == ".millrace" || rel == "lost+found" }

// add watches a directory. One that went again is none; the root must be there.
func (s *session) add(rel string) (is bool, err error) {
	name := filepath.Join(s.cfg.Root, rel)
	s.mu.Lock() // or forget could miss what is added under a name that it forgets
	defer s.mu.Unlock()
	switch err := s.notify.Add(name); {
	case err == nil:
		s.dirs[rel] = true
		return true, nil
	case rel == ".":
		return false, fmt.Errorf("watch %s: %w", name, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return false, nil
	case errors.Is(err, unix.ENOSPC):
		if s.failed = true; !s.full {
			s.full = true
			s.log.Error("the kernel has no watches left: raise fs.inotify.max_user_watches above the number of directories, and start "+
				"again; what happens in the others is found when the tree is walked, at a start or after dropped events",
				"path", rel, "watched", len(s.dirs), "limit", watchLimit())
		}
	default:
		s.failed = true
		s.log.Warn("a directory is not watched: what happens in it is found when the tree is walked, at a start or after dropped events",
			"path", rel, "err", err)
	}
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
func (s *session) event(e fsnotify.Event, ok bool) error {
	if !ok {
		return fsnotify.ErrClosed
	}
	if s.mark.is(e) {
		return nil
	}
	rel, err := filepath.Rel(s.cfg.Root, e.Name)
	if err != nil {
		return err
	}
	gone := e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
	switch {
	case rel == "." && gone:
		return errors.New("the root went")
	case rel == ".", own(strings.SplitN(filepath.ToSlash(rel), "/", 2)[0]):
		return nil
	case gone && s.forget(rel):
		return nil
	case gone:
		s.noted(rel, true)
		return nil
	case e.Has(fsnotify.Create):
		if info, err := os.Lstat(e.Name); err == nil && info.IsDir() {
			s.walk.add(rel)
			return nil
		}
		s.noted(rel, false)
	case e.Has(fsnotify.Write):
		s.noted(rel, false)
	}
	return nil
}

// forget lets go of a directory that went, with those below it; false: it was not watched. One that was moved would go on
// reporting under its old name. Which items it held is not known.
func (s *session) forget(rel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dirs[rel] {
		return false
	}
	for dir := range s.dirs {
		if dir == rel || strings.HasPrefix(dir, rel+"/") {
			_ = s.notify.Remove(filepath.Join(s.cfg.Root, dir)) // may be gone already
			delete(s.dirs, dir)
		}
	}
	s.log.Info("a directory went: the removal of what was in it, and did not go file by file, is not picked up", "path", rel)
	return true
}

// dropped takes an error of the kernel's. One of its own ends the session.
func (s *session) dropped(err error, ok bool) error {
	switch {
	case !ok:
		return fsnotify.ErrClosed
	case !errors.Is(err, fsnotify.ErrEventOverflow):
		s.log.Warn("watch", "err", err)
	case !s.missed:
		s.missed = true
		s.log.Warn("the kernel dropped events, since they came too fast: the tree is walked again, and deletes among them are not "+
			"picked up; raise fs.inotify.max_queued_events", "root", s.cfg.Root)
	}
	return nil
}
