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

	"golang.org/x/time/rate"

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

	requests, bytes *rate.Limiter
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
	t := &Throttle{rates: r, log: log, requests: rate.NewLimiter(rate.Inf, 1), bytes: rate.NewLimiter(rate.Inf, 1),
		pace: pace{rate: max(r.RequestsPerSecond, 0)}, began: time.Now()}
	for i := range t.slots {
		if r.Concurrency > 0 {
			t.slots[i] = make(chan struct{}, r.Concurrency)
		}
	}
	setRate(t.requests, t.pace.rate)
	setRate(t.bytes, r.BytesPerSecond)
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
	if err := wait(ctx, t.requests, 1); err != nil {
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
		return fmt.Errorf("wait for a turn at the store: %w", context.Cause(ctx))
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
	return wait(ctx, t.bytes, n)
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
	setRate(t.requests, t.pace.rate)
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

// setRate has so many a second pass; 0: no limit.
func setRate(l *rate.Limiter, perSecond float64) {
	if perSecond <= 0 {
		l.SetLimit(rate.Inf)
		return
	}
	l.SetBurst(max(1, int(perSecond*burst.Seconds())))
	l.SetLimit(rate.Limit(perSecond))
}

// wait returns when n are due. If ctx ends before, those that are left do not count.
func wait(ctx context.Context, l *rate.Limiter, n int) error {
	for n > 0 && l.Limit() != rate.Inf {
		some := min(n, l.Burst())
		due := l.ReserveN(time.Now(), some)
		if !due.OK() { // the burst has become smaller
			continue
		}
		if d := due.Delay(); d > 0 {
			if end, ok := ctx.Deadline(); ok && time.Until(end) <= d { // it is too late when they are due
				d = math.MaxInt64
			}
			if err := retry.Sleep(ctx, d); err != nil {
				due.Cancel()
				return err
			}
			retry.Alive(ctx)
		}
		n -= some
	}
	return nil
}
