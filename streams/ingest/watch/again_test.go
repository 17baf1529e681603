package watch

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// While the marker cannot be read, watching continues, and no file is examined again because of it.
func TestWatchWhileMarkerFails(t *testing.T) {
	t.Parallel()
	w := newTree(t)
	w.write("photos/old", "1")
	w.run()
	w.awaitChanges("ADD photos/old 1")
	w.store.Script(storagetest.Fault{Method: "Marker", Times: 3})
	w.awaitLog("retry root")
	w.write("photos/new", "12")
	w.awaitChanges("ADD photos/new 2")
	w.do(os.Remove(w.path("photos/new")))
	w.awaitChanges("DELETE photos/new 0")
	if n := w.times()["photos/old"]; n != 1 {
		t.Errorf("photos/old was reported %d times", n)
	}
}

// A session continues after the previous one if its root is the same.
func TestSessionTakesUp(t *testing.T) {
	at := time.Now().Add(-time.Hour)
	for name, tt := range map[string]struct {
		fault error                  // of the marker
		do    func(*tree, *coverage) // before it begins
		want  time.Time
		gone  bool
	}{
		"same root":                          {nil, func(*tree, *coverage) {}, at, false},
		"same root, marker cannot be read":   {syscall.EIO, func(*tree, *coverage) {}, at, false},
		"same root, marker of another store": {storage.ErrWrongMarker, func(*tree, *coverage) {}, at, true},
		"same root, no marker":               {storage.ErrNoMarker, func(*tree, *coverage) {}, at, true},
		"no root before":                     {nil, func(_ *tree, s *coverage) { s.root = nil }, time.Time{}, false},
		"another root, marker cannot be read": {syscall.EIO, func(w *tree, s *coverage) {
			s.root,
				_ = os.Stat(w.path("photos"))
		}, time.Time{}, false},
		"root gone": {nil, func(w *tree, _ *coverage) { w.do(os.Rename(w.root, w.root+".away")) },
			at, true},
		"root is a file": {nil, func(w *tree, _ *coverage) {
			w.do(errors.Join(os.Rename(w.root, w.root+".away"), os.WriteFile(w.root, nil, 0o600)))
		}, time.Time{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t)
			w.write("photos/a", "1")
			root, err := os.Stat(w.root)
			w.do(err)
			from := coverage{root: root, until: at}
			tt.do(w, &from)
			if tt.fault != nil {
				w.store.Script(storagetest.Fault{Method: "Marker", Err: tt.fault})
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			got, err := w.watch.session(ctx, from)
			if errors.Is(err, errGone) != tt.gone || !got.until.Equal(tt.want) {
				t.Errorf("got %v, %v, want %v, gone %v", got.until, err, tt.want, tt.gone)
			}
		})
	}
}

// The watches of an unmounted file system are lost: the whole tree is walked again.
func TestWatchOfAFileSystemThatGoes(t *testing.T) {
	w := newTree(t)
	w.write("photos/a", "1")
	w.do(os.Mkdir(w.path("disk"), 0o755))
	if err := unix.Mount("tmpfs", w.path("disk"), "tmpfs", 0, "size=1m"); err != nil {
		need.Missing(t, need.Kernel("mounting a tmpfs"), err)
	}
	t.Cleanup(func() { _ = unix.Unmount(w.path("disk"), 0) }) // it is gone if the test passes
	w.write("disk/b", "12")
	w.run()
	w.awaitChanges("ADD photos/a 1", "ADD disk/b 2")
	w.until("unmounts", func() bool { return unix.Unmount(w.path("disk"), 0) == nil })
	w.awaitLog("was unmounted")
	w.until("reports all again", func() bool { return w.count["photos/a"] == 2 })
}

