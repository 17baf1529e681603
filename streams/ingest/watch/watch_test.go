package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/ingest/hint"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A tree is a watched file store. It works in real time, because inotify does.
type tree struct {
	t     testing.TB
	root  string
	store *storagetest.Faulty
	watch *Watch

	mu      sync.Mutex // guards the rest
	logs    bytes.Buffer
	changes []string
	ids     map[string]int
	dates   map[string]time.Time // of the newest Changes, by item
	fail    int                  // number of publications that fail
	asked   int                  // rounds of reconcile
	refused int                  // requests of rounds that fail
	done    bool

	forgetful bool // only count published messages, and do not record calls of the store
	inner     storage.Store
	published int            // messages
	count     map[string]int // of messages, by item

	hold chan chan struct{} // if set, checkRoot sends a channel on it and waits until that is closed
}

func newTree(t testing.TB) *tree {
	t.Helper()
	w := &tree{t: t, root: filepath.Join(t.TempDir(), "root"), ids: map[string]int{}, count: map[string]int{},
		dates: map[string]time.Time{}}
	inner, err := file.Open(file.Config{ID: "acme/1", Root: w.root, Create: true})
	must(t, err)
	t.Cleanup(func() { inner.Close() })
	must(t, inner.WriteMarker(t.Context()))
	w.inner, w.store = inner, storagetest.NewFaulty(inner)
	w.begin(nil)
	return w
}

// begin creates a Watch, like a process that starts.
func (w *tree) begin(more func(*Config)) {
	w.t.Helper()
	cfg := Config{Account: "acme", Store: "1", Root: w.root, ItemAt: file.ItemAt, quiet: 30 * time.Millisecond,
		recheck: 50 * time.Millisecond, Ask: w.ask}
	if more != nil {
		more(&cfg)
	}
	var err error
	if w.watch, err = New(cfg, w, w, nil, slog.New(slog.NewTextHandler(w, nil))); err != nil {
		w.t.Fatal(err)
	}
}

// run runs the Watch until the test ends, or end is called.
func (w *tree) run() (end func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.watch.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(end)
	w.awaitLog(`msg="finish walk"`)
	return end
}

func (w *tree) Store(account, id string) (storage.Store, bool) {
	w.mu.Lock()
	hold := w.hold
	w.hold = nil
	w.mu.Unlock()
	if hold != nil {
		let := make(chan struct{})
		hold <- let
		<-let
	}
	if w.forgetful {
		return w.inner, true
	}
	return w.store, account == "acme" && id == "1"
}

func (w *tree) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logs.Write(p)
}

func (w *tree) ask(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused--; w.refused >= 0 {
		return errors.New("no leader")
	}
	w.asked++
	return nil
}

// awaitAsks waits until n rounds of reconcile were asked for.
func (w *tree) awaitAsks(n int) {
	w.t.Helper()
	w.until(fmt.Sprint("asks ", n), func() bool { return w.asked >= n })
}

func (w *tree) Publish(_ context.Context, msgs ...schemas.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	failed := w.fail > 0
	w.fail--
	if !failed || w.done {
		for _, m := range msgs {
			c := m.Body.(*pb.Change)
			if w.published++; w.forgetful {
				continue
			}
			w.count[c.GetSpace()+"/"+c.GetItem()]++
			w.dates[c.GetSpace()+"/"+c.GetItem()] = c.GetTime().AsTime()
			if w.ids[c.GetId()]++; w.ids[c.GetId()] == 1 {
				w.changes = append(w.changes, fmt.Sprintf("%s %s/%s %d", strings.TrimPrefix(c.GetOp().String(), "OP_"),
					c.GetSpace(),
					c.GetItem(), c.GetSize()))
			}
			if c.GetOrigin() != pb.Origin_ORIGIN_NOTIFICATION || c.GetAgent() != "notification/watch" {
				w.t.Errorf("got %v", c)
			}
		}
	}
	if failed {
		return errors.New("no leader")
	}
	return nil
}

// date returns the time of the newest Change of an item.
func (w *tree) date(item string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dates[item]
}

