package watch

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// While the marker cannot be read the tree is watched on, and no file is looked at again for that.
func TestWatchWhileMarkerFails(t *testing.T) {
	t.Parallel()
	w := newTree(t)
	w.write("photos/old", "1")
	w.run()
	w.tells("ADD photos/old 1")
	w.store.Script(storagetest.Fault{Method: "Marker", Times: 3})
	w.says("the root cannot be looked at now")
	w.write("photos/new", "12")
	w.tells("ADD photos/new 2")
	w.do(os.Remove(w.path("photos/new")))
	w.tells("DELETE photos/new 0")
	if n := w.times()["photos/old"]; n != 1 {
		t.Errorf("photos/old was reported %d times", n)
	}
}

// A session takes up where the one before ended, if its root is the same.
func TestSessionTakesUp(t *testing.T) {
	at := time.Now().Add(-time.Hour)
	for name, tt := range map[string]struct {
		fault error              // of the marker
		do    func(*tree, *seen) // before it begins
		want  time.Time
		gone  bool
	}{
		"same root":                           {nil, func(*tree, *seen) {}, at, false},
		"same root, marker cannot be read":    {syscall.EIO, func(*tree, *seen) {}, at, false},
		"same root, marker of another store":  {storage.ErrWrongMarker, func(*tree, *seen) {}, at, true},
		"same root, no marker":                {storage.ErrNoMarker, func(*tree, *seen) {}, at, true},
		"no root before":                      {nil, func(_ *tree, s *seen) { s.root = nil }, time.Time{}, false},
		"another root, marker cannot be read": {syscall.EIO, func(w *tree, s *seen) { s.root, _ = os.Stat(w.path("photos")) }, time.Time{}, false},
		"root gone":                           {nil, func(w *tree, _ *seen) { w.do(os.Rename(w.root, w.root+".away")) }, at, true},
		"root is a file": {nil, func(w *tree, _ *seen) {
			w.do(errors.Join(os.Rename(w.root, w.root+".away"), os.WriteFile(w.root, nil, 0o600)))
		}, time.Time{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t)
			w.write("photos/a", "1")
			root, err := os.Stat(w.root)
			w.do(err)
			from := seen{root, at}
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

// A file system that is unmounted takes its watches along: the tree is walked again, and all of it.
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
	w.tells("ADD photos/a 1", "ADD disk/b 2")
	w.until("unmounts", func() bool { return unix.Unmount(w.path("disk"), 0) == nil })
	w.says("was unmounted")
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
		if got := wentBack(tt.wall, tt.passed, time.Minute); got != tt.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// A directory that cannot be read for want of open files is read when it can be; until then nothing counts as published.
func TestWalkReadsAgain(t *testing.T) {
	w := newTree(t)
	w.write("photos/d/old", "1")
	s := w.steps()
	defer s.end()
	var err error
	s.s.root, err = os.Stat(w.root)
	w.do(err)
	s.s.begun = time.Now().Add(-time.Hour)
	s.walk(2)
	var limit syscall.Rlimit
	w.do(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	w.do(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: limit.Max}))
	s.walk(1)
	w.do(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	w.says("a directory cannot be read")
	s.settle()
	if got := s.missed(); len(got) != 1 {
		t.Fatalf("missed %q", got)
	}
	s.s.missed = true
	if err := s.s.tick(t.Context()); !errors.Is(err, errMissed) || !s.s.published.IsZero() {
		t.Errorf("got %v, published up to %v", err, s.s.published)
	}
	s.settle()
	if got := s.missed(); len(got) != 0 {
		t.Errorf("missed %q", got)
	}
	if err := s.s.tick(t.Context()); !errors.Is(err, errMissed) || s.s.published.IsZero() {
		t.Errorf("got %v, nothing is published", err)
	}
}

// A directory that may not be read does not keep the rest from counting as published.
func TestWalkOfWhatMayNotBeRead(t *testing.T) {
	w := newTree(t)
	s := w.steps()
	defer s.end()
	s.settle()
	for err, held := range map[error]bool{syscall.EACCES: false, syscall.EPERM: false, syscall.EIO: true, syscall.EMFILE: true} {
		w.do(s.s.walk.unread(found{path: "photos/d"}, err))
		if got := s.s.walk.again(); got != held || !s.s.walk.busy() {
			t.Errorf("%v: got %v", err, got)
		}
		s.settle()
	}
	for _, err := range []error{syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP} {
		w.do(s.s.walk.unread(found{path: "photos/d"}, err))
		if s.s.walk.again(); s.s.walk.busy() {
			t.Errorf("%v: it is read again", err)
		}
	}
	if err := s.s.walk.unread(found{path: "."}, syscall.EIO); err == nil || errors.Is(err, errGone) {
		t.Errorf("the root, EIO: got %v", err)
	}
	if err := s.s.walk.unread(found{path: "."}, syscall.ENOENT); !errors.Is(err, errGone) {
		t.Errorf("the root, ENOENT: got %v", err)
	}
}
