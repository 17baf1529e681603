package emit

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A store whose marker cannot be read may be another one, or an empty mount point: nothing is written to it, and no intent
// is noted. New asks for nothing.
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
		for method, m := range deeds() {
			t.Run(name+" "+method, func(t *testing.T) {
				w, _ := newDeedWorld(t)
				w.mem.Mark(tt.mark)
				w.faulty.Script(tt.fault...)
				if n := len(w.faulty.Calls()); n > 0 {
					t.Errorf("New made %d calls", n)
				}
				if err := m.call(w); !errors.Is(err, tt.want) || !storage.IsNotApplied(err) {
					t.Errorf("got %v, want %v, marked by NotApplied", err, tt.want)
				}
				if n := w.faulty.Count(method); n > 0 || w.outbox.last > 0 {
					t.Errorf("the inner store was called %d times, and the outbox has noted %d intents", n, w.outbox.last)
				}
				w.mem.Mark("1")
				must(t, m.call(w))
				w.wantOps(0, m.op)
				w.wantNoLanes()
			})
		}
	}
}

// The marker is read once for many mutations.
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

// Once Config.Unmarked says that the store has no marker, none is asked for, not for what is absent either.
func TestUnmarked(t *testing.T) {
	for method, m := range deeds() {
		t.Run(method, func(t *testing.T) {
			w, _ := newDeedWorld(t)
			w.mem.Mark("")
			w.s.cfg.Unmarked = true
			must(t, m.call(w))
			w.wantOps(0, m.op)
			w.faulty.Script(storagetest.Fault{Method: "Delete", Done: true})
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

// A store whose marker goes missing later lacks nothing for certain: what its mutations say of absence is an error, and
// neither ErrNotFound nor ErrNoSpace.
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
			w, _ := newDeedWorld(t)
			must(t, w.putItem("first", "x"))
			w.topic.take()
			w.mem.Mark("")
			err := call(w)
			if !errors.Is(err, storage.ErrNoMarker) || errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrNoSpace) {
				t.Errorf("got %v, want ErrNoMarker, and nothing that says that it is absent", err)
			}
			if marked := name != "Delete that may have found nothing"; storage.IsNotApplied(err) != marked {
				t.Errorf("got %v, marked %v, want %v", err, !marked, marked)
			}
			w.wantOps(0)
		})
	}
}
