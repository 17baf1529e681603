package emit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A store without its marker may be another one, or an unmounted mount point: nothing is written to it, and
// no intent is recorded. New makes no call.
func TestNothingIsWrittenWithoutMarker(t *testing.T) {
	for name, tt := range map[string]struct {
		mark  string
		fault []storagetest.Fault
		want  error
	}{
		"no marker":            {want: storage.ErrNoMarker},
		"marker of another":    {mark: "2", want: storage.ErrWrongMarker},
		"marker is unreadable": {mark: "1", fault: []storagetest.Fault{{Method: "Marker"}}, want: storagetest.ErrFault},
	} {
		for method, m := range testMutations() {
			t.Run(name+" "+method, func(t *testing.T) {
				w, _ := newMutationWorld(t)
				w.mem.Mark(tt.mark)
				w.faulty.Script(tt.fault...)
				if n := len(w.faulty.Calls()); n > 0 {
					t.Errorf("New made %d calls", n)
				}
				if err := m.call(w); !errors.Is(err, tt.want) || !storage.IsNotApplied(err) {
					t.Errorf("got %v, want %v, marked by NotApplied", err, tt.want)
				}
				if n := w.faulty.Count(method); n > 0 || w.intents.Load() > 0 {
					t.Errorf("the inner store was called %d times, and the outbox has recorded %d intents", n, w.intents.Load())
				}
				w.mem.Mark("1")
				must(t, m.call(w))
				w.wantOps(0, m.op)
				w.wantNoQueues()
			})
		}
	}
}

// Many mutations share one reading of the marker.
func TestMarkerIsReadOnce(t *testing.T) {
	w := newWorld(t)
	for range 10 {
		_, err := w.put("x")
		must(t, err)
	}
	if n := w.faulty.Count("Marker"); n != 1 {
		t.Errorf("the marker was read %d times, want once", n)
	}
}

// With Config.Unmarked the marker is never read, not even to confirm an absence.
func TestUnmarked(t *testing.T) {
	for method, m := range testMutations() {
		t.Run(method, func(t *testing.T) {
			w, _ := newMutationWorld(t)
			w.mem.Mark("")
			w.s.cfg.Unmarked = true
			must(t, m.call(w))
			w.wantOps(0, m.op)
			w.faulty.Script(storagetest.Fault{Method: "Delete", Applied: true})
			_, err := w.mem.Put(t.Context(), sp, "c", strings.NewReader("c"), storage.PutOptions{Size: 1})
			must(t, err)
			if _, err = w.s.Delete(t.Context(), sp, "c", storage.DeleteOptions{}); !errors.Is(err, storagetest.ErrFault) {
				t.Errorf("got %v, want the store's error", err)
			}
			w.wantOps(0, "DELETE")
			if n := w.faulty.Count("Marker"); n > 0 {
				t.Errorf("the marker was read %d times", n)
			}
		})
	}
}

// If the marker disappears later, absences are not facts: a mutation returns the marker's error, neither
// ErrNotFound nor ErrNoSpace.
func TestMarkerGoesMissing(t *testing.T) {
	const none = "none"
	for name, call := range map[string]func(w *world) error{
		"Put on a version": func(w *world) error {
			_, err := w.put("x", func(o *storage.PutOptions) { o.Version = "7" })
			return err
		},
		"Put into no space": func(w *world) error {
			_, err := w.s.Put(w.t.Context(), none, "a", strings.NewReader("x"), storage.PutOptions{Size: 1})
			return err
		},
		"SetProperties": func(w *world) error {
			_, err := w.s.SetProperties(w.t.Context(), sp, "a", storage.Properties{}, storage.Condition{})
			return err
		},
		"Delete": func(w *world) error {
			_, err := w.s.Delete(w.t.Context(), sp, "a", storage.DeleteOptions{})
			return err
		},
		"Delete that finds nothing any more": func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "Delete", Err: storage.NotApplied(storage.ErrNotFound)})
			_, err := w.s.Delete(w.t.Context(), sp, "b", storage.DeleteOptions{})
			return err
		},
		"Delete that may have found nothing": func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "Delete", Err: storage.ErrNotFound})
			_, err := w.s.Delete(w.t.Context(), sp, "b", storage.DeleteOptions{})
			return err
		},
		"CreateSpace": func(w *world) error { return w.s.CreateSpace(w.t.Context(), storage.Space{Name: none}) },
		"SetSpace":    func(w *world) error { return w.s.SetSpace(w.t.Context(), storage.Space{Name: none}) },
		"DeleteSpace": func(w *world) error { return w.s.DeleteSpace(w.t.Context(), none) },
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newMutationWorld(t)
			must(t, w.putItem("first", "x"))
			w.topic.take()
			w.mem.Mark("")
			err := call(w)
			if !errors.Is(err, storage.ErrNoMarker) || errors.Is(err, storage.ErrNotFound) ||
				errors.Is(err, storage.ErrNoSpace) {
				t.Errorf("got %v, want ErrNoMarker, and no sentinel of an absence", err)
			}
			left := 0
			if name == "Delete that may have found nothing" {
				left = 1 // resolved when the marker is back
			}
			if marked := left == 0; storage.IsNotApplied(err) != marked {
				t.Errorf("got %v, marked %v, want %v", err, !marked, marked)
			}
			w.wantOps(left)
			w.mem.Mark("1")
			must(t, w.s.Flush(t.Context()))
			w.wantOps(0)
		})
	}
}

