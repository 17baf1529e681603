package watch

import (
	"context"
	"errors"
	"io/fs"
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
	w.awaitAsks(1)
	w.store.Script(storagetest.Fault{Method: "Marker", Times: 3})
	w.awaitLog("retry root")
	w.write("photos/new", "12")
	w.awaitChanges("ADD photos/new 2")
	w.do(os.Remove(w.path("photos/new")))
	w.awaitChanges("DELETE photos/new 0")
	if n := w.times()["photos/old"]; n != 0 {
		t.Errorf("photos/old was reported %d times", n)
	}
}

// A session ends if the root is gone, and goes on while that is unknown.
func TestSessionOfARoot(t *testing.T) {
	for name, tt := range map[string]struct {
		fault error       // of the marker
		do    func(*tree) // before it begins
		gone  bool
	}{
		"same root":               {nil, func(*tree) {}, false},
		"marker cannot be read":   {syscall.EIO, func(*tree) {}, false},
		"marker of another store": {storage.ErrWrongMarker, func(*tree) {}, true},
		"no marker":               {storage.ErrNoMarker, func(*tree) {}, true},
		"root gone":               {nil, func(w *tree) { w.do(os.Rename(w.root, w.root+".away")) }, true},
		"root is a file": {nil, func(w *tree) {
			w.do(errors.Join(os.Rename(w.root, w.root+".away"), os.WriteFile(w.root, nil, 0o600)))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t)
			w.write("photos/a", "1")
			tt.do(w)
			if tt.fault != nil {
				w.store.Script(storagetest.Fault{Method: "Marker", Err: tt.fault})
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := w.watch.session(ctx); errors.Is(err, errGone) != tt.gone {
				t.Errorf("got %v, want gone %v", err, tt.gone)
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
	w.awaitAsks(1)
	w.until("unmounts", func() bool { return unix.Unmount(w.path("disk"), 0) == nil })
	w.awaitLog("was unmounted")
	w.awaitAsks(2)
}

// A directory that cannot be read because of the limit of open files is read later.
func TestWalkReadsAgain(t *testing.T) {
	w := newTree(t)
	w.write("photos/d/a", "1")
	s := w.steps()
	defer s.end()
	s.settle()
	s.s.walk.readDir("photos") // as one that was moved in
	s.walk(1)
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
	if got := s.missed(); len(got) != 0 || s.s.asks.Load() {
		t.Errorf("missed %q", got)
	}
	s.s.walk.push(pendingDir{path: "photos/d", failures: 1}) // one that is not new
	if s.settle(); !s.s.asks.Load() {
		t.Error("no round is asked for")
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

// The files of a new directory that cannot be read to its end are examined once, and all when it can be read.
func TestWalkOfASpoiltDirectory(t *testing.T) {
	w := newTree(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		w.write("photos/"+name, "1")
	}
	s := w.steps()
	defer s.end()
	d := pendingDir{path: "photos", new: true}
	for _, tt := range []struct{ good, found int }{{2, 2}, {2, 0}, {3, 0}, {100, 4}} {
		f, err := os.Open(w.path("photos"))
		w.do(err)
		w.do(s.s.walk.readAll(t.Context(), d, &brokenDir{f, tt.good}))
		w.do(f.Close())
		if n := len(w.watch.queue.paths); n != tt.found {
			t.Errorf("%d entries can be read: %d found, want %d", tt.good, n, tt.found)
		}
		clear(w.watch.queue.paths)
		var waits bool
		if d, waits = s.s.walk.deferred["photos"]; waits != (tt.good < 4) {
			t.Errorf("%d entries can be read: read again: %v", tt.good, waits)
		}
		delete(s.s.walk.deferred, "photos")
	}
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
