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

// dirBatch is the number of directory entries that are read at a time, and progressInterval the interval at which a
// walk logs its progress.
const (
	dirBatch         = 512
	progressInterval = 30 * time.Second
)

// A walk reads the tree and, afterwards, new directories. It adds the watch of a directory before it reads it, so that
// no file that is created meanwhile is missed. In memory it holds the directories to read and the files of one batch.
type walk struct {
	s     *session
	since time.Time // files that have not changed since are skipped; zero means none are

	mu       sync.Mutex            // guards the rest
	stack    []pendingDir          // directories to read
	deferred map[string]pendingDir // directories that could not be read, by path
	active   bool                  // a directory is being read, or its files are examined
	wake     chan struct{}

	files        []pendingPath // this and all that follows belong to the goroutine of run
	count        struct{ directories, seen, examined int64 }
	started      time.Time
	lastProgress time.Time
}

// A pendingDir is a directory to read.
type pendingDir struct {
	path string // below the root
	all  bool   // examine all files in it and below

	failures int       // number of failed attempts to read it
	until    time.Time // earliest time of the next attempt
}

func newWalk(s *session, from coverage) *walk {
	w := &walk{s: s, since: from.until, stack: []pendingDir{{path: ".", all: from.until.IsZero()}},
		deferred: map[string]pendingDir{},
		wake:     make(chan struct{}, 1), started: time.Now()}
	maps.Copy(w.deferred, from.deferred)
	w.lastProgress = w.started
	return w
}

// readDir schedules the read of a new directory.
func (w *walk) readDir(path string) { w.push(pendingDir{path: path, all: true}) }

func (w *walk) push(d pendingDir) {
	w.mu.Lock()
	w.stack = append(w.stack, d)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // run is about to wake up
	}
}

// busy reports whether there are directories to read or files to examine.
func (w *walk) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.active || len(w.stack) > 0
}

// readDeferred schedules the reads of the deferred directories that have waited long enough.
func (w *walk) readDeferred(now time.Time) {
	var due []pendingDir
	w.mu.Lock()
	for path, d := range w.deferred {
		if !now.Before(d.until) {
			delete(w.deferred, path)
			due = append(due, d)
		}
	}
	w.mu.Unlock()
	for _, d := range due {
		w.push(d)
	}
}

// next removes the newest directory from the stack. Depth-first order keeps the stack small.
func (w *walk) next() (d pendingDir, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active = len(w.stack) > 0; !w.active {
		return d, false
	}
	d = w.stack[len(w.stack)-1]
	w.stack = w.stack[:len(w.stack)-1]
	return d, true
}

// run reads directories until ctx is done. An error ends the session.
func (w *walk) run(ctx context.Context) error {
	w.s.log.Info("start walk", "root", w.s.cfg.Root, "since", sinceText(w.since))
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
			w.s.log.Info("finish walk", w.progressAttrs()...)
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		}
	}
	return nil
}

func sinceText(t time.Time) string {
	if t.IsZero() {
		return "all files"
	}
	return t.UTC().Format(time.RFC3339)
}

func (w *walk) progressAttrs() []any {
	return []any{"root", w.s.cfg.Root, "directories", w.count.directories, "files", w.count.seen,
		"examined", w.count.examined, "took", time.Since(w.started).Round(time.Millisecond)}
}