func (w *tree) until(what string, done func() bool) {
	w.t.Helper()
	end, tick := time.Now().Add(20*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		w.mu.Lock()
		is, changes, logs := done(), fmt.Sprint(w.changes), w.logs.String()
		w.mu.Unlock()
		if is {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("%s: published %s\n%s", what, changes, logs)
		}
		<-tick.C
	}
}

// awaitLog waits for text in what was logged since the text of the last call.
func (w *tree) awaitLog(text string) {
	w.t.Helper()
	w.until("says "+text, func() bool {
		_, rest, found := strings.Cut(w.logs.String(), text)
		if found { // under the lock: what is logged from now on is for the next call
			w.logs.Reset()
			w.logs.WriteString(rest)
		}
		return found
	})
}

// awaitChanges waits until exactly these Changes were published since the last call, in any order. Of an item the last
// one counts: on a busy machine a file is quiet, and examined, before the test has written or removed it to the end.
func (w *tree) awaitChanges(want ...string) {
	w.t.Helper()
	slices.Sort(want)
	w.until(fmt.Sprintf("publishes %.1000q", want), func() bool {
		last := map[string]string{}
		for _, c := range w.changes {
			last[c[strings.Index(c, " "):strings.LastIndex(c, " ")]] = c
		}
		if !slices.Equal(slices.Sorted(maps.Values(last)), want) {
			return false
		}
		w.changes = nil
		return true
	})
}

// has reports whether all wanted Changes were published. The caller holds mu.
func (w *tree) has(want ...string) bool {
	return !slices.ContainsFunc(want, func(s string) bool { return !slices.Contains(w.changes, s) })
}

func (w *tree) write(path, text string) {
	w.t.Helper()
	name := filepath.Join(w.root, path)
	must(w.t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)))
}

func (w *tree) do(err error) {
	w.t.Helper()
	must(w.t, err)
}

func (w *tree) path(p string) string { return filepath.Join(w.root, p) }

func TestWatch(t *testing.T) {
	t.Parallel()
	w := newTree(t)
	w.write("photos/old", "12345")
	w.run()
	w.awaitAsks(1)           // for what was there before
	w.write("photos/a", "1") // in a directory that was there
	w.awaitChanges("ADD photos/a 1")
	w.write("photos/2026/05/b c", "12") // with directories that are new, and a new space
	w.write("maps/m", "123")
	w.awaitChanges("ADD photos/2026/05/b c 2", "ADD maps/m 3")
	w.write("photos/2026/05/b c", "1234") // again, in a directory that is new
	w.awaitChanges("ADD photos/2026/05/b c 4")
	w.do(os.Rename(w.path("photos/a"), w.path("maps/a")))
	w.awaitChanges("DELETE photos/a 0", "ADD maps/a 1")
	w.do(os.Remove(w.path("photos/old")))
	w.awaitChanges("DELETE photos/old 0")
	w.write("photos/.swap", "x") // created and deleted
	w.do(os.Remove(w.path("photos/.swap")))
	w.awaitChanges("DELETE photos/.swap 0")
	w.write("maps/known", "12")
	w.awaitChanges("ADD maps/known 2")
	w.write(".millrace/new", "123") // replaces a known file, and is deleted before it is examined
	w.do(os.Rename(w.path(".millrace/new"), w.path("maps/known")))
	w.do(os.Remove(w.path("maps/known")))
	w.awaitChanges("DELETE maps/known 0")
	w.write(".millrace/mine", "x") // not an item
	w.do(os.Symlink("m", w.path("maps/link")))
	w.write("photos/end", "1")
	w.awaitChanges("ADD photos/end 1")
	w.do(os.Rename(w.path("photos/2026"), w.path("maps/2026"))) // a directory as a whole
	w.awaitLog("forget directory")
	w.awaitChanges("ADD maps/2026/05/b c 4")
	w.write("maps/2026/05/c", "12345")
	w.awaitChanges("ADD maps/2026/05/c 5")
	if _, err := w.store.Put(t.Context(), "photos", "ours", strings.NewReader("123"),
		storage.PutOptions{Size: 3}); err != nil {
		t.Fatal(err)
	}
	w.awaitChanges("ADD photos/ours 3") // with the id of the Change of the writer
}

