package limit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// ErrOpen is wrapped by the error of an operation that was refused because its store is unavailable.
var ErrOpen = errors.New("store is unavailable")

// An OpenError names the unavailable store and the reason. It wraps ErrOpen but not the first error, which
// is no fact about the refused operation.
type OpenError struct {
	Account, Store string
	Cause          error     // the error that opened the breaker, or the first of those counted
	Since, Until   time.Time // Until: when the next probe is due
}

// Error returns the same text for as long as the store is unavailable, so that the history of a message has
// one entry.
func (e *OpenError) Error() string {
	since := e.Since.UTC().Format(time.RFC3339)
	return fmt.Sprintf("%v: %s/%s since %s; first error: %v", ErrOpen, e.Account, e.Store, since, e.Cause)
}

// Unwrap returns ErrOpen.
func (e *OpenError) Unwrap() error { return ErrOpen }

// Config configures a Breaker. Defaults are in brackets.
type Config struct {
	Account, Store string // of the store
	// Threshold is the number of failures without a success between them that open the breaker [5]; hung
	// streams are counted in the same way, apart. One error of class unavailable opens it at once.
	Threshold int
	// Open is the first interval without probes [5s]; it doubles with each failed probe up to maxOpen [10s],
	// and is shortened at random by up to a half.
	Open, maxOpen time.Duration
	// lease is how long a probe excludes others [10s]; a caller that was admitted but does not begin excludes
	// them for a tenth of that. streamLease is the lease of a stream if hung streams opened the breaker [5m].
	lease, streamLease time.Duration
	Log                *slog.Logger // [none]
}

// A Breaker tracks whether one store is available. It is safe for concurrent use.
type Breaker struct {
	cfg Config
	log *slog.Logger

	// The fast path of an operation reads these without mu; they are written under it.
	epoch   atomic.Uint64 // the current epoch
	failing atomic.Bool   // failures are being counted
	hanging atomic.Bool   // hung streams are being counted

	opened chan struct{} // has an element if the breaker opened since the last receive

	mu      sync.Mutex // guards the fields below
	machine machine
	// since is when the breaker last closed or, if it is not closed, when it opened.
	since    time.Time
	firstErr error // first of the counted failures, or the error that opened it
	// refused counts operations and admissions refused since it opened.
	refused int
	until   time.Time
	probe   probe
	entered [Open + 1]int64 // how often it entered each state
}

// An epoch identifies the period in which an operation was admitted: it grows with each change of state,
// and its lowest bit is set if the breaker was closed. Results from an earlier epoch are ignored.
type epoch uint64

func (p epoch) closed() bool { return p&1 == 1 }

// A probe is the operation that may use a half-open store.
type probe struct {
	until time.Time
	// admitted: reserved by Admit; the next operation takes it.
	admitted bool
}

// NewBreaker returns a closed Breaker.
func NewBreaker(cfg Config) *Breaker {
	orElse(&cfg.Threshold, 5)
	orElse(&cfg.Open, 5*time.Second)
	orElse(&cfg.maxOpen, 10*time.Second)
	orElse(&cfg.lease, 10*time.Second)
	orElse(&cfg.streamLease, 5*time.Minute)
	cfg.maxOpen = max(cfg.maxOpen, cfg.Open)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Breaker{
		cfg: cfg, log: cfg.Log.With("account", cfg.Account, "store", cfg.Store), since: time.Now(),
		opened: make(chan struct{}, 1),
	}
	b.epoch.Store(1)
	return b
}

func orElse[T int | time.Duration](v *T, other T) {
	if *v <= 0 {
		*v = other
	}
}

// State returns the state, the time since when the store is available or unavailable, and the first failure
// if it is unavailable.
func (b *Breaker) State() (s State, since time.Time, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.state != Closed {
		cause = b.firstErr
	}
	return b.machine.state, b.since, cause
}

func (b *Breaker) state() State {
	s, _, _ := b.State()
	return s
}

// counts returns the state, and how often the breaker entered each state.
func (b *Breaker) counts() (s State, entered [Open + 1]int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.machine.state, b.entered
}

// Admit returns nil if an operation would be admitted now, and otherwise its error. While the store is
// half-open, one caller at a time gets nil and its next operation is the probe; if it starts none, the
// reservation expires.
func (b *Breaker) Admit() error {
	if epoch(b.epoch.Load()).closed() {
		return nil
	}
	_, err := b.acquireSlow(admission)
	return err
}

// A kind is a kind of use of a store.
type kind int

