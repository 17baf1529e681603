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

// ErrOpen is what an error wraps of an operation that was not begun, as its store is away.
var ErrOpen = errors.New("store is away")

// An OpenError says which store is away, and why. It wraps ErrOpen, but not what
// happened first: that is no fact about whatever is asked for now.
type OpenError struct {
	Account, Store string
	First          error     // with which it became unavailable
	Since, Until   time.Time // Until: when it is asked again
}

// Error is the same text for as long as the store is away: in the history of a message that is one entry.
func (e *OpenError) Error() string {
	since := e.Since.UTC().Format(time.RFC3339)
	return fmt.Sprintf("%v: %s/%s since %s; at first: %v", ErrOpen, e.Account, e.Store, since, e.First)
}

// Unwrap returns ErrOpen.
func (e *OpenError) Unwrap() error { return ErrOpen }

// Config is how a Breaker is made. In brackets is what zero values mean.
type Config struct {
	Account, Store string // whose it is
	// Threshold is how many failures without a success between them open it [5], or how many
	// streams that hang without one between them that does not. One error of class unavailable does
	// it at once.
	Threshold int
	// Open is how long the store is left alone at first [5s]; it doubles with each probe
	// that fails, up to maxOpen [10s], and is shortened by up to a half at random.
	Open, maxOpen time.Duration
	// lease is how long a probe keeps others waiting [10s]; one who was admitted to make
	// one, and does not begin, a tenth of that. streamLease is that of a stream, if the
	// breaker opened since streams hung [5m].
	lease, streamLease time.Duration
	Log                *slog.Logger // [none]
	// Changed is told of each change, one after the other; it must not call the Breaker.
	Changed func(from, to State)
}

// A Breaker knows whether one store is away. It is safe for concurrent use.
type Breaker struct {
	cfg Config
	log *slog.Logger

	// What operations look at first; written under mu.
	pass    atomic.Uint64 // that they get now
	failing atomic.Bool   // failures are being counted
	hanging atomic.Bool   // streams that hung are

	mu sync.Mutex // guards what follows
	m  machine
	// since is when it was closed last, or when it opened and has not been closed again.
	since time.Time
	first error // of those that are being counted, or that opened it
	// refused counts the operations and admissions that were refused since it opened.
	refused int
	until   time.Time
	lease   probe
}

// A pass says in which period an operation was let through: a number that grows with
// each change of state, and in its lowest bit whether the breaker was closed. What is
// learned after that period is late, and is ignored.
type pass uint64

func (p pass) closed() bool { return p&1 == 1 }

// A probe is the one who may use a store that is half-open.
type probe struct {
	until time.Time
	// admitted: by Admit; the next operation is the one that it was for.
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
	b := &Breaker{cfg: cfg, log: cfg.Log.With("account", cfg.Account, "store", cfg.Store), since: time.Now()}
	b.pass.Store(1)
	return b
}

func orElse[T int | time.Duration](v *T, other T) {
	if *v <= 0 {
		*v = other
	}
}

// State returns the state, since when the store is away or is not, and for one that is
// away the first failure.
func (b *Breaker) State() (s State, since time.Time, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.m.state != Closed {
		cause = b.first
	}
	return b.m.state, b.since, cause
}

// Admit returns nil where an operation would go through now, and otherwise the error
// that it would get. Of those who ask while the store is half-open one at a time gets
// nil, and its operation is the probe; if it makes none another one's turn comes.
func (b *Breaker) Admit() error {
	if pass(b.pass.Load()).closed() {
		return nil
	}
	_, err := b.try(admission)
	return err
}

// An errand is what somebody wants of a store.
type errand int

const (
	operation errand = iota
	stream           // an operation in which bytes come or go, and may take their time
	admission        // leave to begin one
)

// enter lets an operation through, or says why not. One that is let through leaves.
func (b *Breaker) enter(ctx context.Context) (pass, error) { return b.let(ctx, operation) }

// begin is enter for a stream.
func (b *Breaker) begin(ctx context.Context) (pass, error) { return b.let(ctx, stream) }

