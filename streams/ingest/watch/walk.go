package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/ingest/hint"
	"github.com/millrace/millrace/streams/retry"
)

// entriesAtOnce is how many entries of a directory are read at a time, and progress how often a walk says how far it is.
const (
	entriesAtOnce = 512
	progress      = 30 * time.Second
)

// A walk goes over the tree, and later over the directories that come: it watches each before it reads it, so that what
// comes while it is read is a hint, too. It holds the directories that it has seen and not read, and the files of one turn.
type walk struct {
	s     *session
	since time.Time // what is older is left out; zero: nothing is

	mu    sync.Mutex       // guards the rest
	stack []found          // directories to be read
	later map[string]found // those that could not be read, by path
	at    bool             // one is being read, or its files are looked at
	wake  chan struct{}

	files []pending // for the goroutine of run, as all that follows
	count struct{ directories, seen, looked int64 }
	begun time.Time
	said  time.Time
}

// A found is a directory.
type found struct {
	path string // below the root
	all  bool   // no file in it or below is left out

	failures int       // how often it could not be read
	until    time.Time // it is not read again before
}

func newWalk(s *session, from seen) *walk {
	w := &walk{s: s, since: from.until, stack: []found{{path: ".", all: from.until.IsZero()}}, later: map[string]found{},
		wake: make(chan struct{}, 1), begun: time.Now()}
	maps.Copy(w.later, from.later)
	w.said = w.begun
	return w
}

// add has a directory read that came.
func (w *walk) add(path string) { w.push(found{path: path, all: true}) }

func (w *walk) push(d found) {
	w.mu.Lock()
	w.stack = append(w.stack, d)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // it is awake
	}
}

// busy says whether there is anything to be read, or looked at.
func (w *walk) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at || len(w.stack) > 0
}

// again has those directories read again that could not be read, and have waited.
func (w *walk) again(now time.Time) {
	var due []found
	w.mu.Lock()
	for path, d := range w.later {
		if !now.Before(d.until) {
			delete(w.later, path)
			due = append(due, d)
		}
	}
	w.mu.Unlock()
	for _, d := range due {
		w.push(d)
	}
}

// next takes a directory: the one that came last, so that there are not more than lie beside one path.
func (w *walk) next() (d found, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at = len(w.stack) > 0; !w.at {
		return d, false
	}
	d = w.stack[len(w.stack)-1]
	w.stack = w.stack[:len(w.stack)-1]
	return d, true
}

// run walks until ctx is done. Its error ends the session.
func (w *walk) run(ctx context.Context) error {
	w.s.log.Info("walk the tree", "root", w.s.cfg.Root, "since", sinceWord(w.since))
	for first := true; ctx.Err() == nil; {
		d, ok := w.next()
		if ok {
			if err := w.read(ctx, d); err != nil {
				return err
			}
			continue
		}
		if first {
			first = false
			w.s.log.Info("watched", w.progress()...)
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		}
	}
	return nil
}

func sinceWord(t time.Time) string {
	if t.IsZero() {
		return "all files"
	}
	return t.UTC().Format(time.RFC3339)
}

func (w *walk) progress() []any {
	return []any{"root", w.s.cfg.Root, "directories", w.count.directories, "files", w.count.seen, "looked", w.count.looked,
		"took", time.Since(w.begun).Round(time.Millisecond)}
}

