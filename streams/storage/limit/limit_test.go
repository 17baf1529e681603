package limit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

const sp = "photos"

// A world is a store with an item "a" with the bytes "old", and an empty space "empty".
type world struct {
	*Store
	t       *testing.T
	breaker *Breaker
	mem     *mem.Store
	faulty  *storagetest.Faulty
}

func newWorld(t *testing.T, cfg Config) *world {
	t.Helper()
	m, err := mem.New(mem.Config{ID: "1"})
	must(t, err)
	m.Mark("1")
	for _, name := range []string{sp, "empty"} {
		must(t, m.CreateSpace(t.Context(), storage.Space{Name: name}))
	}
	w := &world{t: t, mem: m, faulty: storagetest.NewFaulty(m), breaker: NewBreaker(cfg)}
	w.Store = New(w.faulty, w.breaker, nil)
	if _, err := m.Put(t.Context(), sp, "a", strings.NewReader("old"), unsized()); err != nil {
		t.Fatal(err)
	}
	return w
}

func unsized() storage.PutOptions { return storage.PutOptions{Size: storage.UnknownSize} }

// failures returns the number of counted failures.
func (w *world) failures() int {
	w.breaker.mu.Lock()
	defer w.breaker.mu.Unlock()
	return w.breaker.machine.failures + w.breaker.machine.hangs
}

// content reads an item from the innermost store; "" if it is absent.
func (w *world) content(item string) string {
	w.t.Helper()
	r, _, err := w.mem.Open(context.Background(), sp, item, "")
	if errors.Is(err, storage.ErrNotFound) {
		return ""
	}
	must(w.t, err)
	b, err := io.ReadAll(r)
	must(w.t, err)
	return string(b)
}

// The decorated store passes the contract. None of the contract's errors counts as a failure of the store:
// the first one would open the breaker.
func TestContract(t *testing.T) {
	inner := map[storage.Store]*mem.Store{}
	storagetest.Run(t, func(t *testing.T) storage.Store {
		m, err := mem.New(mem.Config{ID: "1"})
		must(t, err)
		b := NewBreaker(Config{Threshold: 1, Open: time.Hour})
		t.Cleanup(func() {
			if s, _, cause := b.State(); s != Closed {
				t.Errorf("breaker is %v: %v", s, cause)
			}
		})
		s := New(m, b, nil)
		inner[s] = m
		return s
	}, storagetest.WithKept(func(t *testing.T, s storage.Store, space, item string) (all [][]byte) {
		for _, k := range inner[s].AllKept() {
			if k.Space == space && k.Object.Item == item {
				all = append(all, k.Bytes)
			}
		}
		return all
	}))
}

// The decorator passes on the NotApplied marks of the inner store.
func TestMarks(t *testing.T) {
	storagetest.RunMarks(t, func(t *testing.T) (storage.Store, *storagetest.Faulty) {
		m, err := mem.New(mem.Config{ID: "1"})
		must(t, err)
		inner := storagetest.NewFaulty(m)
		return New(inner, NewBreaker(Config{}), nil), inner
	})
}

// operations returns a call of each method that uses the store. did reports whether the mutation was made.
func operations() map[string]struct {
	call func(ctx context.Context, s storage.Store) error
	did  func(w *world) bool
} {
	type operation = struct {
		call func(ctx context.Context, s storage.Store) error
		did  func(w *world) bool
	}
	hasSpace := func(w *world, name string) bool {
		_, err := w.mem.StatSpace(context.Background(), name)
		return err == nil
	}
	return map[string]operation{
		"Spaces": {call: func(ctx context.Context, s storage.Store) error { return drain(s.Spaces(ctx)) }},
		"List":   {call: func(ctx context.Context, s storage.Store) error { return drain(s.List(ctx, sp, "")) }},
		"Marker": {call: func(ctx context.Context, s storage.Store) error { return s.Marker(ctx) }},
		"Stat":   {call: func(ctx context.Context, s storage.Store) error { _, err := s.Stat(ctx, sp, "a"); return err }},
		"StatSpace": {call: func(ctx context.Context, s storage.Store) error {
			_, err := s.StatSpace(ctx, sp)
			return err
		}},
		"Open": {call: func(ctx context.Context, s storage.Store) error {
			r, _, err := s.Open(ctx, sp, "a", "")
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, r)
			return errors.Join(err, r.Close())
		}},
		"CreateSpace": {
			func(ctx context.Context, s storage.Store) error {
				return s.CreateSpace(ctx, storage.Space{Name: "new"})
			},
			func(w *world) bool { return hasSpace(w, "new") },
		},
		"SetSpace": {
			func(ctx context.Context, s storage.Store) error {
				return s.SetSpace(ctx, storage.Space{Name: sp, Properties: map[string]string{"k": "v"}})
			},
			func(w *world) bool {
				o, _ := w.mem.StatSpace(context.Background(), sp)
				return o.Properties["k"] == "v"
			},
		},
		"DeleteSpace": {
			func(ctx context.Context, s storage.Store) error { return s.DeleteSpace(ctx, "empty") },
			func(w *world) bool { return !hasSpace(w, "empty") },
		},
		"Put": {
			func(ctx context.Context, s storage.Store) error {
				_, err := s.Put(ctx, sp, "a", strings.NewReader("new"), unsized())
				return err
			},
			func(w *world) bool { return w.content("a") == "new" },
		},
		"SetProperties": {
			func(ctx context.Context, s storage.Store) error {
				_, err := s.SetProperties(ctx, sp, "a", storage.Properties{MediaType: "x/y"}, storage.Condition{})
				return err
			},
			func(w *world) bool {
				o, _ := w.mem.Stat(context.Background(), sp, "a")
				return o.Properties.MediaType == "x/y"
			},
		},
		"Delete": {
			func(ctx context.Context, s storage.Store) error {
				_, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
				return err
			},
			func(w *world) bool { return w.content("a") == "" },
		},
		"WriteMarker": {
			func(ctx context.Context, s storage.Store) error { return s.WriteMarker(ctx) },
			func(w *world) bool { return w.mem.Marker(context.Background()) == nil },
		},
	}
}

