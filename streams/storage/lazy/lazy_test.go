package lazy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A store with its marker passes the contract; one without accepts a marker.
func TestContract(t *testing.T) {
	inner := map[storage.Store]*mem.Store{}
	fresh := func(t *testing.T) storage.Store {
		d, err := mem.New(mem.Config{ID: "1"})
		must(t, err)
		m := New("mem", func(context.Context) (storage.Store, error) { return d, nil })
		inner[m] = d
		return m
	}
	t.Run("fresh", func(t *testing.T) { storagetest.Run(t, fresh, storagetest.Only("Marker")) })
	t.Run("marked", func(t *testing.T) {
		storagetest.Run(t, func(t *testing.T) storage.Store {
			m := fresh(t)
			must(t, errors.Join(m.WriteMarker(t.Context()), m.Marker(t.Context())))
			return m
		}, storagetest.WithKept(func(_ *testing.T, s storage.Store, space, item string) (all [][]byte) {
			for _, k := range inner[s].AllKept() {
				if k.Space == space && k.Object.Item == item {
					all = append(all, k.Bytes)
				}
			}
			return all
		}), storagetest.Except("Marker"))
	})
}

// A lazy store keeps the NotApplied marks of errors.
func TestPassesNotApplied(t *testing.T) {
	storagetest.RunMarks(t, func(t *testing.T) (storage.Store, *storagetest.Faulty) {
		d, err := mem.New(mem.Config{ID: "1"})
		must(t, err)
		d.Mark("1")
		inner := storagetest.NewFaulty(d)
		return New("mem", func(context.Context) (storage.Store, error) { return inner, nil }), inner
	})
}

// mutations are the methods that change items or spaces.
var mutations = []string{"Put", "SetProperties", "Delete", "CreateSpace", "SetSpace", "DeleteSpace"}

// A lazy store passes on Locate, which server-side copies need.
func TestLocates(t *testing.T) {
	d, err := mem.New(mem.Config{ID: "1"})
	must(t, err)
	d.Mark("1")
	m := New("mem", func(context.Context) (storage.Store, error) { return located{d}, nil })
	ref := storage.Ref{Space: "photos", Item: "a", Version: "7"}
	if at, err := storage.Locate(t.Context(), m, ref); err != nil || at.Handle != ref {
		t.Errorf("got %+v, %v", at, err)
	}
}

// A located store implements storage.Locator; its locations are the refs.
type located struct{ storage.Store }

func (located) Locate(_ context.Context, ref storage.Ref) (storage.Location, error) {
	return storage.Location{Handle: ref, Close: func() error { return nil }}, nil
}