// read watches a directory, reads it, and looks at its files.
func (w *walk) read(ctx context.Context, d found) error {
	is, err := w.s.add(d.path)
	if !is || err != nil {
		return err
	}
	w.count.directories++
	flags := unix.O_NOFOLLOW
	if d.path == "." {
		flags = 0 // which may be a link
	}
	f, err := os.OpenFile(filepath.Join(w.s.cfg.Root, d.path), os.O_RDONLY|unix.O_DIRECTORY|flags, 0)
	if err != nil {
		return w.unread(d, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return w.unread(d, err)
	}
	// What was moved into a directory may be older than the directory's change, and so may all below it.
	d.all = d.all || w.isNew(info)
	return w.readAll(ctx, d, f)
}

// A directory is an open directory.
type directory interface {
	fs.ReadDirFile
	io.Seeker
}

func (w *walk) readAll(ctx context.Context, d found, f directory) error {
	if d.failures > 0 { // the files before an error would be published each time
		if err := toEnd(f); err != nil {
			return w.unread(d, err)
		}
	}
	for {
		entries, err := f.ReadDir(entriesAtOnce)
		for _, e := range entries {
			if err := w.entry(ctx, d, e); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return w.look(ctx)
		case err != nil:
			return errors.Join(w.unread(d, err), w.look(ctx))
		}
	}
}

// toEnd finds out whether a directory can be read to its end, and goes back to its beginning.
func toEnd(f directory) error {
	for {
		switch _, err := f.ReadDir(entriesAtOnce); {
		case errors.Is(err, io.EOF):
			_, err = f.Seek(0, io.SeekStart)
			return err
		case err != nil:
			return err
		}
	}
}

// unread has a directory read again later that cannot be read now, or not to its end: it may look as old as it is when it
// can be read, so that no file in it is left out then. Without the root there is no walk.
func (w *walk) unread(d found, err error) error {
	gone := goneIf(err, fs.ErrNotExist, unix.ENOTDIR, unix.ELOOP) // it went, or something else has its name
	switch {
	case d.path == ".":
		return fmt.Errorf("walk %s: %w", w.s.cfg.Root, gone)
	case errors.Is(gone, errGone):
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	d.failures = max(d.failures, w.later[d.path].failures) + 1
	d.all, d.until = true, time.Now().Add(retry.Policy{Wait: w.s.cfg.again, MaxWait: time.Hour}.Backoff(d.failures))
	w.later[d.path] = d
	if d.failures == 1 {
		w.s.log.Warn("a directory cannot be read: files that were there before are picked up when it can be", "path", d.path, "err", err)
	}
	return nil
}

// isNew says whether a file or directory may have changed since: by its change time, which programs cannot set.
func (w *walk) isNew(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return !ok || !time.Unix(st.Ctim.Unix()).Before(w.since)
}

func (w *walk) entry(ctx context.Context, d found, e fs.DirEntry) error {
	rel := filepath.Join(d.path, e.Name())
	switch {
	case e.IsDir() && !own(rel):
		w.push(found{path: rel, all: d.all})
		return nil
	case !e.Type().IsRegular():
		return nil
	}
	path := filepath.ToSlash(rel)
	if _, _, ok := w.s.cfg.ItemAt(path); !ok {
		return nil
	}
	w.count.seen++
	if !d.all {
		if info, err := e.Info(); err == nil && !w.isNew(info) {
			return nil
		}
	}
	now := time.Now()
	w.files = append(w.files, pending{path: path, last: now, first: now, found: true})
	if len(w.files) == turn {
		return w.look(ctx)
	}
	return nil
}

// look looks at the files that wait, and publishes what they come to, all at once. What fails waits with the hints of the
// kernel; if there is no room, it is waited for.
func (w *walk) look(ctx context.Context) error {
	all := w.files
	w.files = w.files[:0]
	if len(all) == 0 {
		return nil
	}
	defer w.tellProgress(int64(len(all)))
	var (
		g         errgroup.Group
		mu        sync.Mutex
		decisions []hint.Decision
		told      []pending
		failures  []pending
		last      error
	)
	g.SetLimit(lookers)
	for _, p := range all {
		g.Go(func() error {
			d, s, err := w.s.lookAt(ctx, p)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case retry.IsPermanent(err):
				w.s.log.Error("a path cannot be reported: it is not picked up", "path", p.path, "err", err)
			case err != nil:
				failures, last = append(failures, p), err
			case s.Present && p.last.Sub(s.Object.Modified) < w.s.cfg.quiet:
				w.s.noted(p.path, false) // it may be written on: that is waited for
			default:
				decisions, told = append(decisions, d), append(told, p)
			}
			return nil
		})
	}
	_ = g.Wait() // each path keeps its own error
	msgs := make([]schemas.Message, 0, len(decisions))
	for _, d := range decisions {
		if d.Change != nil {
			msgs = append(msgs, schemas.Message{Topic: schemas.Changes, Body: d.Change})
		}
	}
	if len(msgs) > 0 {
		if err := w.s.out.Publish(ctx, msgs...); err != nil {
			failures, last, decisions = append(failures, told...), err, nil
		}
	}
	for _, d := range decisions {
		w.s.count(d.Row)
	}
	if len(failures) > 0 && ctx.Err() == nil {
		w.s.log.Warn("paths cannot be reported now: they are looked at again", "paths", len(failures), "first", failures[0].path, "err", last)
	}
	for _, p := range failures {
		for !w.s.queue.offer(p, time.Now()) {
			if err := retry.Sleep(ctx, w.s.cfg.quiet); err != nil {
				return nil
			}
		}
	}
	return nil
}

func (w *walk) tellProgress(looked int64) {
	w.count.looked += looked
	if now := time.Now(); now.Sub(w.said) >= progress {
		w.said = now
		w.s.log.Info("walk the tree: at work", w.progress()...)
	}
}