func drain[T any](seq func(func(T, error) bool)) error {
	for _, err := range seq {
		if err != nil {
			return err
		}
	}
	return nil
}

// Each operation fails and was not applied, or fails but was applied. In both cases the caller gets the
// store's own error, the failure counts, and the store's content is as it says. Then the breaker opens, and
// nothing reaches the store.
func TestTwins(t *testing.T) {
	ops := operations()
	if got, want := reflect.TypeFor[storage.Store]().NumMethod(), len(ops)+1; got != want { // and Capabilities
		t.Fatalf("the interface has %d methods, and %d are known here", got, want)
	}
	for method, op := range ops {
		for _, done := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s done %v", method, done), func(t *testing.T) {
				ctx := t.Context()
				w := newWorld(t, Config{Threshold: 2})
				if method == "WriteMarker" {
					w.mem.Mark("")
				}
				x := storagetest.Fault{Method: method, Applied: done}
				w.faulty.Script(x)
				if err := op.call(ctx, w); !errors.Is(err, storagetest.ErrFault) {
					t.Fatalf("got %v, want the store's error", err)
				}
				if got := w.failures(); got != 1 {
					t.Errorf("got %d failures, want 1", got)
				}
				if op.did != nil && op.did(w) != done {
					t.Errorf("done: got %v, want %v", !done, done)
				}
				w.faulty.Script(storagetest.Fault{Method: "Stat"})
				if _, err := w.Stat(ctx, sp, "b"); !errors.Is(err, storagetest.ErrFault) {
					t.Fatalf("got %v, want the store's error", err)
				}
				wantState(t, w.breaker, Open)
				calls := len(w.faulty.Calls())
				for other, op := range operations() {
					err := op.call(ctx, w)
					if !errors.Is(err, ErrOpen) || retry.ClassOf(err) != retry.ClassUnavailable {
						t.Errorf("%s while the store is unavailable: got %v", other, err)
					}
					if mutates := op.did != nil && other != "WriteMarker"; storage.IsNotApplied(err) != mutates {
						t.Errorf("%s while the store is unavailable: marked by NotApplied %v, want %v", other, !mutates, mutates)
					}
				}
				if got := len(w.faulty.Calls()); got != calls {
					t.Errorf("%d calls reached the store", got-calls)
				}
				if got, want := w.Capabilities(), w.mem.Capabilities(); !reflect.DeepEqual(got, want) {
					t.Errorf("Capabilities: got %+v, want %+v", got, want)
				}
			})
		}
	}
}

// An error of class unavailable opens the breaker at once, and every operation can be the probe that closes
// it, or not.
func TestEveryProbe(t *testing.T) {
	for method, op := range operations() {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				w := newWorld(t, Config{Account: "acme", Store: "tape"})
				w.faulty.Script(storagetest.Fault{Method: method, Times: 2, Err: retry.Unavailable(errDown)})
				for range 2 {
					if err := op.call(ctx, w); !errors.Is(err, errDown) || retry.CauseOf(err) != schemas.Key("acme", "tape") {
						t.Fatalf("got %v of %q, want the store's error, which names it", err, retry.CauseOf(err))
					}
					if err := op.call(ctx, w); !errors.Is(err, ErrOpen) || retry.CauseOf(err) != schemas.Key("acme", "tape") {
						t.Fatalf("got %v of %q, want a refusal, which names the store", err, retry.CauseOf(err))
					}
					wantState(t, w.breaker, Open)
					time.Sleep(time.Until(until(t, w.breaker)))
				}
				if err := op.call(ctx, w); err != nil {
					t.Fatalf("store is back: got %v", err)
				}
				wantState(t, w.breaker, Closed)
			})
		})
	}
}

