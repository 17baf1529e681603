package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/heaptest"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// times returns how often each item was published.
func (w *tree) times() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.count)
}

// What is there when a watch begins is not published, however old or new it is: a round of reconcile is asked for, at
// each start.
func TestWalkAtStart(t *testing.T) {
	t.Parallel()
	w := newTree(t)
	w.write("photos/a", "1")
	w.write("photos/2026/05/b c", "12")
	w.write(".millrace/mine", "x")
	w.do(os.Mkdir(w.path("photos/empty"), 0o755))
	w.do(os.Symlink("2026", w.path("photos/links")))
	w.do(syscall.Mkfifo(w.path("photos/pipe"), 0o644))
	w.refused = 2 // it asks until it is heard
	end := w.run()
	w.awaitAsks(1)
	end()
	w.begin(nil)
	w.run()
	w.awaitAsks(2)
	w.write("photos/empty/b", "12")
	w.awaitChanges("ADD photos/empty/b 2")
}

// Files of a directory that is moved in are examined again if they fail, and wait for room in the queue.
func TestWalkFaults(t *testing.T) {
	for name, fault := range map[string]func(*tree){
		"none":                 func(*tree) { /* the queue is too small */ },
		"stat":                 func(w *tree) { w.store.Script(storagetest.Fault{Method: "Stat", Times: 8}) },
		"publish":              func(w *tree) { w.fail = 2 },
		"published, not known": func(w *tree) { w.fail, w.done = 2, true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTree(t)
			w.begin(func(c *Config) { c.Limit = 5 })
			var want []string
			old := time.Now().Add(-time.Hour)
			for i := range 20 {
				path := fmt.Sprintf("%d/%d", i%3, i)
				w.write(".millrace/in/"+path, "1")
				w.do(os.Chtimes(w.path(".millrace/in/"+path), old, old))
				want = append(want, "ADD photos/in/"+path+" 1")
			}
			w.do(os.Mkdir(w.path("photos"), 0o755))
			w.run()
			w.awaitAsks(1)
			w.mu.Lock()
			fault(w)
			w.mu.Unlock()
			w.do(os.Rename(w.path(".millrace/in"), w.path("photos/in")))
			w.awaitChanges(want...)
		})
	}
}

