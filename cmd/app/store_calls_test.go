package app

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/storage/lazy"
)

// hangingStores answer after a while each, or never, whatever becomes of the context.
type hangingStores struct {
	after map[StoreName]time.Duration // none: at once; negative: never
	ended chan struct{}
	calls atomic.Int32 // of those that do not answer at once
}

func (h *hangingStores) usable(_ context.Context, n StoreName) error {
	d := h.after[n]
	if d == 0 {
		return nil
	}
	h.calls.Add(1)
	if d < 0 {
		<-h.ended
	}
	time.Sleep(d)
	return nil
}

// A store whose calls hang for days delays the answer of no other one, and is asked again ever more rarely, until it
// answers. A call of the settings before, or of a store that was removed, is not waited for.
func TestStoreCallsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []StoreName{{"acme", "a"}, {"acme", "b"}, {"zoo", "a"}}
		h := &hangingStores{after: map[StoreName]time.Duration{names[0]: -1}, ended: make(chan struct{})}
		store := map[StoreName]*lazy.Store{}
		c := storeCalls{usable: h.usable, current: func(n StoreName) *lazy.Store { return store[n] }}
		check := func(of []StoreName, silent bool, calls int32) {
			t.Helper()
			for n, err := range c.ask(t.Context(), of) {
				if want := silent && n == 0; errors.Is(err, errNoAnswer) != want || err != nil && !want {
					t.Errorf("%v answers %v", of[n], err)
				}
			}
			if got := h.calls.Load(); got != calls {
				t.Errorf("%d calls that hang, want %d", got, calls)
			}
		}
		for _, calls := range []int32{1, 2, 2, 3, 3, 3, 3, 4} { // after 0, 10, 30 and 70 minutes
			check(names, true, calls)
			check(names, true, calls)
			time.Sleep(askAgainAfter)
		}
		store[names[0]] = new(lazy.Store)
		check(names, true, 5)
		check(names[1:], false, 5)
		check(names, true, 6) // it was added again
		close(h.ended)
		h.after = nil
		synctest.Wait()
		check(names, false, 6)
	})
}

// The answer to a call that was given up says nothing about the store now: it is asked again.
func TestStoreCallsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := StoreName{"acme", "a"}
		h := &hangingStores{after: map[StoreName]time.Duration{name: storeAnswerTimeout + time.Second}}
		c := storeCalls{usable: h.usable, current: func(StoreName) *lazy.Store { return nil }}
		for n := range int32(3) {
			if err := c.ask(t.Context(), []StoreName{name})[0]; !errors.Is(err, errNoAnswer) || h.calls.Load() != n+1 {
				t.Errorf("got %v after %d calls", err, h.calls.Load())
			}
			time.Sleep(time.Minute)
		}
		h.after = nil
		if err := c.ask(t.Context(), []StoreName{name})[0]; err != nil {
			t.Error(err)
		}
	})
}

// A store that answered while another one was waited for has answered. Before, which of two ready cases a select takes
// decided it.
func TestStoreCallsAnswerAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []StoreName{{"acme", "a"}, {"acme", "b"}}
		h := &hangingStores{after: map[StoreName]time.Duration{names[0]: time.Hour, names[1]: 5 * time.Second}}
		for range 100 {
			c := storeCalls{usable: h.usable, current: func(StoreName) *lazy.Store { return nil }}
			if answers := c.ask(t.Context(), names); answers[0] == nil || answers[1] != nil {
				t.Errorf("got %v", answers)
			}
		}
		time.Sleep(2 * time.Hour)
	})
}
