// Package watch tells of what others do in a directory tree: what the kernel says of it is a hint, and what is told
// is what the store shows when nothing has happened to a path for a while.
//
// What was there before the watch began, what happened while nothing was watched, what the kernel dropped, and the
// items of a directory that went as a whole are not reported, and nothing finds them later; each but the first is
// logged. A root that is gone tells of
// nothing; it is waited for. A file that came and went within the quiet time is told of as deleted, for it may have
// replaced one that was known; of an item that nobody knew that changes nothing.
package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/ingest/hint"
	"github.com/millrace/millrace/streams/retry"
)

// A Publisher publishes messages, and returns when all of them are acknowledged.
type Publisher interface {
	Publish(ctx context.Context, msgs ...schemas.Message) error
}

// Config says what is watched. Zero values take the defaults in brackets.
type Config struct {
	Account, Store string
	Root           string // of the tree; spaces are the directories in it
	// ItemAt says which item a slash-separated path below the root is; false: none.
	ItemAt func(path string) (space, item string, ok bool)
	// quiet is how long nothing must happen to a path before it is looked at [1 s]: a file that is being written
	// is looked at when that has ended.
	quiet time.Duration
	// Limit bounds the paths that wait to be looked at [100,000].
	Limit int
	// again is the time between two looks whether the root is there, while it is watched and while it is not [30 s].
	again time.Duration
}

// A Watch watches one tree.
type Watch struct {
	cfg   Config
	look  *hint.Looker
	store hint.Stores
	out   Publisher
	count func(hint.Row)
	log   *slog.Logger
	queue *queue
}

// New returns a Watch. count, where it is set, is told what each hint came to.
func New(cfg Config, stores hint.Stores, out Publisher, count func(hint.Row), log *slog.Logger) (*Watch, error) {
	if cfg.Root == "" || cfg.ItemAt == nil || stores == nil || out == nil || log == nil {
		return nil, errors.New("watch: root, names, stores, publisher or log are missing")
	}
	cfg.quiet = cmp.Or(cfg.quiet, time.Second)
	cfg.Limit = cmp.Or(cfg.Limit, 100_000)
	cfg.again = cmp.Or(cfg.again, 30*time.Second)
	if count == nil {
		count = func(hint.Row) {}
	}
	return &Watch{cfg: cfg, look: hint.NewLooker(stores), store: stores, out: out, count: count,
		log: log.With("part", "watch", "account", cfg.Account, "store", cfg.Store), queue: newQueue(cfg.quiet, cfg.Limit)}, nil
}

// Run watches until ctx is done, and then returns nil. A root that is not there, or goes, is waited for.
func (w *Watch) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for gctx.Err() == nil {
			if err := w.session(gctx); err != nil && gctx.Err() == nil {
				w.log.Warn("not watched: what happens meanwhile is not picked up; import it afterwards",
					"root", w.cfg.Root, "err", err, "again", w.cfg.again)
			}
			_ = retry.Sleep(gctx, w.cfg.again) // only ctx ends it early
		}
		return nil
	})
	g.Go(func() error { return w.tell(gctx) })
	return g.Wait()
}

// A session is one time of watching a root that stays where it is.
type session struct {
	*Watch
	notify *fsnotify.Watcher
	root   fs.FileInfo
	dirs   map[string]bool // watched, by path below the root; "." is the root
	full   bool            // the kernel has no watches left: told once
}

// session watches until ctx is done, or the root goes, which is an error.
func (w *Watch) session(ctx context.Context) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("begin to watch: %w", err)
	}
	defer notify.Close()
	s := &session{Watch: w, notify: notify, dirs: map[string]bool{}}
	if s.root, err = os.Stat(w.cfg.Root); err != nil {
		return err
	}
	if err := s.there(ctx); err != nil {
		return err
	}
	if err := s.add(ctx, ".", false); err != nil {
		return err
	}
	w.log.Info("watched", "root", w.cfg.Root, "directories", len(s.dirs), "existing", "not picked up: import them")
	tick := time.NewTicker(w.cfg.again)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-notify.Events:
			if !ok {
				return fsnotify.ErrClosed
			}
			if err := s.event(ctx, e); err != nil {
				return err
			}
		case err, ok := <-notify.Errors:
			if !ok {
				return fsnotify.ErrClosed
			}
			s.failed(err)
		case <-tick.C:
			if err := s.there(ctx); err != nil {
				return err
			}
		}
	}
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

// add watches a directory and those below it. Of one that is new all files are hints: they may have come before it
// was watched.
func (s *session) add(ctx context.Context, dir string, isNew bool) error {
	return filepath.WalkDir(filepath.Join(s.cfg.Root, dir), func(name string, d fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(s.cfg.Root, name)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case relErr != nil:
			return relErr
		case errors.Is(err, fs.ErrNotExist) && rel != ".":
			return nil // it went again
		case err != nil && rel != ".":
			s.log.Warn("a directory is not watched: what happens in it is not picked up; import it", "path", rel, "err", err)
			return nil
		case err != nil:
			return err
		case d.IsDir() && own(rel):
			return fs.SkipDir
		case d.IsDir():
			return s.addOne(rel, name)
		case isNew && d.Type().IsRegular():
			s.noted(rel, false)
		}
		return nil
	})
}

