package limit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Rates limit the use of a store by one process; zero values mean no limit.
type Rates struct {
	// Concurrency bounds each of these: items being read (from Open to Close), items being written, and other
	// requests (a listing until its first entry). They are counted separately, because a copy reads one item
	// while it writes another: with one count, copies in both directions between two stores could deadlock.
	Concurrency       int
	RequestsPerSecond float64
	BytesPerSecond    float64 // read and written, together
}

// A Throttle limits the rate of one store's callers. When the store asks for fewer requests
// (storage.ErrSlowDown), the request rate is halved, at most once a second; in each second without such an
// answer it grows again, by a twentieth of the original rate. It is safe for concurrent use; the nil
// Throttle limits nothing.
type Throttle struct {
	rates Rates
	log   *slog.Logger
	slots [classes]chan struct{} // nil: no limit

	requests, bytes *bucket
	windowCount     atomic.Int64 // requests since windowStart
	windowEnd       atomic.Int64 // Unix time in ns
	slowDowns       atomic.Int64 // times that the store asked for fewer requests

	mu          sync.Mutex // guards the fields below
	adaptive    adaptiveRate
	windowStart time.Time // of the one-second window
	lastRate    float64   // requests per second in the last complete window
}

// A class is a kind of operation with slots of its own.
type class int

const (
	others class = iota
	reads
	writes
	classes // their number
)

// NewThrottle returns a Throttle for one store. It logs to log, which may be nil, when the store asks for
// fewer requests.
func NewThrottle(r Rates, log *slog.Logger) *Throttle {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := &Throttle{rates: r, log: log, requests: newBucket(r.RequestsPerSecond), bytes: newBucket(r.BytesPerSecond),
		adaptive: adaptiveRate{rate: max(r.RequestsPerSecond, 0)}, windowStart: time.Now()}
	for i := range t.slots {
		if r.Concurrency > 0 {
			t.slots[i] = make(chan struct{}, r.Concurrency)
		}
	}
	return t
}

