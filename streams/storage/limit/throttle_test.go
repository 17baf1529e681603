package limit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func TestPace(t *testing.T) {
	t0 := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	after := func(d time.Duration) time.Time { return t0.Add(d) }
	slowed := func(seen float64) func(adaptiveRate, time.Time) adaptiveRate {
		return func(p adaptiveRate, now time.Time) adaptiveRate { return p.decrease(now, seen) }
	}
	went := func(limit float64) func(adaptiveRate, time.Time) adaptiveRate {
		return func(p adaptiveRate, now time.Time) adaptiveRate { return p.increase(now, limit) }
	}
	const s = time.Second
	tests := map[string]struct {
		from adaptiveRate
		on   func(adaptiveRate, time.Time) adaptiveRate
		at   time.Duration
		want adaptiveRate
	}{
		"no limit, slowed: half of the rate seen":   {adaptiveRate{}, slowed(80), 0, adaptiveRate{40, 80, t0}},
		"no limit, slowed, nothing seen: the least": {adaptiveRate{}, slowed(0), 0, adaptiveRate{1, 2, t0}},
		"a limit, slowed: half of it": {adaptiveRate{rate: 100}, slowed(300), 0,
			adaptiveRate{50, 100, t0}},
		"a limit, slowed below it: half of the rate seen": {adaptiveRate{rate: 100}, slowed(20), 0, adaptiveRate{10, 20, t0}},
		"slowed again at once: it was under way": {adaptiveRate{40, 80, t0}, slowed(80), s - 1,
			adaptiveRate{40, 80, t0}},
		"slowed again later: half of that": {adaptiveRate{40, 80, t0}, slowed(40), s,
			adaptiveRate{20, 80, after(s)}},
		"slowed when it is idle too": {adaptiveRate{40, 80, t0}, slowed(4), s,
			adaptiveRate{2, 80, after(s)}},
		"slowed at the least: stays": {adaptiveRate{1, 80, t0}, slowed(1), s,
			adaptiveRate{1, 80, after(s)}},
		"went, no limit":                 {adaptiveRate{}, went(0), s, adaptiveRate{}},
		"went, a limit":                  {adaptiveRate{rate: 100}, went(100), s, adaptiveRate{rate: 100}},
		"went soon after the cut: stays": {adaptiveRate{40, 80, t0}, went(0), s - 1, adaptiveRate{40, 80, t0}},
		"went a second after: a twentieth more": {adaptiveRate{40, 80, t0}, went(0), s,
			adaptiveRate{44, 80, after(s)}},
		"went, of little: one more":       {adaptiveRate{1, 4, t0}, went(0), s, adaptiveRate{2, 4, after(s)}},
		"went up to the limit: as before": {adaptiveRate{96, 80, t0}, went(100), s, adaptiveRate{rate: 100}},
		"went beyond the first cut: carefully": {adaptiveRate{80, 80, t0}, went(0), s,
			adaptiveRate{84, 80, after(s)}},
		"went to twice of that: no limit again": {adaptiveRate{156, 80, t0}, went(0), s, adaptiveRate{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.on(tt.from, after(tt.at)); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// throttled returns a world behind a Throttle.
func throttled(t *testing.T, r Rates) *world {
	w := newWorld(t, Config{Threshold: 1, Open: time.Hour})
	w.Store = New(w.faulty, w.breaker, NewThrottle(r, nil))
	return w
}

// slotsHeld returns the number of slots in use.
func (w *world) slotsHeld() (n int) {
	for _, c := range w.throttle.slots {
		n += len(c)
	}
	return n
}

// The throttled store passes the contract, and every slot is released.
func TestThrottledContract(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store {
		m, err := mem.New(mem.Config{ID: "1"})
		must(t, err)
		th := NewThrottle(Rates{Concurrency: 2, RequestsPerSecond: 1e6, BytesPerSecond: 1e12}, nil)
		t.Cleanup(func() {
			for c, slots := range th.slots {
				if len(slots) > 0 {
					t.Errorf("class %d: %d slots were not given back", c, len(slots))
				}
			}
		})
		return New(keepsNothing{m}, NewBreaker(Config{Threshold: 1, Open: time.Hour}), th)
	})
}

// A keepsNothing store reports that it keeps nothing, so that the suite does not look for kept bytes.
type keepsNothing struct{ storage.Store }

func (b keepsNothing) Capabilities() storage.Capabilities {
	c := b.Store.Capabilities()
	c.KeepsReplaced = false
	return c
}

func TestRequestsPerSecond(t *testing.T) {
	for name, op := range operations() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := throttled(t, Rates{RequestsPerSecond: 10})
				begun := time.Now()
				for range 21 {
					_ = op.call(t.Context(), w) // some work only once; each is a request
				}
				if d := time.Since(begun); d < 1900*time.Millisecond-burst || d > 4*time.Second {
					t.Errorf("21 requests took %v, want about two seconds at 10 a second", d)
				}
			})
		})
	}
}