// No error of a refused operation can be mistaken for an answer of the store.
func TestRefusalIsNoFact(t *testing.T) {
	b := NewBreaker(Config{})
	use(t.Context(), b, retry.Unavailable(fmt.Errorf("%w: %w", storage.ErrNoMarker, context.Canceled)))
	err := b.Admit()
	if !errors.Is(err, ErrOpen) || isAnswer(err) || errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want ErrOpen and nothing else", err)
	}
}

// fail makes one failing call.
func (w *world) fail() {
	w.t.Helper()
	w.faulty.Script(storagetest.Fault{Method: "Stat"})
	if _, err := w.Stat(w.t.Context(), sp, "a"); !errors.Is(err, storagetest.ErrFault) {
		w.t.Fatalf("got %v, want a fault", err)
	}
}

// A source fails while it is copied: its breaker opens. The breaker of the target does not, and the target
// stores nothing.
func TestOneStoreUnavailable(t *testing.T) {
	ctx := t.Context()
	source, destination := newWorld(t, Config{Threshold: 1}), newWorld(t, Config{Threshold: 1})
	source.faulty.Script(storagetest.Fault{Method: "Open", Mid: true, After: 1, Err: errDown})
	r, _, err := source.Open(ctx, sp, "a", "")
	must(t, err)
	if _, err := destination.Put(ctx, sp, "copy", r, unsized()); !errors.Is(err, errDown) {
		t.Errorf("copy: got %v, want the source's error", err)
	}
	r.Close()
	wantState(t, source.breaker, Open)
	wantState(t, destination.breaker, Closed)
	for method, op := range operations() {
		if err := op.call(ctx, source); !errors.Is(err, ErrOpen) {
			t.Errorf("%s of the unavailable one: got %v", method, err)
		}
	}
	if _, err := destination.Put(ctx, sp, "copy", strings.NewReader("x"), unsized()); err != nil {
		t.Errorf("Put to the other: %v", err)
	}
	if got := destination.content("copy"); got != "x" {
		t.Errorf("the other holds %q", got)
	}
}

// Many callers use a store that becomes unavailable and comes back. While the breaker is half-open, at most
// one of them is in the store, and all of them succeed in the end.
func TestManyUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const users = 50
		ctx := t.Context()
		w := newWorld(t, Config{})
		var mu sync.Mutex
		var gone, most, inside, probes int // guarded by mu
		gone = 1
		w.faulty.Before(func(context.Context, storagetest.Call) error {
			mu.Lock()
			s, _, _ := w.breaker.State()
			if s == HalfOpen {
				probes++
				inside++
				most = max(most, inside)
			}
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if s == HalfOpen {
				inside--
			}
			if gone > 0 {
				return errDown
			}
			return nil
		})
		var g sync.WaitGroup
		var refused int // guarded by mu
		for range users {
			g.Go(func() {
				for {
					err := w.Marker(ctx)
					if err == nil {
						return
					}
					mu.Lock()
					if errors.Is(err, ErrOpen) {
						refused++
					}
					mu.Unlock()
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		time.Sleep(time.Minute)
		mu.Lock()
		gone = 0
		if calls := w.faulty.Count("Marker"); calls > users+15 || probes < 3 || probes > 13 {
			t.Errorf("in a minute: %d calls and %d probes, want the first %d and a few", calls, probes, users)
		}
		mu.Unlock()
		g.Wait()
		wantState(t, w.breaker, Closed)
		if most != 1 || refused == 0 {
			t.Errorf("got %d probes at a time and %d refusals, want 1 and some", most, refused)
		}
	})
}

// Locate is admitted by the breaker, and its error counts as the store's.
func TestLocate(t *testing.T) {
	w := newWorld(t, Config{Threshold: 1, Open: time.Hour})
	ref := storage.Ref{Space: sp, Item: "a", Version: "7"}
	s := New(locatedStore{w.mem, nil}, w.breaker, nil)
	if at, err := storage.Locate(t.Context(), s, ref); err != nil || at.Handle != ref {
		t.Errorf("got %+v, %v", at, err)
	}
	if _, err := storage.Locate(t.Context(), w, ref); !errors.Is(err, storage.ErrUnsupported) || w.failures() != 0 {
		t.Errorf("a store without places: got %v, %d failures", err, w.failures())
	}
	s = New(locatedStore{w.mem, retry.Unavailable(errors.New("unavailable"))}, w.breaker, nil)
	for range 2 {
		if _, err := storage.Locate(t.Context(), s, ref); err == nil {
			t.Error("got no error")
		}
	}
	if state, _, _ := w.breaker.State(); state != Open {
		t.Errorf("breaker is %v, want open", state)
	}
}

// A locatedStore returns a place that holds the Ref it was asked for, or fails.
type locatedStore struct {
	storage.Store
	err error
}

func (l locatedStore) Locate(_ context.Context, ref storage.Ref) (storage.Location, error) {
	return storage.Location{Handle: ref, Close: func() error { return nil }}, l.err
}

// must fails the test with an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