// A caller whose context ends while the root hangs gets its own cause, not that of another call.
func TestContextEnds(t *testing.T) {
	hangs := make(chan struct{})
	defer close(hangs)
	m := New("mem", func(context.Context) (storage.Store, error) {
		<-hangs
		return nil, os.ErrNotExist
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(storagetest.OtherCall())
	for call, err := range calls(ctx, m) {
		if !errors.Is(err, context.Canceled) || errors.Is(err, storage.ErrNotFound) ||
			retry.ClassOf(err) != retry.ClassUnavailable ||
			storage.IsNotApplied(err) != slices.Contains(mutations, call) {
			t.Errorf("%s: got %v, want the end of the context", call, err)
		}
	}
}

// calls are all methods of a store except the marker's.
func calls(ctx context.Context, s storage.Store) map[string]error {
	errs := map[string]error{}
	for _, err := range s.Spaces(ctx) {
		errs["Spaces"] = err
	}
	for _, err := range s.List(ctx, "photos", "") {
		errs["List"] = err
	}
	_, errs["StatSpace"] = s.StatSpace(ctx, "photos")
	errs["CreateSpace"] = s.CreateSpace(ctx, storage.Space{Name: "photos"})
	errs["SetSpace"] = s.SetSpace(ctx, storage.Space{Name: "photos"})
	errs["DeleteSpace"] = s.DeleteSpace(ctx, "photos")
	_, errs["Stat"] = s.Stat(ctx, "photos", "a")
	_, _, errs["Open"] = s.Open(ctx, "photos", "a", "")
	_, errs["Put"] = s.Put(ctx, "photos", "a", strings.NewReader("x"), storage.PutOptions{Size: 1})
	_, errs["SetProperties"] = s.SetProperties(ctx, "photos", "a", storage.Properties{}, storage.Condition{})
	_, errs["Delete"] = s.Delete(ctx, "photos", "a", storage.DeleteOptions{})
	return errs
}

// If the root is missing, not mounted or another store's, nothing is read or written until the
// store is available.
func TestUnavailable(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(t *testing.T, root string)
		mend func(t *testing.T, root string)
		want error
	}{
		"no root": {func(*testing.T, string) {}, func(*testing.T, string) {}, os.ErrNotExist},
		"an empty root": {func(t *testing.T, root string) {
			must(t, os.Mkdir(root, 0o755))
		}, func(t *testing.T, root string) {
			if err := os.Remove(root); err != nil { // nothing was written into it
				t.Fatal(err)
			}
		}, storage.ErrNoMarker},
		"another store's root": {func(t *testing.T, root string) { marked(t, "2", root) }, func(t *testing.T, root string) {
			must(t, os.Rename(root, root+".other"))
		}, storage.ErrWrongMarker},
	} {
		t.Run(name, func(t *testing.T) {
			root, ctx := filepath.Join(t.TempDir(), "root"), t.Context()
			tt.make(t, root)
			m := New("file", func(context.Context) (storage.Store, error) { return file.Open(file.Config{ID: "1", Root: root}) })
			errs := calls(ctx, m)
			errs["Marker"] = m.Marker(ctx)
			if len(errs) != 12 {
				t.Errorf("asked %d ways", len(errs))
			}
			for call, err := range errs {
				if retry.ClassOf(err) != retry.ClassUnavailable || !errors.Is(err, tt.want) {
					t.Errorf("%s: got %v, want %v of class unavailable", call, err, tt.want)
				}
				if mutates := slices.Contains(mutations, call); storage.IsNotApplied(err) != mutates {
					t.Errorf("%s: marked by NotApplied %v, want %v", call, !mutates, mutates)
				}
			}
			if got := m.Capabilities().Kind; got != "file" {
				t.Errorf("kind %q", got)
			}
			tt.mend(t, root)
			marked(t, "1", root)
			if err := calls(ctx, m)["Stat"]; !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrNoSpace) {
				t.Errorf("when it is there: got %v, want an answer", err)
			}
			if !m.Capabilities().ConditionalPut {
				t.Error("its capabilities are not the driver's")
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// marked writes a store's marker to root.
func marked(t *testing.T, id, root string) {
	t.Helper()
	f, err := file.Open(file.Config{ID: id, Root: root, Create: true})
	must(t, err)
	must(t, errors.Join(f.WriteMarker(t.Context()), f.Close()))
}

// Callers of a hanging root wait no longer than their contexts. There is one probe at a time, and
// the store is used when it answers.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := mem.New(mem.Config{ID: "1"})
		must(t, err)
		inner.Mark("1")
		opened, answer := 0, make(chan struct{})
		m := New("mem", func(context.Context) (storage.Store, error) {
			opened++
			<-answer
			return inner, nil
		})
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			begun := time.Now()
			_, err := m.Stat(ctx, "photos", "a")
			cancel()
			if retry.ClassOf(err) != retry.ClassUnavailable || !errors.Is(err, context.DeadlineExceeded) ||
				time.Since(begun) != time.Second {
				t.Errorf("after %v: got %v, want that time is up", time.Since(begun), err)
			}
		}
		if err := m.Close(); err != nil { // waits for nothing
			t.Error(err)
		}
		close(answer)
		synctest.Wait()
		if _, err := m.Stat(t.Context(), "photos", "a"); !errors.Is(err, storage.ErrNoSpace) {
			t.Errorf("got %v, want an answer", err)
		}
		if opened != 1 {
			t.Errorf("opened %d times", opened)
		}
	})
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