func (b *Breaker) let(ctx context.Context, u errand) (pass, error) {
	if ctx.Err() != nil { // it would fail, and nobody could say why
		return 0, storage.Ended(ctx)
	}
	if p := pass(b.pass.Load()); p.closed() {
		return p, nil
	}
	return b.try(u)
}

// try is enter, begin and Admit where the store may be away.
func (b *Breaker) try(u errand) (pass, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.m.state == Open {
		if now.Before(b.until) {
			return 0, b.refusal(b.until)
		}
		b.become(b.m.step(due, b.cfg.Threshold), now, nil)
	}
	if b.m.state == HalfOpen {
		mine := b.lease.admitted && u != admission
		if !mine && now.Before(b.lease.until) {
			return 0, b.refusal(b.lease.until)
		}
		held := b.cfg.lease
		switch {
		case u == admission:
			held /= 10
		case u == stream && b.m.streams: // it may hang, and says something only at its end
			held = max(held, b.cfg.streamLease)
		}
		b.lease = probe{now.Add(held), u == admission}
	}
	return pass(b.pass.Load()), nil
}

// refusal is the error of what is not let through. mu is held.
func (b *Breaker) refusal(until time.Time) error {
	b.refused++
	return b.blame(away, &OpenError{b.cfg.Account, b.cfg.Store, b.first, b.since, until})
}

// blame returns err, which says e about the store, and names the store if e is that it is away.
func (b *Breaker) blame(e event, err error) error {
	if e != away {
		return err
	}
	return retry.UnavailableFor(schemas.Key(b.cfg.Account, b.cfg.Store), err)
}

// knows reports whether what went well under p would change nothing.
func (b *Breaker) knows(p pass, e event) bool {
	switch {
	case e != answered && e != opened && e != streamed, !p.closed(), b.pass.Load() != uint64(p), b.failing.Load():
		return false
	}
	return e != streamed || !b.hanging.Load()
}

// leave reports what an operation learned, and returns the pass for what it learns later.
func (b *Breaker) leave(p pass, e event, err error) pass {
	if b.knows(p, e) {
		return p
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pass.Load() != uint64(p) {
		return pass(b.pass.Load())
	}
	switch {
	case e == nothing, e == answered && b.m.streams:
		b.lease = probe{} // the next one may probe
	case b.m.state != Closed:
	case e == away, (e == failed || e == hung) && b.m.failures+b.m.hangs == 0:
		b.first = err
	}
	b.become(b.m.step(e, b.cfg.Threshold), time.Now(), err)
	return pass(b.pass.Load())
}

// become makes next what is known; err is what is new. mu is held.
func (b *Breaker) become(next machine, now time.Time, err error) {
	from := b.m.state
	b.m = next
	b.failing.Store(next.failures > 0)
	b.hanging.Store(next.hangs > 0)
	if next.state == from {
		return
	}
	p := (b.pass.Load()>>1 + 1) << 1
	if next.state == Closed {
		p |= 1
	}
	b.pass.Store(p)
	switch next.state {
	case Closed:
		b.log.Info("store is back", "since", b.since, "refused", b.refused)
		b.since, b.refused = now, 0
	case HalfOpen:
		b.log.Debug("store is asked again", "since", b.since)
		b.lease = probe{}
	case Open:
		b.until = now.Add(retry.Policy{Wait: b.cfg.Open, MaxWait: b.cfg.maxOpen}.Backoff(next.rounds))
		if from != Closed {
			b.log.Debug("store is still away", "err", err, "since", b.since, "again", b.until)
			break
		}
		b.since = now
		message := "store is away: what needs it waits until it answers; see that it is up, mounted and reachable"
		if errors.Is(err, storage.ErrCredentials) {
			message = "store refuses the credentials: what needs it waits until it accepts them; see its credentials in the configuration"
		}
		b.log.Warn(message, "err", err, "since", b.since, "again", b.until)
	}
	if b.cfg.Changed != nil {
		b.cfg.Changed(from, next.state)
	}
}