// While the root is gone, nothing is published; it is watched again when it is back.
func TestWatchLosesItsRoot(t *testing.T) {
	t.Parallel()
	w := newTree(t)
	w.write("photos/a", "1")
	w.run()
	w.awaitAsks(1)
	w.do(os.Rename(w.root, w.root+".away"))
	w.awaitLog("stop watching")
	w.do(os.Mkdir(w.root, 0o755)) // a mount point without its disk
	w.awaitLog("stop watching")
	w.do(errors.Join(os.Remove(w.root), os.Rename(w.root+".away", w.root)))
	w.awaitLog(`msg="finish walk"`)
	w.awaitAsks(2) // nobody knows which tree is back
	w.write("photos/b", "12")
	w.awaitChanges("ADD photos/b 2")
}

// A path that fails is examined again. A Change that is not acknowledged is published again with the same id.
func TestWatchFaults(t *testing.T) {
	for name, fault := range map[string]func(*tree){
		"stat":                 func(w *tree) { w.store.Script(storagetest.Fault{Method: "Stat"}) },
		"publish":              func(w *tree) { w.fail = 1 },
		"published, not known": func(w *tree) { w.fail, w.done = 1, true },
		"marker, of an absence": func(w *tree) {
			w.do(os.Remove(w.path("photos/a")))
			w.store.Script(storagetest.Fault{Method: "Marker"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTree(t)
			w.write("photos/a", "1")
			w.watch.queue.add("photos/a", time.Now(), true) // present or not is what the store says
			fault(w)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- w.watch.publishDue(ctx) }()
			if name == "marker, of an absence" {
				w.awaitChanges("DELETE photos/a 0")
			} else {
				w.awaitChanges("ADD photos/a 1")
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWatchSaysWhatItMisses(t *testing.T) {
	w := newTree(t)
	s := &session{Watch: w.watch}
	w.do(s.event(event{watch: -1, mask: unix.IN_Q_OVERFLOW}))
	w.awaitLog("the kernel dropped events")
	w.watch.queue.limit = 1
	s.enqueue("photos/a", false)
	s.enqueue("photos/b", false)
	s.enqueue("photos/c", false)
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := strings.Count(w.logs.String(), "too many paths wait"); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
}

func TestQueue(t *testing.T) {
	now := time.Now()
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	type note struct {
		ms   int
		gone bool
	}
	for name, tt := range map[string]struct {
		notes []note
		look  int
		want  string // gone or there; empty: nothing is due
	}{
		"quiet":                  {[]note{{0, false}}, 100, "there"},
		"not yet":                {[]note{{0, false}}, 99, ""},
		"written on and on":      {[]note{{0, false}, {50, false}, {140, false}}, 200, ""},
		"written to its end":     {[]note{{0, false}, {50, false}, {140, false}}, 240, "there"},
		"removed":                {[]note{{0, true}}, 100, "gone"},
		"written and removed":    {[]note{{0, false}, {10, true}}, 110, "gone"},
		"came, went and came":    {[]note{{0, false}, {10, true}, {20, false}}, 120, "there"},
		"removed and made again": {[]note{{0, true}, {10, false}}, 110, "there"},
		"removed, made, removed": {[]note{{0, true}, {10, false}, {20, true}}, 120, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(100*time.Millisecond, 10)
			for _, n := range tt.notes {
				q.add("p", at(n.ms), n.gone)
			}
			got := ""
			for _, p := range q.due(at(tt.look), 10) {
				if got = "there"; p.gone {
					got = "gone"
				}
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	q := newQueue(0, 10)
	q.add("p", now, true)
	p := q.due(now, 10)[0]
	q.retry(p, now)
	if len(q.due(now, 10)) != 0 {
		t.Error("what failed is due at once")
	}
	if got := q.due(at(2000), 10); len(got) != 1 || got[0].failures != 1 {
		t.Errorf("got %v", got)
	}
	q.retry(p, now)
	q.add("p", now, false)
	q.retry(p, now)
	if got := q.due(now, 10); len(got) != 1 || got[0].gone || got[0].failures != 0 {
		t.Errorf("got %v: what happened since counts", got)
	}
}

var _ hint.Stores = (*tree)(nil)
