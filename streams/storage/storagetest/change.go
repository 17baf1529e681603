package storagetest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/storage"
)

func (x *suite) properties(t *testing.T) {
	s := x.store(t)
	if !s.Capabilities().SetProperties {
		put(t, s, "a", "bytes")
		_, err := s.SetProperties(t.Context(), space, "a", storage.Properties{}, storage.Condition{})
		wantErr(t, "SetProperties", err, storage.ErrUnsupported)
		return
	}
	p := storage.Properties{MediaType: "image/png", User: map[string]string{"a": "1", "b": "ü"}}
	_, err := s.SetProperties(t.Context(), space, "a", p, storage.Condition{})
	wantErr(t, "SetProperties of an absent item", err, storage.ErrNotFound)
	lacks(t, s, "a")

	put(t, s, "a", "bytes", func(o *storage.PutOptions) { o.Properties.User = map[string]string{"old": "gone"} })
	was := has(t, s, "a", "bytes")
	_, err = s.SetProperties(t.Context(), space, "a", p, storage.Condition{Version: "no such version"})
	wantErr(t, "SetProperties on another version", err, storage.ErrChanged)
	same(t, "Stat", has(t, s, "a", "bytes"), was)

	for _, p := range []storage.Properties{p, {}, {MediaType: "text/x"}} {
		got, err := s.SetProperties(t.Context(), space, "a", p, storage.Condition{Version: was.Version})
		if err != nil {
			t.Fatalf("SetProperties: %v", err)
		}
		want := was
		want.Properties = p
		same(t, "SetProperties", got, want)
		same(t, "Stat after SetProperties", has(t, s, "a", "bytes"), want)
	}
	put(t, s, "a", "other")
	if o := has(t, s, "a", "other"); o.Properties.MediaType != "" {
		t.Errorf("Put without properties kept %+v", o.Properties)
	}
}

func (x *suite) delete(t *testing.T) {
	s := x.store(t)
	_, err := s.Delete(t.Context(), space, "d/a", storage.DeleteOptions{})
	wantErr(t, "Delete of an absent item", err, storage.ErrNotFound)
	put(t, s, "d/a", "a")
	was := has(t, s, "d/a", "a")
	_, err = s.Delete(t.Context(), space, "d/a", storage.DeleteOptions{Condition: storage.Condition{Version: "no such version"}})
	wantErr(t, "Delete of another version", err, storage.ErrChanged)
	same(t, "Stat", has(t, s, "d/a", "a"), was)

	d, err := s.Delete(t.Context(), space, "d/a", storage.DeleteOptions{Condition: storage.Condition{Version: was.Version}})
	if err != nil {
		t.Fatalf("Delete: %v", err)
	}
	same(t, "Delete", d.Object, was)
	ms := time.Millisecond
	if s.Capabilities().TimeResolution <= ms && !d.Time.Truncate(ms).After(was.Modified.Truncate(ms)) {
		t.Errorf("Delete: got time %v, want one later than %v in milliseconds", d.Time, was.Modified)
	}
	lacks(t, s, "d/a")
	_, err = s.Delete(t.Context(), space, "d/a", storage.DeleteOptions{})
	wantErr(t, "Delete twice", err, storage.ErrNotFound)

	again := put(t, s, "d/a", "again", absent)
	if again.Version == was.Version || again.Modified.Before(d.Time) {
		t.Errorf("Put after Delete: got version %q of %v, want one that is not %q, and not before %v",
			again.Version, again.Modified, was.Version, d.Time)
	}
	if again.Properties.MediaType != "" {
		t.Errorf("got properties of the deleted item: %+v", again.Properties)
	}
}

func (x *suite) keep(t *testing.T) {
	s := x.store(t)
	if !s.Capabilities().KeepsReplaced || x.kept == nil {
		t.Skip("the store keeps nothing")
	}
	keep := func(o *storage.PutOptions) { o.KeepReplaced = true }
	for _, item := range []string{"a", "../odd//%2F", strings.Repeat("l", 300)} {
		put(t, s, item, "zero", keep)
		put(t, s, item, "one")
		put(t, s, item, "two", keep)
		two := has(t, s, item, "two")
		_, err := tryPut(t, s, item, "never", keep, version("no such version"))
		wantErr(t, "Put on another version", err, storage.ErrChanged)
		if _, err := s.Delete(t.Context(), space, item, storage.DeleteOptions{Keep: true, Condition: storage.Condition{Version: two.Version}}); err != nil {
			t.Fatalf("Delete: %v", err)
		}
		lacks(t, s, item)
		put(t, s, item, "three")
		if _, err := s.Delete(t.Context(), space, item, storage.DeleteOptions{}); err != nil {
			t.Fatalf("Delete: %v", err)
		}
		equalBytes(t, fmt.Sprintf("kept of %q", item), x.kept(t, s, space, item), [][]byte{[]byte("one"), []byte("two")})
	}
	if got := ids(t, s, ""); len(got) != 0 {
		t.Errorf("List has what was kept: %q", got)
	}
}

