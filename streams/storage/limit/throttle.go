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

// Rates are what a store may be asked for by one process; zero values are no limit.
type Rates struct {
	// Concurrency is how many of each may be under way: items that are read (from Open to Close), items that
	// are written, and other requests (a listing until its first entry). They are counted apart, as
	// who copies reads one item while it writes another: were they one number, copies to
	// and fro between two stores could wait for each other for ever.
	Concurrency       int
	RequestsPerSecond float64
	BytesPerSecond    float64 // read and written, together
}

// A Throttle has callers of one store wait for their turn. A store that asks for fewer requests
// (storage.ErrSlowDown) has what it is asked for in a second halved, once a second at most, and from then
// on grow again by a twentieth of what it was in each second without such an answer. It is
// safe for concurrent use; the nil Throttle limits nothing.
type Throttle struct {
	rates Rates
	log   *slog.Logger
	slots [classes]chan struct{} // nil: no limit

	requests, bytes *bucket
	count           atomic.Int64 // requests since the second began
	turns           atomic.Int64 // when the second ends, ns since 1970
	slowed          atomic.Int64 // how often the store asked for fewer

	mu     sync.Mutex // guards what follows
	pace   pace
	began  time.Time // of the second
	before float64   // requests in the last whole second
}

// A class is what slots are counted for.
type class int

const (
	others class = iota
	reads
	writes
	classes // how many there are
)

// NewThrottle returns a Throttle for one store. log, which may be nil, is told when the store asks for fewer requests.
func NewThrottle(r Rates, log *slog.Logger) *Throttle {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := &Throttle{rates: r, log: log, requests: newBucket(r.RequestsPerSecond), bytes: newBucket(r.BytesPerSecond),
		pace: pace{rate: max(r.RequestsPerSecond, 0)}, began: time.Now()}
	for i := range t.slots {
		if r.Concurrency > 0 {
			t.slots[i] = make(chan struct{}, r.Concurrency)
		}
	}
	return t
}

// Allowed returns how many requests the store gets in a second now (0: as many as come), and how
// often it has asked for fewer.
func (t *Throttle) Allowed() (perSecond float64, slowed int64) {
	if t == nil {
		return 0, 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pace.rate, t.slowed.Load()
}

// take waits for a turn, and for a slot, which is given back. Who holds one of reads may wait for
// writes or others, and who holds one of writes for others, but never the other way round.
func (t *Throttle) take(ctx context.Context, c class) error {
	if t == nil {
		return nil
	}
	if err := t.requests.wait(ctx, 1); err != nil {
		return fmt.Errorf("wait for a turn at the store: %w", err)
	}
	t.count.Add(1)
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
		return fmt.Errorf("wait for a turn at the store: %w", storage.Ended(ctx))
	}
}

// give gives a slot back.
func (t *Throttle) give(c class) {
	if t != nil && t.slots[c] != nil {
		<-t.slots[c]
	}
}

// move waits for the turn of n bytes that have come or are about to go.
func (t *Throttle) move(ctx context.Context, n int) error {
	if t == nil || n <= 0 {
		return nil
	}
	return t.bytes.wait(ctx, n)
}

// learn takes in what the store answered.
func (t *Throttle) learn(err error) {
	if t == nil {
		return
	}
	slow := errors.Is(err, storage.ErrSlowDown)
	now := time.Now()
	if !slow && now.UnixNano() < t.turns.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := t.before
	if in := now.Sub(t.began); in >= time.Second {
		t.before, t.began = float64(t.count.Swap(0))/in.Seconds(), now
		t.turns.Store(now.Add(time.Second).UnixNano())
		seen = t.before
	} else if in > time.Second/10 {
		seen = max(seen, float64(t.count.Load())/in.Seconds())
	}
	was := t.pace
	if slow {
		t.slowed.Add(1)
		t.pace = was.slowed(now, seen)
	} else {
		t.pace = was.went(now, t.rates.RequestsPerSecond)
	}
	if t.pace.rate == was.rate {
		return
	}
	t.requests.set(t.pace.rate)
	switch {
	case slow:
		t.log.Warn("store asks for fewer requests: it gets half of them, and more again by and by", "perSecond", t.pace.rate, "err", err)
	case !t.pace.cut():
		t.log.Info("store gets as many requests as before")
	}
}

// A pace is how many requests a store gets in a second, as a function of what it answers.
type pace struct {
	rate    float64   // 0: as many as come
	peak    float64   // what it was when it was cut first; 0: it is not cut
	changed time.Time // when it was cut or grew last
}

func (p pace) cut() bool { return p.peak > 0 }

const (
	minPace  = 1           // request a second: a store that is never asked cannot say that all is well
	paceStep = time.Second // between two cuts, and between two steps of growth
)

// slowed returns the pace when the store has asked for fewer requests, of which it had seen so many in a
// second. Answers to requests that were under way when it was cut do not cut it again.
func (p pace) slowed(now time.Time, seen float64) pace {
	if p.cut() && now.Sub(p.changed) < paceStep {
		return p
	}
	base := max(seen, 2*minPace)
	if p.rate > 0 {
		base = min(base, p.rate)
	}
	if !p.cut() {
		p.peak = base
	}
	return pace{max(base/2, minPace), p.peak, now}
}

// went returns the pace when a request went well. It grows up to the limit that was set or, where none
// was, to twice of what was too much once; from there on there is none again.
func (p pace) went(now time.Time, limit float64) pace {
	if !p.cut() || now.Sub(p.changed) < paceStep {
		return p
	}
	p.rate, p.changed = p.rate+max(p.peak/20, minPace), now
	switch {
	case limit > 0 && p.rate >= limit:
		return pace{rate: limit}
	case limit <= 0 && p.rate >= 2*p.peak:
		return pace{}
	}
	return p
}

// burst is how much may come at once after a pause: the share of a second.
const burst = 100 * time.Millisecond

// A bucket lets so many through in a second: each is due when the one before it has had its time. Only the caller at
// the head of the queue has a time: those behind it that give up leave no gap, which rate.Limiter of x/time keeps.
type bucket struct {
	rate atomic.Uint64 // a second, as bits of a float64; 0: no limit
	turn chan struct{} // of capacity 1, full while a caller is at the head
	next time.Time     // when the next one is due; for the caller at the head
}

func newBucket(rate float64) *bucket {
	b := &bucket{turn: make(chan struct{}, 1)}
	b.set(rate)
	return b
}

func (b *bucket) set(rate float64) { b.rate.Store(math.Float64bits(max(rate, 0))) }

// wait returns when n are due. If ctx ends before, they do not count.
func (b *bucket) wait(ctx context.Context, n int) error {
	if b.rate.Load() == 0 {
		return nil
	}
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return storage.Ended(ctx)
	}
	if earliest := time.Now().Add(-burst); b.next.Before(earliest) {
		b.next = earliest
	}
	if d := time.Until(b.next); d > 0 {
		if retry.Sleep(ctx, d) != nil {
			return storage.Ended(ctx)
		}
	}
	retry.Alive(ctx)
	if rate := math.Float64frombits(b.rate.Load()); rate > 0 {
		b.next = b.next.Add(time.Duration(float64(n) / rate * float64(time.Second)))
	}
	return nil
}
