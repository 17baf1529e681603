package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
)

// A stepper runs a session step by step: one event of the kernel, or one directory of the walk.
type stepper struct {
	*tree
	s      *session
	mark   *os.File // a write to it has an event after all earlier ones
	watch  int      // of mark
	marked bool     // its event is to come
	end    func()
}

// steps begins a session that publishes nothing: found files wait in the queue.
func (w *tree) steps() *stepper {
	w.t.Helper()
	w.begin(func(c *Config) { c.quiet = time.Hour })
	notify, err := newNotifier()
	w.do(err)
	s := w.watch.newSession(notify)
	s.walk = newWalk(s)
	mark, err := os.Create(filepath.Join(w.t.TempDir(), "mark"))
	w.do(err)
	watch, err := notify.add(mark.Name(), unix.IN_MODIFY)
	w.do(err)
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- notify.run(ctx) }()
	return &stepper{tree: w, s: s, mark: mark, watch: watch, end: func() {
		cancel()
		w.do(<-ended)
		w.do(mark.Close())
		notify.close()
	}}
}

// walk reads up to n directories.
func (w *stepper) walk(n int) {
	for range n {
		d, ok := w.s.walk.next()
		if !ok {
			return
		}
		w.do(w.s.walk.read(w.t.Context(), d))
	}
}

// events handles up to n events of those that have happened.
func (w *stepper) events(n int) {
	if !w.marked {
		_, err := w.mark.WriteAt([]byte{0}, 0)
		w.do(err)
		w.marked = true
	}
	for range n {
		e := <-w.s.notify.events
		if w.marked = e.watch != w.watch; !w.marked {
			return
		}
		w.do(w.s.event(e))
	}
}

// settle handles all events and finishes the walk.
func (w *stepper) settle() {
	for {
		w.events(1 << 30) // up to the mark that was set last
		w.events(1 << 30)
		if !w.s.walk.busy() {
			return
		}
		w.walk(1 << 30)
	}
}

// missed returns the files that are not in the queue, but for old ones.
func (w *stepper) missed() (all []string) {
	w.do(filepath.WalkDir(w.root, func(name string, d fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(w.root, name)
		if err := errors.Join(err, relErr); err != nil {
			return err
		}
		if d.IsDir() && isInternal(rel) {
			return fs.SkipDir
		}
		if _, waits := w.s.queue.paths[rel]; !waits && d.Type().IsRegular() && strings.Contains(rel, "/") &&
			d.Name() != "old" {
			all = append(all, rel)
		}
		return nil
	}))
	return all
}

// writeEverywhere writes a new file into every directory of a space.
func (w *stepper) writeEverywhere(file string) {
	w.do(filepath.WalkDir(w.root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || name == w.root {
			return err
		}
		if isInternal(d.Name()) {
			return fs.SkipDir
		}
		return os.WriteFile(filepath.Join(name, file), nil, 0o600)
	}))
}

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// A moved directory is watched under its new name, in whichever order events and directories are read.
func TestMovedDirectoryIsWatched(t *testing.T) {
	moveIntoNew := func(w *stepper) {
		w.do(os.Mkdir(w.path("archive"), 0o755))
		w.do(os.Rename(w.path("inbox/d"), w.path("archive/y")))
	}
	for name, move := range map[string]func(*stepper){
		"all events first":      moveIntoNew,
		"new parent read first": func(w *stepper) { moveIntoNew(w); w.events(1); w.walk(1) },
		"new name read first":   func(w *stepper) { moveIntoNew(w); w.events(1); w.walk(2) },
		"all below read first":  func(w *stepper) { moveIntoNew(w); w.events(1); w.walk(100) },
		"another in its place, read before its going": func(w *stepper) {
			w.s.walk.readDir("inbox/d")
			w.do(os.Rename(w.path("inbox/d"), w.path("inbox/e")))
			w.do(os.Rename(w.path("inbox/c"), w.path("inbox/d")))
			w.walk(1)
		},
		"one below moved on, read before the going of its parent": func(w *stepper) {
			moveIntoNew(w)
			w.do(os.Mkdir(w.path("archive/y/k"), 0o755))
			w.events(1)
			w.walk(100)
			w.do(os.Rename(w.path("archive/y/k"), w.path("archive/k")))
			w.s.walk.readDir("archive")
			w.walk(100)
		},
		"gone and made again while one below waits": func(w *stepper) {
			w.s.walk.readDir("inbox/d/sub")
			w.do(os.Rename(w.path("inbox/d"), w.path("elsewhere")))
			w.events(2)
			w.do(os.MkdirAll(w.path("inbox/d/sub"), 0o755))
			w.walk(3) // the other two are in the new place
			w.do(os.Rename(w.path("inbox/d"), w.path("inbox/e")))
		},
		"over an empty one that is held open": func(w *stepper) {
			w.do(os.Mkdir(w.path("inbox/e"), 0o755))
			w.settle()
			held, err := os.Open(w.path("inbox/e")) // the kernel reports its removal when it is closed
			w.do(err)
			w.t.Cleanup(func() { held.Close() })
			w.do(unix.Rename(w.path("inbox/d"), w.path("inbox/e")))
		},
		"over an empty one that is held open, read before all events": func(w *stepper) {
			w.do(os.Mkdir(w.path("inbox/e"), 0o755))
			w.settle()
			held, err := os.Open(w.path("inbox/e"))
			w.do(err)
			w.t.Cleanup(func() { held.Close() })
			w.do(unix.Rename(w.path("inbox/d"), w.path("inbox/e")))
			w.s.walk.readDir("inbox/e")
			w.walk(1)
		},
		"exchanged, new name read in between": func(w *stepper) {
			w.do(exchange(w.path("inbox/d"), w.path("inbox/c")))
			w.events(2)
			w.walk(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTree(t)
			w.write("inbox/d/sub/old", "1")
			w.write("inbox/c/old", "1")
			s := w.steps()
			defer s.end()
			s.settle()
			move(s)
			s.settle()
			s.writeEverywhere("new")
			s.settle()
			if got := s.missed(); len(got) > 0 {
				t.Errorf("not picked up: %q", got)
			}
		})
	}
}