// A mountPoint shows one store or another.
type mountPoint struct{ storage.Store }

// A mutation is resolved only in its own store: unless the marker is right before and after the
// observation, nothing is published, and the intent stays until the store is back.
func TestMutationIsLookedIntoInItsOwnStore(t *testing.T) {
	for name, tt := range map[string]struct {
		shown string // before, at and after the look: 1 is the store, 2 is another one, 0 is an empty mount point
		want  error
	}{
		"another store":          {"222", storage.ErrWrongMarker},
		"another from the look":  {"122", storage.ErrWrongMarker},
		"another until the look": {"221", storage.ErrWrongMarker},
		"empty":                  {"000", storage.ErrNoMarker},
		"empty from the look":    {"100", storage.ErrNoMarker},
		"empty until the look":   {"001", storage.ErrNoMarker},
	} {
		for method, m := range testMutations() {
			for _, done := range []bool{false, true} {
				if method == "Put" && !done {
					continue // no byte was read, which proves it
				}
				t.Run(fmt.Sprintf("%s %s done %v", name, method, done), func(t *testing.T) {
					testLookAt(t, method, m, done, tt.shown, tt.want)
				})
			}
		}
	}
}

func testLookAt(t *testing.T, method string, m testMutation, done bool, shown string, want error) {
	w, _ := newMutationWorld(t)
	stores := map[byte]storage.Store{'1': w.mem, '2': otherStore(t), '0': emptyStore(t)}
	at := &mountPoint{w.mem}
	w.faulty = storagetest.NewFaulty(at)
	process := func() {
		var err error
		w.s, err = New(w.faulty, w.s.cfg, w.topic)
		must(t, err)
	}
	process()
	look := "Stat"
	if strings.HasSuffix(method, "Space") {
		look = "StatSpace"
	}
	w.faulty.Script(storagetest.Fault{Method: method, Applied: done}, storagetest.Fault{Method: look, Skip: 1})
	if err := m.call(w); !errors.Is(err, storagetest.ErrFault) {
		t.Fatalf("got %v, want the store's error", err)
	}
	w.wantOps(1)
	process()
	looked := false
	w.faulty.Before(func(_ context.Context, c storagetest.Call) error {
		switch {
		case c.Method == look:
			at.Store, looked = stores[shown[1]], true
		case !looked:
			at.Store = stores[shown[0]]
		default:
			at.Store = stores[shown[2]]
		}
		return nil
	})
	if err := w.s.Flush(t.Context()); !errors.Is(err, want) {
		t.Errorf("Flush: got %v, want %v", err, want)
	}
	w.wantOps(1)
	w.faulty.Before(nil)
	at.Store = w.mem
	must(t, w.s.Flush(t.Context()))
	if done {
		w.wantOps(0, m.op)
	} else {
		w.wantOps(0)
	}
	w.wantNoQueues()
}

// otherStore returns another store with the spaces and items of newMutationWorld, in place of store 1.
func otherStore(t *testing.T) *mem.Store {
	m, err := mem.New(mem.Config{ID: "1"})
	must(t, err)
	m.Mark("2")
	must(t, m.CreateSpace(t.Context(), storage.Space{Name: sp, Properties: map[string]string{"k": "v"}}))
	for _, item := range []string{"a", "b"} {
		_, err := m.Put(t.Context(), sp, item, strings.NewReader("bytes of store 2"), storage.PutOptions{
			Size: 16, Properties: storage.Properties{MediaType: "x/y"},
		})
		must(t, err)
	}
	must(t, m.CreateSpace(t.Context(), storage.Space{Name: "s"}))
	must(t, m.CreateSpace(t.Context(), storage.Space{Name: "empty"}))
	return m
}

func emptyStore(t *testing.T) *mem.Store {
	m, err := mem.New(mem.Config{ID: "1"})
	must(t, err)
	return m
}