const (
	operation kind = iota
	stream         // an operation that transfers bytes, and may take long
	admission      // a call of Admit
)

// begin admits an operation, or returns why not. An admitted operation calls report.
func (b *Breaker) begin(ctx context.Context) (epoch, error) { return b.acquire(ctx, operation) }

func (b *Breaker) acquire(ctx context.Context, u kind) (epoch, error) {
	if ctx.Err() != nil { // its failure would say nothing about the store
		return 0, storage.ContextErr(ctx)
	}
	if p := epoch(b.epoch.Load()); p.closed() {
		return p, nil
	}
	return b.acquireSlow(u)
}

// acquireSlow is acquire for a breaker that is not closed.
func (b *Breaker) acquireSlow(u kind) (epoch, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.machine.state == Open {
		if now.Before(b.until) {
			return 0, b.refuse(b.until)
		}
		b.transition(b.machine.step(due, b.cfg.Threshold), now, nil)
	}
	if b.machine.state == HalfOpen {
		mine := b.probe.admitted && u != admission
		if !mine && now.Before(b.probe.until) {
			return 0, b.refuse(b.probe.until)
		}
		held := b.cfg.lease
		switch {
		case u == admission:
			held /= 10
		case u == stream && b.machine.streams: // only the end of the stream is a result
			held = max(held, b.cfg.streamLease)
		}
		b.probe = probe{now.Add(held), u == admission}
	}
	return epoch(b.epoch.Load()), nil
}

// refuse returns the error of a refused operation; mu is held.
func (b *Breaker) refuse(until time.Time) error {
	b.refused++
	return b.nameStore(unavailable, &OpenError{b.cfg.Account, b.cfg.Store, b.firstErr, b.since, until})
}

// nameStore adds the store's name to err if event e is unavailable, else returns err.
func (b *Breaker) nameStore(e event, err error) error {
	if e != unavailable {
		return err
	}
	return retry.UnavailableFor(schemas.Key(b.cfg.Account, b.cfg.Store), err)
}

// noEffect reports whether a success in an epoch would change nothing.
func (b *Breaker) noEffect(p epoch, e event) bool {
	switch {
	case e != answered && e != opened && e != streamed, !p.closed(), b.epoch.Load() != uint64(p), b.failing.Load():
		return false
	}
	return e != streamed || !b.hanging.Load()
}

// report handles the result of an operation, and returns the epoch for its later results.
func (b *Breaker) report(p epoch, e event, err error) epoch {
	if b.noEffect(p, e) {
		return p
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.epoch.Load() != uint64(p) {
		return epoch(b.epoch.Load())
	}
	switch {
	case e == nothing, e == answered && b.machine.streams:
		b.probe = probe{} // the next one may probe
	case b.machine.state != Closed:
	case e == unavailable, (e == failed || e == hung) && b.machine.failures+b.machine.hangs == 0:
		b.firstErr = err
	}
	b.transition(b.machine.step(e, b.cfg.Threshold), time.Now(), err)
	return epoch(b.epoch.Load())
}

// transition sets the next machine; err is the error that caused it. mu is held.
func (b *Breaker) transition(next machine, now time.Time, err error) {
	from := b.machine.state
	b.machine = next
	b.failing.Store(next.failures > 0)
	b.hanging.Store(next.hangs > 0)
	if next.state == from {
		return
	}
	p := (b.epoch.Load()>>1 + 1) << 1
	if next.state == Closed {
		p |= 1
	}
	b.epoch.Store(p)
	switch next.state {
	case Closed:
		b.log.Info("close breaker", "since", b.since, "refused", b.refused)
		b.since, b.refused = now, 0
	case HalfOpen:
		b.log.Debug("probe store", "since", b.since)
		b.probe = probe{}
	case Open:
		b.until = now.Add(retry.Policy{Wait: b.cfg.Open, MaxWait: b.cfg.maxOpen}.Backoff(next.rounds))
		if from != Closed {
			b.log.Debug("keep breaker open", "err", err, "since", b.since, "until", b.until)
			break
		}
		b.since = now
		do := "check that the store is up, mounted and reachable; operations continue when it answers"
		if errors.Is(err, storage.ErrCredentials) {
			do = "check the store's credentials in the configuration; operations continue when it accepts them"
		}
		b.log.Warn("open breaker", "err", err, "since", b.since, "until", b.until, "remedy", do)
	}
	b.entered[next.state]++
	if next.state == Open {
		select {
		case b.opened <- struct{}{}:
		default:
		}
	}
}