// Callers that give up leave their turns to others, and no two callers have the same turn.
func TestTurnsOfThoseThatGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := throttled(t, Rates{RequestsPerSecond: 10})
		var callers sync.WaitGroup
		begun := time.Now()
		var mu sync.Mutex
		var made []time.Duration
		call := func(ctx context.Context) {
			callers.Go(func() {
				if _, err := w.Stat(ctx, sp, "a"); err == nil {
					mu.Lock()
					made = append(made, time.Since(begun))
					mu.Unlock()
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1050*time.Millisecond) // between two turns
		defer cancel()
		for range 100 {
			call(ctx)
		}
		synctest.Wait()
		for range 10 {
			call(t.Context()) // stays behind all of them
		}
		<-ctx.Done()
		synctest.Wait()
		for range 10 {
			call(t.Context())
		}
		callers.Wait()
		for i, at := range made {
			if want := time.Duration(i-1) * time.Second / 10; max(at-want, want-at) > burst {
				t.Errorf("request %d was made after %v, want %v", i, at, want)
			}
		}
		if n := len(made); n < 30 || n > 33 {
			t.Errorf("%d requests were made, want about 10 within the first second, and 20", n)
		}
	})
}

func TestBytesPerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := throttled(t, Rates{BytesPerSecond: 1 << 20})
		content := strings.Repeat("x", 3<<20)
		begun := time.Now()
		if _, err := w.Put(t.Context(), sp, "large", strings.NewReader(content), unsized()); err != nil {
			t.Fatal(err)
		}
		put := time.Since(begun)
		r, _, err := w.Open(t.Context(), sp, "large", "")
		must(t, err)
		got, err := io.ReadAll(r)
		r.Close()
		if len(got) != len(content) || err != nil {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
		both := time.Since(begun)
		for what, d := range map[string]time.Duration{"Put": put, "both": both / 2} {
			if math.Abs(d.Seconds()-3) > 1.2 { // the last piece is waited for by the next one
				t.Errorf("%s of 3 MiB took %v at 1 MiB a second", what, d)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = w.Put(ctx, sp, "late", strings.NewReader(content), unsized())
		if state, _, _ := w.breaker.State(); !errors.Is(err, context.DeadlineExceeded) || state != Closed ||
			w.failures() > 0 || w.content("late") != "" {
			t.Errorf("a put that had to wait for too long: got %v, breaker %v", err, state)
		}
	})
}

// Callers that wait for a turn in vain say nothing about the store, and take no turn.
func TestConcurrency(t *testing.T) {
	for name, op := range operations() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := throttled(t, Rates{Concurrency: 2})
				w.faulty.Script(storagetest.Fault{Delay: time.Minute, Times: 2})
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() { _ = op.call(t.Context(), w) }) // of two that do the same one may fail
				}
				synctest.Wait()
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("enough"))
				defer cancel()
				err := op.call(ctx, w)
				state, _, _ := w.breaker.State()
				if err == nil || !strings.Contains(err.Error(), "wait for the throttle") || state != Closed || w.failures() > 0 ||
					len(w.faulty.Calls()) != 2 {
					t.Errorf("the third got %v, breaker %v, calls %v", err, state, w.faulty.Calls())
				}
				wg.Wait()
				if w.slotsHeld() != 0 {
					t.Errorf("%d slots are not released", w.slotsHeld())
				}
			})
		})
	}
}

