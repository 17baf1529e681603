package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
)

// dirBatch is the number of directory entries that are read at a time, and progressInterval the interval at which a
// walk logs its progress.
const (
	dirBatch         = 512
	progressInterval = 30 * time.Second
)

// A walk reads the tree and, afterwards, new directories. It adds the watch of a directory before it reads it, so that
// no file that is created meanwhile is missed. In memory it holds the directories to read.
type walk struct {
	s *session

	mu       sync.Mutex            // guards the rest
	stack    []pendingDir          // directories to read
	deferred map[string]pendingDir // directories that could not be read, by path
	active   bool                  // a directory is being read
	wake     chan struct{}

	count        struct{ directories, files int64 } // this and all that follows belong to the goroutine of run
	started      time.Time
	lastProgress time.Time
}

// A pendingDir is a directory to read.
type pendingDir struct {
	path string // below the root
	new  bool   // it was just created or moved in: the files in it and below are published

	failures int       // number of failed attempts to read it
	until    time.Time // earliest time of the next attempt
}

func newWalk(s *session) *walk {
	now := time.Now()
	return &walk{s: s, stack: []pendingDir{{path: "."}}, deferred: map[string]pendingDir{}, wake: make(chan struct{}, 1),
		started: now, lastProgress: now}
}

// readDir schedules the read of a new directory.
func (w *walk) readDir(path string) { w.push(pendingDir{path: path, new: true}) }

func (w *walk) push(d pendingDir) {
	w.mu.Lock()
	w.stack = append(w.stack, d)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // run is about to wake up
	}
}

// busy reports whether there are directories to read.
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
	w.s.log.Info("start walk", "root", w.s.cfg.Root)
	for first := true; ctx.Err() == nil; {
		d, ok := w.next()
		if ok {
			if err := w.read(ctx, d); err != nil {
				return err
			}
			continue
		}
		if first { // what came before its directory was watched is found by the round
			first = false
			w.s.log.Info("finish walk", w.progressAttrs()...)
			w.s.asks.Store(true)
			w.s.ask(ctx)
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		}
	}
	return nil
}

func (w *walk) progressAttrs() []any {
	return []any{"root", w.s.cfg.Root, "directories", w.count.directories, "new_files", w.count.files,
		"took", time.Since(w.started).Round(time.Millisecond)}
}

// read watches and reads a directory.
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
			if d.failures > 0 && !d.new { // the round may not have read it either
				w.s.asks.Store(true)
			}
			return nil
		case err != nil:
			return w.deferDir(d, err)
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

// deferDir schedules another attempt to read a directory that could not be read to its end. If it is the root, deferDir
// returns an error.
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
	d.until = time.Now().Add(retry.Policy{Wait: w.s.cfg.recheck, MaxWait: time.Hour}.Backoff(d.failures))
	w.deferred[d.path] = d
	if d.failures == 1 {
		w.s.log.Warn("defer directory: it cannot be read; its files are picked up when it can be",
			"path", d.path, "err", err)
	}
	return nil
}

// entry handles an entry of a directory. It waits while the queue is full.
func (w *walk) entry(ctx context.Context, d pendingDir, e fs.DirEntry) error {
	rel := filepath.Join(d.path, e.Name())
	path := filepath.ToSlash(rel)
	switch _, _, item := w.s.cfg.ItemAt(path); {
	case e.IsDir() && !isInternal(rel):
		w.push(pendingDir{path: rel, new: d.new})
		return nil
	case !d.new || !item || !e.Type().IsRegular():
		return nil
	}
	w.count.files++
	if now := time.Now(); now.Sub(w.lastProgress) >= progressInterval {
		w.lastProgress = now
		w.s.log.Info("report walk progress", w.progressAttrs()...)
	}
	for !w.s.queue.offer(path, time.Now()) {
		if err := retry.Sleep(ctx, w.s.cfg.quiet); err != nil {
			return err
		}
	}
	return nil
}