const racers = 12

// race runs f for many racers at once, half of them at a twin of the store where there
// is one, and returns their errors.
func (x *suite) race(t *testing.T, s storage.Store, f func(s storage.Store, i int) error) []error {
	stores := []storage.Store{s, s}
	if x.twin != nil {
		stores[1] = x.twin(t, s, "")
	}
	errs := make([]error, racers)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range racers {
		wg.Go(func() {
			<-start
			errs[i] = f(stores[i%2], i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// oneWon checks that exactly one racer won and all others lost with one of these errors.
func oneWon(t *testing.T, errs []error, lost ...error) int {
	t.Helper()
	winner := -1
	for i, err := range errs {
		if err == nil {
			if winner >= 0 {
				t.Fatalf("racers %d and %d both won", winner, i)
			}
			winner = i
			continue
		}
		ok := false
		for _, want := range lost {
			ok = ok || errors.Is(err, want)
		}
		if !ok {
			t.Errorf("racer %d: got %v, want one of %v", i, err, lost)
		}
	}
	if winner < 0 {
		t.Fatalf("nobody won: %v", errs)
	}
	return winner
}

func racerBytes(i int) string { return strings.Repeat(fmt.Sprintf("racer %02d ", i), 1000*(i+1)) }

func (x *suite) racePut(t *testing.T) {
	s := x.store(t)
	for n := range 5 {
		item := fmt.Sprintf("dir %d/item", n)
		errs := x.race(t, s, func(s storage.Store, i int) error {
			_, err := tryPut(t, s, item, racerBytes(i), absent)
			return err
		})
		has(t, s, item, racerBytes(oneWon(t, errs, storage.ErrExists)))
	}
}

func (x *suite) raceReplace(t *testing.T) {
	s := x.store(t)
	o := put(t, s, "i", "start")
	for range 5 {
		was := o
		errs := x.race(t, s, func(s storage.Store, i int) error {
			_, err := tryPut(t, s, "i", racerBytes(i), version(was.Version))
			return err
		})
		o = has(t, s, "i", racerBytes(oneWon(t, errs, storage.ErrChanged)))
	}
	errs := x.race(t, s, func(s storage.Store, i int) error {
		_, err := tryPut(t, s, "i", racerBytes(i))
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Errorf("puts without a condition: %v", err)
	}
	got, _, err := read(t, s, "i", "")
	if err != nil || len(got) < 9 || !bytes.Equal([]byte(got), bytes.Repeat([]byte(got[:9]), len(got)/9)) {
		t.Errorf("got %d bytes, %v, want those of one racer", len(got), err)
	}
}

func (x *suite) raceDelete(t *testing.T) {
	s := x.store(t)
	for range 5 {
		put(t, s, "d/e/i", "x")
		o := has(t, s, "d/e/i", "x")
		errs := x.race(t, s, func(s storage.Store, i int) error {
			_, err := s.Delete(t.Context(), space, "d/e/i", storage.DeleteOptions{Condition: storage.Condition{Version: o.Version}})
			return err
		})
		oneWon(t, errs, storage.ErrNotFound)
		lacks(t, s, "d/e/i")
	}
	// A replacement and a delete on the same version: one of them.
	o := put(t, s, "d/i", "x")
	errs := x.race(t, s, func(s storage.Store, i int) (err error) {
		if i%4 < 2 {
			_, err = s.Delete(t.Context(), space, "d/i", storage.DeleteOptions{Condition: storage.Condition{Version: o.Version}})
		} else {
			_, err = tryPut(t, s, "d/i", racerBytes(i), version(o.Version))
		}
		return err
	})
	oneWon(t, errs, storage.ErrNotFound, storage.ErrChanged)
}

// raceNeighbours puts and deletes items that share directories, where a store has such,
// and are each other's parents: nobody is in anybody's way.
func (x *suite) raceNeighbours(t *testing.T) {
	s := x.store(t)
	items := []string{"a", "a/b", "a/b/c", "a/b/d", "a//", "a/b/c/d"}
	errs := x.race(t, s, func(s storage.Store, i int) error {
		item := items[i%len(items)]
		if i >= len(items) {
			item += fmt.Sprint("/own", i)
		}
		for n := range 15 {
			if _, err := tryPut(t, s, item, racerBytes(n), absent); err != nil {
				return fmt.Errorf("put %q: %w", item, err)
			}
			if _, err := s.Stat(t.Context(), space, item); err != nil {
				return err
			}
			if _, err := s.Delete(t.Context(), space, item, storage.DeleteOptions{}); err != nil {
				return fmt.Errorf("delete %q: %w", item, err)
			}
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if err := s.DeleteSpace(t.Context(), space); err != nil {
		t.Errorf("DeleteSpace after all items were deleted: %v", err)
	}
}