// Copies in both directions between two stores, each with one slot per class, all end.
func TestCopiesDoNotDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := []*world{throttled(t, Rates{Concurrency: 1}), throttled(t, Rates{Concurrency: 1})}
		for _, w := range stores {
			w.faulty.Script(storagetest.Fault{Delay: time.Millisecond, Times: -1})
		}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				from, to := stores[i%2], stores[(i+1)%2]
				if i%4 == 3 {
					to = from
				}
				r, _, err := from.Open(t.Context(), sp, "a", "")
				if err != nil {
					t.Error(err)
					return
				}
				defer r.Close()
				if _, err := to.Put(t.Context(), sp, fmt.Sprint("copy", i), r, unsized()); err != nil {
					t.Error(err)
				}
				if _, err := from.Stat(t.Context(), sp, "a"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := stores[0].slotsHeld() + stores[1].slotsHeld(); n != 0 {
			t.Errorf("%d slots are not released", n)
		}
	})
}

// A store that asks for fewer requests gets half of them, and then gradually more; its breaker stays
// closed.
func TestSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := throttled(t, Rates{RequestsPerSecond: 100})
		ask := func(n int) error {
			var last error
			for range n {
				_, err := w.Stat(t.Context(), sp, "a")
				last = errors.Join(last, err)
			}
			return last
		}
		must(t, ask(300))
		w.faulty.Script(storagetest.Fault{Method: "Stat", Times: 5, Err: fmt.Errorf("503: %w", storage.ErrSlowDown)})
		if err := ask(5); !errors.Is(err, storage.ErrSlowDown) {
			t.Errorf("got %v, want ErrSlowDown", err)
		}
		if rate, slowed := w.throttle.allowed(); math.Abs(rate-50) > 1 || slowed != 5 {
			t.Errorf("%v requests a second after %d answers, want half of 100 after 5", rate, slowed)
		}
		begun := time.Now()
		if err := ask(60); err != nil || time.Since(begun) < 900*time.Millisecond {
			t.Errorf("60 requests took %v, %v, want more than a second at 50 a second", time.Since(begun), err)
		}
		rate, _ := w.throttle.allowed()
		if rate <= 50 || rate > 60 {
			t.Errorf("%v requests a second, want a little more than 50", rate)
		}
		must(t, ask(2000))
		if rate, _ := w.throttle.allowed(); rate != 100 {
			t.Errorf("%v requests a second at last, want 100", rate)
		}
		if state, _, cause := w.breaker.State(); state != Closed {
			t.Errorf("breaker is %v: %v", state, cause)
		}
	})
}

// A store without a limit that asks for fewer requests gets a temporary limit.
func TestSlowDownWithoutLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := throttled(t, Rates{})
		w.faulty.Script(storagetest.Fault{Method: "Stat", Delay: 10 * time.Millisecond, Times: 200},
			storagetest.Fault{Method: "Stat", Err: storage.ErrSlowDown})
		for range 201 {
			_, _ = w.Stat(t.Context(), sp, "a")
		}
		if rate, _ := w.throttle.allowed(); math.Abs(rate-50) > 3 {
			t.Errorf("%v requests a second, want half of the 100 that it had", rate)
		}
		for range 5000 {
			if _, err := w.Stat(t.Context(), sp, "a"); err != nil {
				t.Fatal(err)
			}
		}
		if rate, _ := w.throttle.allowed(); rate != 0 {
			t.Errorf("%v requests a second at last, want no limit", rate)
		}
	})
}
