package watch

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What a watch sees arrive is newer than what it has published before, whatever date the file has: also a date that is
// too near for a restored one.
func TestWatchOfFilesWithEarlierDates(t *testing.T) {
	for name, before := range map[string]func(w *tree){
		"replaces another": func(*tree) {},
		"put back": func(w *tree) {
			w.do(os.Remove(w.path("photos/a")))
			w.awaitChanges("DELETE photos/a 0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTree(t)
			w.write("photos/old", "x")
			w.run()
			staged := filepath.Join(t.TempDir(), "staged")
			w.do(os.WriteFile(staged, []byte("123"), 0o600))
			date := time.Now().Add(-10 * time.Second).Truncate(time.Millisecond)
			w.do(os.Chtimes(staged, date, date))
			w.write("photos/a", "1")
			w.awaitChanges("ADD photos/a 1")
			before(w)
			earlier := w.date("photos/a")
			w.do(os.Rename(staged, w.path("photos/a")))
			w.awaitChanges("ADD photos/a 3")
			if at := w.date("photos/a"); !at.After(earlier) {
				t.Errorf("the Change is dated %v, that before it %v", at, earlier)
			}
		})
	}
}

// Two events about one version are one Change, also if the clock of the process is wrong by more than the settle time.
func TestWatchOfAWrongClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"right": 0, "ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTree(t)
			w.begin(func(c *Config) { c.At = func(t time.Time) time.Time { return t.Add(-ahead) } })
			w.write("photos/a", "1")
			written := time.Now().Add(-ahead).Truncate(time.Millisecond) // by the clock of the host of the files
			w.do(os.Chtimes(w.path("photos/a"), written, written))
			for range 2 {
				w.do(w.watch.publishPath(t.Context(), pendingPath{path: "photos/a", last: time.Now()}))
				if at := w.date("photos/a"); !at.Equal(written) {
					t.Errorf("the Change is dated %v, the file %v", at, written)
				}
			}
			if len(w.ids) != 1 {
				t.Errorf("%d ids, want 1", len(w.ids))
			}
		})
	}
}

// A file whose last event was a removal, and that is there all the same, has arrived since.
func TestWatchOfAFileThatIsBackAtOnce(t *testing.T) {
	w := newTree(t)
	w.write("photos/a", "1")
	w.do(os.Chtimes(w.path("photos/a"), time.Unix(1, 0), time.Unix(1, 0)))
	last := time.Now().Truncate(time.Millisecond).UTC()
	w.do(w.watch.publishPath(t.Context(), pendingPath{path: "photos/a", last: last, gone: true}))
	if at := w.date("photos/a"); !at.Equal(last) {
		t.Errorf("the Change is dated %v, the event %v", at, last)
	}
}

func TestRecent(t *testing.T) {
	r, now := recent{keep: time.Minute}, time.Unix(1_000_000, 0)
	p := published{now, "v1"}
	r.add("a", p, now)
	r.add("b", p, now.Add(70*time.Second))
	if r.of("a") != p || r.of("b") != p || r.of("c") != (published{}) {
		t.Errorf("got %v, %v, %v", r.of("a"), r.of("b"), r.of("c"))
	}
	r.add("b", p, now.Add(140*time.Second))
	if r.of("a") != (published{}) {
		t.Errorf("got %v", r.of("a"))
	}
}
