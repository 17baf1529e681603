package storagetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

func (x *suite) delete(t *testing.T) {
	s := x.store(t)
	_, err := s.Delete(t.Context(), space, "d/a", storage.DeleteOptions{})
	wantErr(t, "Delete of an absent item", err, storage.ErrNotFound)
	put(t, s, "d/a", "a")
	was := has(t, s, "d/a", "a")
	_, err = s.Delete(t.Context(), space, "d/a",
		storage.DeleteOptions{Condition: storage.Condition{Version: "no such version"}})
	wantErr(t, "Delete of another version", err, storage.ErrChanged)
	same(t, "Stat", has(t, s, "d/a", "a"), was)

	d, err := s.Delete(t.Context(), space, "d/a",
		storage.DeleteOptions{Condition: storage.Condition{Version: was.Version}})
	if err != nil {
		t.Fatalf("Delete: %v", err)
	}
	same(t, "Delete", d.Object, was)
	if d.Time.Before(was.Modified) {
		t.Errorf("Delete: got time %v, which is before the item's %v", d.Time, was.Modified)
	}
	ms := time.Millisecond
	if s.Capabilities().TimeResolution <= ms && !d.Time.Truncate(ms).After(was.Modified.Truncate(ms)) {
		t.Errorf("Delete: got time %v, want one later than %v in milliseconds", d.Time, was.Modified)
	}
	lacks(t, s, "d/a")
	_, err = s.Delete(t.Context(), space, "d/a", storage.DeleteOptions{})
	wantErr(t, "Delete twice", err, storage.ErrNotFound)

	again := put(t, s, "d/a", "again", absent)
	if again.Version == was.Version || earlier(s, again.Modified, d.Time) {
		t.Errorf("Put after Delete: got version %q of %v, want one that is not %q, and not before %v",
			again.Version, again.Modified, was.Version, d.Time)
	}
	if again.Properties.MediaType != "" {
		t.Errorf("got properties of the deleted item: %+v", again.Properties)
	}
}

func (x *suite) keep(t *testing.T) {
	s := x.store(t)
	keep := func(o *storage.PutOptions) { o.KeepReplaced = true }
	for _, item := range x.keepable([]string{"a", "../odd//%2F", strings.Repeat("l", 300)}) {
		put(t, s, item, "zero", keep)
		put(t, s, item, "one")
		put(t, s, item, "two", keep)
		two := has(t, s, item, "two")
		_, err := tryPut(t, s, item, "never", keep, version("no such version"))
		wantErr(t, "Put on another version", err, storage.ErrChanged)
		if _, err := s.Delete(t.Context(), space, item,
			storage.DeleteOptions{KeepDeleted: true, Condition: storage.Condition{Version: two.Version}}); err != nil {
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
		t.Errorf("List has kept items: %q", got)
	}
}

const racers = 12

// race runs f concurrently for all racers, half of them on a twin of the store if there is one, and returns
// their errors.
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

// won checks that at least one racer succeeded, exactly one if exact, and that all others failed with one
// of these errors. It returns the winners.
func won(t *testing.T, exact bool, errs []error, lost ...error) (winners []int) {
	t.Helper()
	for i, err := range errs {
		if err == nil {
			if winners = append(winners, i); exact && len(winners) > 1 {
				t.Fatalf("racers %v won", winners)
			}
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
	if len(winners) == 0 {
		t.Fatalf("all racers failed: %v", errs)
	}
	return winners
}

// racerBytes returns bytes that are unique to a racer and a round.
func racerBytes(i, round int) string {
	return strings.Repeat(fmt.Sprintf("racer %02d of %02d ", i, round), 1000*(i+1))
}

// hasOne checks that the item has the bytes of one of the racers.
func hasOne(t *testing.T, s storage.Store, item string, racers []int, round int) storage.Object {
	t.Helper()
	got, _, err := read(t, s, item, "")
	for _, i := range racers {
		if err == nil && got == racerBytes(i, round) {
			return has(t, s, item, got)
		}
	}
	t.Fatalf("got %d bytes %.40q, %v, want those of one of racers %v of round %d", len(got), got, err, racers, round)
	return storage.Object{}
}

func (x *suite) racePut(t *testing.T) {
	s := x.store(t)
	for n := range 5 {
		item := fmt.Sprintf("dir %d/item", n)
		errs := x.race(t, s, func(s storage.Store, i int) error {
			_, err := tryPut(t, s, item, racerBytes(i, n), absent)
			return err
		})
		hasOne(t, s, item, won(t, s.Capabilities().ConditionalPut, errs, storage.ErrExists), n)
	}
}

func (x *suite) raceReplace(t *testing.T) {
	s := x.store(t)
	o := put(t, s, "i", "start")
	for n := range 5 {
		was := o
		errs := x.race(t, s, func(s storage.Store, i int) error {
			_, err := tryPut(t, s, "i", racerBytes(i, n), version(was.Version))
			return err
		})
		o = hasOne(t, s, "i", won(t, s.Capabilities().ConditionalPut, errs, storage.ErrChanged), n)
	}
	errs := x.race(t, s, func(s storage.Store, i int) error {
		_, err := tryPut(t, s, "i", racerBytes(i, 99))
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Errorf("puts without a condition: %v", err)
	}
	hasOne(t, s, "i", won(t, false, errs), 99)
}

func (x *suite) raceDelete(t *testing.T) {
	s := x.store(t)
	c := s.Capabilities()
	for n := range 5 {
		put(t, s, "d/e/i", fmt.Sprint(n))
		o := has(t, s, "d/e/i", fmt.Sprint(n))
		errs := x.race(t, s, func(s storage.Store, i int) error {
			_, err := s.Delete(t.Context(), space, "d/e/i",
				storage.DeleteOptions{Condition: storage.Condition{Version: o.Version}})
			return err
		})
		won(t, c.ConditionalDelete, errs, storage.ErrNotFound)
		lacks(t, s, "d/e/i")
	}
	if !c.ConditionalPut || !c.ConditionalDelete {
		return
	}
	// Of a replacement and a delete on the same version, one succeeds.
	o := put(t, s, "d/i", "x")
	errs := x.race(t, s, func(s storage.Store, i int) (err error) {
		if i%4 < 2 {
			_, err = s.Delete(t.Context(), space, "d/i", storage.DeleteOptions{Condition: storage.Condition{Version: o.Version}})
		} else {
			_, err = tryPut(t, s, "d/i", racerBytes(i, 0), version(o.Version))
		}
		return err
	})
	won(t, true, errs, storage.ErrNotFound, storage.ErrChanged)
}

// raceNeighbours puts and deletes items that may share directories, some as parents of others: none
// disturbs another.
func (x *suite) raceNeighbours(t *testing.T) {
	s := x.store(t)
	items := x.keepable([]string{"a", "a/b", "a/b/c", "a/b/d", "a//", "a/b/c/d"})
	errs := x.race(t, s, func(s storage.Store, i int) error {
		item := items[i%len(items)]
		if i >= len(items) {
			item += fmt.Sprint("/own", i)
		}
		if x.mayRefuse(item, items) {
			item = fmt.Sprint("own", i)
		}
		for n := range 15 {
			_, err := tryPut(t, s, item, racerBytes(n%5, i), absent)
			if storage.IsNotApplied(err) && retry.ClassOf(err) == retry.Transient {
				// MinIO refuses one put in many thousands of this race with 403 AccessDenied.
				_, err = tryPut(t, s, item, racerBytes(n%5, i), absent)
			}
			if err != nil {
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