// Directories that are created during a walk are walked too. What the watch does not publish was there before it asked.
func TestWalkOfATreeThatGrows(t *testing.T) {
	t.Parallel()
	w := newTree(t)
	for i := range 300 {
		w.write(fmt.Sprintf("photos/%d/%d/old", i%10, i), "1")
	}
	var want []string
	wants := func(path string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.asked > 0 {
			want = append(want, "ADD "+path+" 1")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.watch.Run(ctx) }()
	for i := range 600 {
		if i == 300 {
			w.awaitAsks(1)
		}
		path := fmt.Sprintf("photos/%d/new%d/%d/a", i%10, i%30, i)
		wants(path)
		w.write(path, "1")
		if i%10 == 0 { // a directory with all in it
			from, to := w.path(fmt.Sprintf(".millrace/in%d", i)), fmt.Sprintf("photos/%d/moved%d", i%7, i)
			w.do(errors.Join(os.MkdirAll(filepath.Join(from, "x"), 0o755), os.WriteFile(filepath.Join(from, "x/y"),
				[]byte("1"), 0o644)))
			wants(to + "/x/y")
			w.do(os.Rename(from, w.path(to)))
		}
	}
	defer func() {
		if t.Failed() {
			t.Errorf("not reported: %q", want)
		}
	}()
	w.until("reports all", func() bool {
		want = slices.DeleteFunc(want, func(s string) bool { return w.has(s) })
		return len(want) == 0
	})
	cancel()
	w.do(<-ended)
}

// After the kernel has dropped events the tree is walked again, so that new directories are watched, and a round is
// asked for.
func TestWalkAfterOverflow(t *testing.T) {
	w := newTree(t)
	w.write("still/deep/er/old", "1")
	w.write("photos/deep/er/old", "1")
	w.run()
	w.awaitAsks(1)
	hold := make(chan chan struct{}, 1)
	w.mu.Lock()
	w.hold = hold
	w.mu.Unlock()
	let := <-hold // nothing is read from the kernel any more
	flood(t, w.path("photos/deep/flood"))
	w.write("photos/new/2/late", "123")
	close(let)
	w.awaitLog("the kernel dropped events")
	w.awaitLog(`msg="finish walk"`)
	w.awaitAsks(2)
	if n := w.times()["still/deep/er/old"]; n != 0 {
		t.Errorf("a file that did not change was reported %d times", n)
	}
	w.write("photos/new/2/end", "1234") // new files are found, even in directories with a dropped event
	w.until("reports what comes", func() bool { return w.has("ADD photos/new/2/end 4") })
}

// flood causes more events than the queue of the kernel holds.
func flood(t *testing.T, name string) {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	must(t, err)
	if n > 100_000 {
		need.Full(t)
	}
	for range n/2 + 1000 { // of two events each
		must(t, os.WriteFile(name, nil, 0o644))
		must(t, os.Remove(name))
	}
}

// If the queue is full, a round finds what was dropped.
func TestWalkAfterTooManyPaths(t *testing.T) {
	t.Parallel()
	w := newTree(t)
	w.do(os.Mkdir(w.path("photos"), 0o755))
	w.begin(func(c *Config) { c.Limit = 10 })
	w.run()
	w.awaitAsks(1)
	for i := range 500 {
		w.write(fmt.Sprintf("photos/%d", i), "1")
	}
	w.awaitLog("too many paths wait")
	w.awaitAsks(2)
}

// Without enough watches, the walk still finishes, and the log names the setting to raise.
func TestWalkWithoutWatches(t *testing.T) {
	const env = "WATCH_TEST_LIMIT"
	if os.Getenv(env) == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestWalkWithoutWatches$", "-test.v")
		c.Env = append(os.Environ(), env+"=4")
		id := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: id,
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
		out, err := c.CombinedOutput()
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
			need.Missing(t, need.Kernel("user namespaces"), err)
		}
		if err != nil || strings.Contains(string(out), "--- SKIP") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	// The limit is that of the user namespace.
	must(t, os.WriteFile("/proc/sys/user/max_inotify_watches", []byte(os.Getenv(env)), 0))
	w := newTree(t)
	for i := range 10 {
		w.write(fmt.Sprintf("photos/%d/a", i), "1")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.watch.Run(ctx) }()
	w.awaitAsks(1)
	w.awaitLog("fs.inotify.max_user_watches")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Memory does not grow with the number of files, in one directory or in many.
func TestWalkMemory(t *testing.T) {
	files := need.Amount(600, 20_000, 100_000)
	for name, dirs := range map[string]int{"one directory": 1, "many directories": files / 20} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t)
			w.begin(nil)
			old := time.Now().Add(-time.Hour)
			for i := range files {
				path := w.path(fmt.Sprintf("photos/%03d/%05d/file-%08d", i%dirs/1000, i%dirs, i))
				if i < dirs {
					w.do(os.MkdirAll(filepath.Dir(path), 0o755))
				}
				w.do(os.WriteFile(path, nil, 0o644))
				w.do(os.Chtimes(path, old, old))
			}
			w.forgetful = true
			begun := time.Now()
			var took time.Duration
			got := heaptest.Peak(func() {
				end := w.run()
				took = time.Since(begun)
				w.awaitAsks(1)
				end()
			})
			most := int64(8<<20 + 1000*dirs)
			t.Logf("%d files in %d directories: %d bytes, walked in %v", files, dirs, got, took)
			if got > most {
				t.Errorf("%d bytes are held, at most %d", got, most)
			}
		})
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