// read watches and reads a directory, and examines its files.
func (w *walk) read(ctx context.Context, d pendingDir) error {
	is, err := w.s.addWatch(d.path)
	if !is || err != nil {
		return err
	}
	w.count.directories++
	flags := unix.O_NOFOLLOW
	if d.path == "." {
		flags = 0 // the root may be a symbolic link
	}
	f, err := os.OpenFile(filepath.Join(w.s.cfg.Root, d.path), os.O_RDONLY|unix.O_DIRECTORY|flags, 0)
	if err != nil {
		return w.deferDir(d, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return w.deferDir(d, err)
	}
	// Files that were moved into a directory can be older than the directory's change time, as can all files below it.
	d.all = d.all || w.isNew(info)
	return w.readAll(ctx, d, f)
}

// A directory is an open directory.
type directory interface {
	fs.ReadDirFile
	io.Seeker
}

func (w *walk) readAll(ctx context.Context, d pendingDir, f directory) error {
	if d.failures > 0 { // or the files before the error would be published at each attempt
		if err := probeRead(f); err != nil {
			return w.deferDir(d, err)
		}
	}
	for {
		entries, err := f.ReadDir(dirBatch)
		for _, e := range entries {
			if err := w.entry(ctx, d, e); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return w.examineFiles(ctx)
		case err != nil:
			return errors.Join(w.deferDir(d, err), w.examineFiles(ctx))
		}
	}
}

// probeRead reads a directory to its end and goes back to its beginning. It returns the error of reading.
func probeRead(f directory) error {
	for {
		switch _, err := f.ReadDir(dirBatch); {
		case errors.Is(err, io.EOF):
			_, err = f.Seek(0, io.SeekStart)
			return err
		case err != nil:
			return err
		}
	}
}

// deferDir schedules another attempt to read a directory that could not be read to its end. No file in it is skipped
// then, because the directory's change time does not show that it was not read. If it is the root, deferDir returns an
// error.
func (w *walk) deferDir(d pendingDir, err error) error {
	gone := goneIf(err, fs.ErrNotExist, unix.ENOTDIR, unix.ELOOP) // it was removed or replaced
	switch {
	case d.path == ".":
		return fmt.Errorf("walk %s: %w", w.s.cfg.Root, gone)
	case errors.Is(gone, errGone):
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	d.failures = max(d.failures, w.deferred[d.path].failures) + 1
	d.all, d.until = true, time.Now().Add(retry.Policy{Wait: w.s.cfg.recheck, MaxWait: time.Hour}.Backoff(d.failures))
	w.deferred[d.path] = d
	if d.failures == 1 {
		w.s.log.Warn("defer directory: it cannot be read; its earlier files are picked up when it can be",
			"path", d.path, "err", err)
	}
	return nil
}

// isNew reports whether a file or directory may have changed after w.since, according to its change time, which
// programs cannot set.
func (w *walk) isNew(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return !ok || !time.Unix(st.Ctim.Unix()).Before(w.since)
}

func (w *walk) entry(ctx context.Context, d pendingDir, e fs.DirEntry) error {
	rel := filepath.Join(d.path, e.Name())
	switch {
	case e.IsDir() && !isInternal(rel):
		w.push(pendingDir{path: rel, all: d.all})
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
	w.files = append(w.files, pendingPath{path: path, last: now, first: now, found: true})
	if len(w.files) == batchSize {
		return w.examineFiles(ctx)
	}
	return nil
}

// examineFiles examines the files of the batch and publishes their Changes in one call. Files that fail go to the
// queue, with the hints of the kernel. If the queue is full, examineFiles waits.
func (w *walk) examineFiles(ctx context.Context) error {
	all := w.files
	w.files = w.files[:0]
	if len(all) == 0 {
		return nil
	}
	defer w.logProgress(int64(len(all)))
	var (
		g         errgroup.Group
		mu        sync.Mutex
		decisions []hint.Decision
		examined  []pendingPath
		failures  []pendingPath
		last      error
	)
	g.SetLimit(parallel)
	for _, p := range all {
		g.Go(func() error {
			d, s, err := w.s.examine(ctx, p)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case retry.IsPermanent(err):
				w.s.log.Error("skip path: it cannot be published", "path", p.path, "err", err)
			case err != nil:
				failures, last = append(failures, p), err
			case s.Present && p.last.Sub(s.Object.Modified) < w.s.cfg.quiet:
				w.s.enqueue(p.path, false) // it may still be written
			default:
				decisions, examined = append(decisions, d), append(examined, p)
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in failures
	msgs := make([]schemas.Message, 0, len(decisions))
	for _, d := range decisions {
		if d.Change != nil {
			msgs = append(msgs, schemas.Message{Topic: schemas.Changes, Body: d.Change})
		}
	}
	if len(msgs) > 0 {
		if err := w.s.out.Publish(ctx, msgs...); err != nil {
			failures, last, decisions = append(failures, examined...), err, nil
		}
	}
	for _, d := range decisions {
		w.s.count(d.Row)
	}
	if len(failures) > 0 && ctx.Err() == nil {
		w.s.log.Warn("retry paths: they cannot be published now",
			"paths", len(failures), "first", failures[0].path, "err", last)
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

func (w *walk) logProgress(examined int64) {
	w.count.examined += examined
	if now := time.Now(); now.Sub(w.lastProgress) >= progressInterval {
		w.lastProgress = now
		w.s.log.Info("report walk progress", w.progressAttrs()...)
	}
}