func TestWentBack(t *testing.T) {
	for name, tt := range map[string]struct {
		wall, passed time.Duration
		want         bool
	}{
		"never set":            {time.Hour, time.Hour, false},
		"set ahead":            {2 * time.Hour, time.Hour, false},
		"set back a little":    {59 * time.Minute, time.Hour, false},
		"set back":             {59*time.Minute - 1, time.Hour, true},
		"set back before then": {-time.Hour, time.Minute, true},
	} {
		if got := clockSetBack(tt.wall, tt.passed, time.Minute); got != tt.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// A directory that cannot be read because of the limit of open files is read later.
func TestWalkReadsAgain(t *testing.T) {
	w := newTree(t)
	w.write("photos/d/old", "1")
	s := w.steps()
	defer s.end()
	s.walk(2)
	var limit syscall.Rlimit
	w.do(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	w.do(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: limit.Max}))
	s.walk(1)
	w.do(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	w.awaitLog("defer directory")
	s.settle()
	if got := s.missed(); len(got) != 1 {
		t.Fatalf("missed %q", got)
	}
	s.s.walk.readDeferred(time.Now().Add(w.watch.cfg.recheck))
	s.settle()
	if got := s.missed(); len(got) != 0 {
		t.Errorf("missed %q", got)
	}
}

// Deferred directories stay deferred in the next session, which then reads all files in them.
func TestSessionReadsAgain(t *testing.T) {
	w := newTree(t)
	w.write("photos/d/old", "1")
	w.write("photos/e/old", "1")
	past, at := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	w.do(os.Chtimes(w.path("photos/d/old"), past, past)) // it is not written on
	root, err := os.Stat(w.root)
	w.do(err)
	later := map[string]pendingDir{"photos/d": {path: "photos/d", all: true}, "photos/far": {path: "photos/far",
		until: at}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	var got coverage
	go func() {
		var err error
		got, err = w.watch.session(ctx, coverage{root, at, later})
		ended <- err
	}()
	w.awaitChanges("ADD photos/d/old 1")
	w.watch.queue.mu.Lock()
	w.watch.queue.missed = true
	w.watch.queue.mu.Unlock()
	if err := <-ended; !errors.Is(err, errMissed) {
		t.Error(err)
	}
	want := map[string]pendingDir{"photos/far": later["photos/far"]}
	if !maps.Equal(got.deferred, want) || got.until.Before(at) || len(later) != 2 {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A directory that can be neither watched nor read is logged once, and read again at growing intervals.
func TestWalkOfWhatCannotBeRead(t *testing.T) {
	w := newTree(t)
	w.write("photos/a", "1")
	s := w.steps()
	defer s.end()
	s.settle()
	path := "photos/" + strings.Repeat("x", 300) // no file system has such names
	s.s.walk.push(pendingDir{path: path})
	for n := range 20 {
		s.settle()
		wait := time.Until(s.s.walk.deferred[path].until)
		if most := min(w.watch.cfg.recheck<<n, time.Hour); wait > most || n > 10 && wait < most*49/100 {
			t.Errorf("it is read again after %v, want %v at most", wait, most)
		}
		now := s.s.walk.deferred[path].until
		if s.s.walk.readDeferred(now.Add(-1)); s.s.walk.busy() {
			t.Error("it is read before its time")
		}
		s.s.walk.readDeferred(now)
	}
	if got := strings.Count(w.logs.String(), "level=WARN"); got != 2 {
		t.Errorf("logged %d times:\n%s", got, w.logs.String())
	}
}

// A brokenDir fails after a number of entries.
type brokenDir struct {
	*os.File
	good int
}

func (s *brokenDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if s.good == 0 {
		return nil, syscall.EIO
	}
	all, err := s.File.ReadDir(min(n, s.good))
	s.good -= len(all)
	return all, err
}

// The files of a directory that cannot be read to its end are published once, and all when it can be read.
func TestWalkOfASpoiltDirectory(t *testing.T) {
	w := newTree(t)
	var all []string
	for _, name := range []string{"a", "b", "c", "d"} {
		w.write("photos/"+name, "1")
		all = append(all, "ADD photos/"+name+" 1")
	}
	s := w.steps()
	defer s.end()
	w.watch.cfg.quiet = 0 // they are published, not queued
	d := pendingDir{path: "photos", all: true}
	for _, tt := range []struct{ good, published int }{{2, 2}, {2, 2}, {3, 2}, {100, 6}} {
		f, err := os.Open(w.path("photos"))
		w.do(err)
		w.do(s.s.walk.readAll(t.Context(), d, &brokenDir{f, tt.good}))
		w.do(f.Close())
		if w.published != tt.published {
			t.Errorf("%d entries can be read: %d published, want %d", tt.good, w.published, tt.published)
		}
		var waits bool
		if d, waits = s.s.walk.deferred["photos"]; waits != (tt.good < 4) {
			t.Errorf("%d entries can be read: read again: %v", tt.good, waits)
		}
		delete(s.s.walk.deferred, "photos")
	}
	w.awaitChanges(all...)
}

// A path that was removed, or is not a directory any more, is not read again. A missing root ends the walk.
func TestWalkOfWhatWent(t *testing.T) {
	w := newTree(t)
	s := w.steps()
	defer s.end()
	for _, err := range []error{syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP} {
		w.do(s.s.walk.deferDir(pendingDir{path: "photos/d"}, err))
		if len(s.s.walk.deferred) > 0 {
			t.Errorf("%v: it is read again", err)
		}
	}
	if err := s.s.walk.deferDir(pendingDir{path: "."}, syscall.EIO); err == nil || errors.Is(err, errGone) {
		t.Errorf("the root, EIO: got %v", err)
	}
	if err := s.s.walk.deferDir(pendingDir{path: "."}, syscall.ENOENT); !errors.Is(err, errGone) {
		t.Errorf("the root, ENOENT: got %v", err)
	}
}