// own says whether a directory is the driver's, or the file system's own.
func own(rel string) bool { return rel == ".millrace" || rel == "lost+found" }

func (s *session) addOne(rel, name string) error {
	err := s.notify.Add(name)
	switch {
	case err == nil:
		s.dirs[rel] = true
	case errors.Is(err, unix.ENOSPC):
		if !s.full {
			s.full = true
			s.log.Error("the kernel has no watches left: raise fs.inotify.max_user_watches, and start again; the rest is not watched",
				"path", rel, "directories", len(s.dirs))
		}
	case errors.Is(err, fs.ErrNotExist) && rel != ".":
	case rel == ".":
		return fmt.Errorf("watch %s: %w", name, err)
	default:
		s.log.Warn("a directory is not watched: what happens in it is not picked up; import it", "path", rel, "err", err)
	}
	return nil
}

// event takes what the kernel says. An error ends the session.
func (s *session) event(ctx context.Context, e fsnotify.Event) error {
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
	case gone && s.dirs[rel]:
		s.forget(rel)
		return nil
	case gone:
		s.noted(rel, true)
		return nil
	case e.Has(fsnotify.Create):
		if info, err := os.Lstat(e.Name); err == nil && info.IsDir() {
			return s.add(ctx, rel, true)
		}
		s.noted(rel, false)
	case e.Has(fsnotify.Write):
		s.noted(rel, false)
	}
	return nil
}

// forget lets go of a directory that went, with those below it. One that was moved would go on telling of its old
// name. Which items it held nobody says.
func (s *session) forget(rel string) {
	for dir := range s.dirs {
		if dir == rel || strings.HasPrefix(dir, rel+"/") {
			_ = s.notify.Remove(filepath.Join(s.cfg.Root, dir)) // may be gone already
			delete(s.dirs, dir)
		}
	}
	s.log.Info("a directory went: the removal of what was in it, and did not go file by file, is not picked up", "path", rel)
}

// failed takes an error of the kernel's.
func (s *session) failed(err error) {
	if errors.Is(err, fsnotify.ErrEventOverflow) {
		s.log.Warn("the kernel dropped events, since they came too fast: import what changed, and raise fs.inotify.max_queued_events")
		return
	}
	s.log.Warn("watch", "err", err)
}

// noted notes a hint about a path below the root.
func (s *session) noted(rel string, gone bool) {
	if _, _, ok := s.cfg.ItemAt(filepath.ToSlash(rel)); !ok {
		return
	}
	if fits, first := s.queue.note(filepath.ToSlash(rel), time.Now(), gone); !fits && first {
		s.log.Warn("too many paths wait to be looked at: others are not picked up; import them", "limit", s.cfg.Limit)
	}
}

// lookers is how many paths are looked at side by side; turn bounds how many are taken at a time.
const (
	lookers = 8
	turn    = 1000
)

// tell looks at what is due, and publishes what that comes to, until ctx is done.
func (w *Watch) tell(ctx context.Context) error {
	tick := time.NewTicker(max(w.cfg.quiet/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		due := w.queue.due(time.Now(), turn)
		var g errgroup.Group
		g.SetLimit(lookers)
		for _, p := range due {
			g.Go(func() error {
				if err := w.one(ctx, p); err != nil {
					w.failedOne(ctx, p, err)
				}
				return nil
			})
		}
		_ = g.Wait() // each path keeps its own error
	}
}

func (w *Watch) failedOne(ctx context.Context, p pending, err error) {
	switch {
	case ctx.Err() != nil:
	case retry.IsPermanent(err):
		w.log.Error("a path cannot be reported: it is not picked up", "path", p.path, "err", err)
	default:
		if p.failures == 0 {
			w.log.Warn("a path cannot be told of now: it is looked at again", "path", p.path, "err", err)
		}
		w.queue.again(p, time.Now())
	}
}

// one looks at a path and publishes what that comes to.
func (w *Watch) one(ctx context.Context, p pending) error {
	space, item, ok := w.cfg.ItemAt(p.path)
	if !ok {
		return nil
	}
	c := schemas.Copy{Account: w.cfg.Account, Store: w.cfg.Store, Space: space, Item: item}
	s, err := w.look.Look(ctx, c)
	if err != nil {
		return err
	}
	s.Received = p.last
	h := hint.Hint{Kind: hint.Created, Vendor: "watch", Event: "written"}
	if p.gone {
		h.Kind, h.Event = hint.Removed, "removed"
	}
	d, err := hint.Decide(c, h, s)
	if err != nil {
		return err
	}
	if d.Change != nil {
		if err := w.out.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: d.Change}); err != nil {
			return err
		}
	}
	w.count(d.Row)
	return nil
}

// backoff is how long a path waits after it failed.
func backoff(failures int) time.Duration {
	return retry.Policy{Wait: time.Second, MaxWait: time.Minute}.Backoff(failures)
}

func sorted(all []pending) []pending {
	slices.SortFunc(all, func(a, b pending) int { return cmp.Or(a.last.Compare(b.last), strings.Compare(a.path, b.path)) })
	return all
}