// allowed returns the current rate in requests per second (0: no limit), and how often the store has asked
// for fewer.
func (t *Throttle) allowed() (perSecond float64, slowed int64) {
	if t == nil {
		return 0, 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.adaptive.rate, t.slowDowns.Load()
}

// acquire waits for the request rate and for a slot, which release gives back. A holder of a slot of reads
// may wait for writes or others, and a holder of one of writes for others, but never the other way round:
// that prevents deadlocks.
func (t *Throttle) acquire(ctx context.Context, c class) error {
	if t == nil {
		return nil
	}
	if err := t.requests.wait(ctx, 1); err != nil {
		return fmt.Errorf("wait for the throttle: %w", err)
	}
	t.windowCount.Add(1)
	if t.slots[c] == nil {
		return nil
	}
	select {
	case t.slots[c] <- struct{}{}:
		return nil
	default:
	}
	select {
	case t.slots[c] <- struct{}{}:
		retry.Alive(ctx)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the throttle: %w", storage.ContextErr(ctx))
	}
}

// release returns a slot.
func (t *Throttle) release(c class) {
	if t != nil && t.slots[c] != nil {
		<-t.slots[c]
	}
}

// waitBytes waits until n bytes, which were received or are about to be sent, fit the byte rate.
func (t *Throttle) waitBytes(ctx context.Context, n int) error {
	if t == nil || n <= 0 {
		return nil
	}
	return t.bytes.wait(ctx, n)
}

// observe adapts the request rate to the result of an operation.
func (t *Throttle) observe(err error) {
	if t == nil {
		return
	}
	slow := errors.Is(err, storage.ErrSlowDown)
	now := time.Now()
	if !slow && now.UnixNano() < t.windowEnd.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := t.lastRate
	if in := now.Sub(t.windowStart); in >= time.Second {
		t.lastRate, t.windowStart = float64(t.windowCount.Swap(0))/in.Seconds(), now
		t.windowEnd.Store(now.Add(time.Second).UnixNano())
		seen = t.lastRate
	} else if in > time.Second/10 {
		seen = max(seen, float64(t.windowCount.Load())/in.Seconds())
	}
	was := t.adaptive
	if slow {
		t.slowDowns.Add(1)
		t.adaptive = was.decrease(now, seen)
	} else {
		t.adaptive = was.increase(now, t.rates.RequestsPerSecond)
	}
	if t.adaptive.rate == was.rate {
		return
	}
	t.requests.set(t.adaptive.rate)
	switch {
	case slow:
		t.log.Warn("lower request rate", "perSecond", t.adaptive.rate, "err", err)
	case !t.adaptive.reduced():
		t.log.Info("restore request rate")
	}
}

// An adaptiveRate is the request rate of a store, as a function of its answers.
type adaptiveRate struct {
	rate      float64   // requests per second; 0: no limit
	peak      float64   // rate before the first decrease; 0: not reduced
	changedAt time.Time // the last decrease or increase
}

func (p adaptiveRate) reduced() bool { return p.peak > 0 }

const (
	minRate        = 1           // per second: a store without requests could not report its recovery
	adjustInterval = time.Second // between two decreases, and between two increases
)

// decrease returns the rate after the store asked for fewer requests; seen is the rate that it got. Answers
// to requests that were in flight at the last decrease do not lower it again.
func (p adaptiveRate) decrease(now time.Time, seen float64) adaptiveRate {
	if p.reduced() && now.Sub(p.changedAt) < adjustInterval {
		return p
	}
	base := max(seen, 2*minRate)
	if p.rate > 0 {
		base = min(base, p.rate)
	}
	if !p.reduced() {
		p.peak = base
	}
	return adaptiveRate{max(base/2, minRate), p.peak, now}
}

// increase returns the rate after a success. It grows up to limit or, without one, to twice the rate that
// was too much; then there is no limit again.
func (p adaptiveRate) increase(now time.Time, limit float64) adaptiveRate {
	if !p.reduced() || now.Sub(p.changedAt) < adjustInterval {
		return p
	}
	p.rate, p.changedAt = p.rate+max(p.peak/20, minRate), now
	switch {
	case limit > 0 && p.rate >= limit:
		return adaptiveRate{rate: limit}
	case limit <= 0 && p.rate >= 2*p.peak:
		return adaptiveRate{}
	}
	return p
}

// burst is how much of a second's rate may be used at once after a pause.
const burst = 100 * time.Millisecond

// A bucket limits a rate: each unit is due when the time of the one before it has passed. Only the caller
// at the head of the queue reserves a time, so callers behind it that give up leave no gap, as they would
// with x/time/rate.Limiter.
type bucket struct {
	rate atomic.Uint64 // per second, as bits of a float64; 0: no limit
	head chan struct{} // capacity 1; full while a caller is at the head
	next time.Time     // when the next unit is due; owned by the caller at the head
}

func newBucket(rate float64) *bucket {
	b := &bucket{head: make(chan struct{}, 1)}
	b.set(rate)
	return b
}

func (b *bucket) set(rate float64) { b.rate.Store(math.Float64bits(max(rate, 0))) }

// wait returns when n units are due. If ctx ends first, they do not count.
func (b *bucket) wait(ctx context.Context, n int) error {
	if b.rate.Load() == 0 {
		return nil
	}
	select {
	case b.head <- struct{}{}:
		defer func() { <-b.head }()
	case <-ctx.Done():
		return storage.ContextErr(ctx)
	}
	if earliest := time.Now().Add(-burst); b.next.Before(earliest) {
		b.next = earliest
	}
	if d := time.Until(b.next); d > 0 {
		if retry.Sleep(ctx, d) != nil {
			return storage.ContextErr(ctx)
		}
	}
	retry.Alive(ctx)
	if rate := math.Float64frombits(b.rate.Load()); rate > 0 {
		b.next = b.next.Add(time.Duration(float64(n) / rate * float64(time.Second)))
	}
	return nil
}
