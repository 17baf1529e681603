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

// Every file that is there when a watch begins is reported, and again by a process that starts anew, as the same
// Change.
func TestWalkAtStart(t *testing.T) {
	t.Parallel()
	w := newTree(t)
	w.write("photos/a", "1")
	w.write("photos/2026/05/b c", "12")
	w.write("maps/m", "123")
	w.write(".millrace/mine", "x")
	w.do(os.Mkdir(w.path("photos/empty"), 0o755))
	w.do(os.Symlink("a", w.path("photos/link")))
	w.do(os.Symlink("2026", w.path("photos/links")))
	w.do(syscall.Mkfifo(w.path("photos/pipe"), 0o644))
	want := []string{"ADD photos/a 1", "ADD photos/2026/05/b c 2", "ADD maps/m 3"}
	end := w.run()
	w.awaitChanges(want...)
	end()
	w.begin(nil)
	w.run()
	w.until("is reported again", func() bool {
		return len(w.ids) == 3 && slices.Min(slices.Collect(maps.Values(w.ids))) == 2
	})
}

// Files that fail during a walk are examined again, even if the queue is too small for all of them.
func TestWalkFaults(t *testing.T) {
	for name, fault := range map[string]func(*tree){
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
				path := fmt.Sprintf("photos/%d/%d", i%3, i)
				w.write(path, "1")
				w.do(os.Chtimes(w.path(path), old, old))
				want = append(want, "ADD "+path+" 1")
			}
			fault(w)
			w.run()
			w.awaitChanges(want...)
		})
	}
}

// Directories that are created during a walk are walked too.
func TestWalkOfATreeThatGrows(t *testing.T) {
	t.Parallel()
	w := newTree(t)
	var want []string
	add := func(path string) {
		w.write(path, "1")
		want = append(want, "ADD "+path+" 1")
	}
	for i := range 300 {
		add(fmt.Sprintf("photos/%d/%d/old", i%10, i))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			add(fmt.Sprintf("photos/%d/new%d/%d/a", i%10, i%30, i))
			if i%10 == 0 { // a directory with all in it
				from, to := w.path(fmt.Sprintf(".millrace/in%d", i)), fmt.Sprintf("photos/%d/moved%d", i%7, i)
				w.do(errors.Join(os.MkdirAll(filepath.Join(from, "x"), 0o755), os.WriteFile(filepath.Join(from, "x/y"),
					[]byte("1"), 0o644)))
				w.do(os.Rename(from, w.path(to)))
				want = append(want, "ADD "+to+"/x/y 1")
			}
		}
	}()
	w.run()
	<-done
	missing := want
	defer func() {
		if t.Failed() {
			t.Errorf("not reported: %q", missing)
		}
	}()
	w.until("reports all", func() bool {
		missing = slices.DeleteFunc(missing, func(s string) bool { return w.has(s) })
		return len(missing) == 0
	})
}

// After the kernel has dropped events the tree is walked again: what changed is reported, and what did not change is
// not.
func TestWalkAfterOverflow(t *testing.T) {
	w := newTree(t)
	w.begin(func(c *Config) { c.margin = 20 * time.Millisecond })
	w.write("still/old", "1")
	w.write("still/deep/er/old", "1")
	w.write("photos/deep/er/old", "1")
	w.write("photos/changed", "1")
	w.write("photos/maps/x", "123")
	w.run()
	w.awaitChanges("ADD still/old 1", "ADD still/deep/er/old 1", "ADD photos/deep/er/old 1", "ADD photos/changed 1",
		"ADD photos/maps/x 3")
	later := time.Now().Add(20 * w.watch.cfg.recheck)
	w.until("some time passes", func() bool { return time.Now().After(later) })
	hold := make(chan chan struct{}, 1)
	w.mu.Lock()
	w.hold = hold
	w.mu.Unlock()
	let := <-hold // nothing is read from the kernel any more
	flood(t, w.path("photos/deep/flood"))
	w.write("photos/deep/late", "12")
	w.write("photos/changed", "12")
	w.write("photos/new/2/late", "123")
	w.do(os.Rename(w.path("photos/maps"), w.path("photos/deep/maps"))) // whose file is as old as it was
	close(let)
	w.awaitLog("the kernel dropped events")
	w.awaitLog(`msg="finish walk"`)
	w.until("reports what changed", func() bool {
		return w.has("ADD photos/deep/late 2", "ADD photos/changed 2", "ADD photos/new/2/late 3", "ADD photos/deep/maps/x 3")
	})
	for item, n := range w.times() {
		if strings.HasPrefix(item, "still/") && n != 1 {
			t.Errorf("%s was reported %d times", item, n)
		}
	}
	w.write("photos/new/2/end", "1234") // new files are found, even in directories with a dropped event
	w.until("reports what comes", func() bool { return w.has("ADD photos/new/2/end 4") })
}

// flood causes more events than the queue of the kernel holds.
func flood(t *testing.T, name string) {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if n > 100_000 {
		need.Full(t)
	}
	for range n/2 + 1000 { // of two events each
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// If the queue is full, the tree is walked again until all files are published.
func TestWalkAfterTooManyPaths(t *testing.T) {
	t.Parallel()
	w := newTree(t)
	w.begin(func(c *Config) { c.Limit = 10 })
	w.run()
	var want []string
	for i := range 500 {
		path := fmt.Sprintf("photos/%d", i)
		w.write(path, "1")
		want = append(want, "ADD "+path+" 1")
	}
	w.awaitLog("too many paths wait")
	w.until("reports all", func() bool { return w.has(want...) })
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
	if err := os.WriteFile("/proc/sys/user/max_inotify_watches", []byte(os.Getenv(env)), 0); err != nil {
		t.Fatal(err)
	}
	w := newTree(t)
	var want []string
	for i := range 10 {
		path := fmt.Sprintf("photos/%d/a", i)
		w.write(path, "1")
		want = append(want, "ADD "+path+" 1")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.watch.Run(ctx) }()
	w.awaitChanges(want...)
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
				w.until("has reported all", func() bool { return w.published == files })
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