// Whatever is made, moved and removed while events are read and directories walked, in the end every directory is
// watched under its name, and every file was found.
func TestEveryDirectoryIsWatched(t *testing.T) {
	w := newTree(t)
	round := 0
	need.Check(t, func(rt *rapid.T) {
		round++
		top := fmt.Sprintf("s%d", round)
		for _, dir := range []string{"a/a", "a/b", "b/a"} {
			w.do(os.MkdirAll(w.path(filepath.Join(top, dir)), 0o755))
		}
		s := w.steps()
		defer s.end()
		s.settle()
		var held []*os.File
		letGo := func() {
			for _, f := range held {
				f.Close()
			}
			held = nil
		}
		defer letGo()
		path := rapid.Custom(func(rt *rapid.T) string {
			return filepath.Join(top, filepath.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 2).Draw(rt,
				"names")...))
		})
		var log []string
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			p, n := w.path(path.Draw(rt, "path")), 0
			op := rapid.SampledFrom([]string{"mkdir", "mkdir", "move", "move", "move", "exchange", "remove", "write",
				"hold", "let go", "event", "walk"}).Draw(rt, "step")
			switch op {
			case "mkdir":
				_ = os.Mkdir(p, 0o755) // each may fail, which is one step less
			case "move":
				_ = unix.Rename(p, w.path(path.Draw(rt, "to"))) // which takes the place of an empty directory, unlike os.Rename
			case "exchange":
				_ = exchange(p, w.path(path.Draw(rt, "with")))
			case "remove":
				_ = os.RemoveAll(p)
			case "write":
				_ = os.WriteFile(filepath.Join(p, fmt.Sprint("f", len(log))), nil, 0o600)
			case "hold":
				if f, err := os.Open(p); err == nil {
					held = append(held, f)
				}
			case "let go":
				letGo()
			case "event":
				n = rapid.IntRange(1, 3).Draw(rt, "events")
				s.events(n)
			case "walk":
				n = rapid.IntRange(1, 3).Draw(rt, "directories")
				s.walk(n)
			}
			log = append(log, fmt.Sprint(op, " ", p, " ", n))
		}
		s.settle()
		s.writeEverywhere(fmt.Sprint("new", round))
		s.settle()
		if got := s.missed(); len(got) > 0 {
			rt.Errorf("not picked up: %q", got)
		}
		w.do(os.RemoveAll(w.path(top)))
	})
}

// Directories that are moved into new ones are watched, with everything running concurrently.
func TestMovesAtFullSpeed(t *testing.T) {
	need.Full(t)
	w, n := newTree(t), 2000
	for i := range n {
		w.do(os.MkdirAll(w.path(fmt.Sprintf("inbox/%d", i)), 0o755))
	}
	w.run()
	for i := range n {
		w.do(os.Mkdir(w.path(fmt.Sprintf("archive%d", i)), 0o755))
		w.do(os.Rename(w.path(fmt.Sprintf("inbox/%d", i)), w.path(fmt.Sprintf("archive%d/y", i))))
	}
	w.write("inbox/last", "1")
	w.until("reports the last", func() bool { return w.has("ADD inbox/last 1") })
	var want []string
	for _, i := range rand.Perm(n) {
		w.write(fmt.Sprintf("archive%d/y/new", i), "12345")
		want = append(want, fmt.Sprintf("ADD archive%d/y/new 5", i))
	}
	defer func() {
		if t.Failed() {
			t.Errorf("%d not reported, of them %.3q", len(want), want)
		}
	}()
	w.until("reports all", func() bool {
		got := map[string]bool{}
		for _, s := range w.changes {
			got[s] = true
		}
		want = slices.DeleteFunc(want, func(s string) bool { return got[s] })
		return len(want) == 0
	})
}
