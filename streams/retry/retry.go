// Package retry classes errors and decides whether and when to try again.
//
// An error is transient unless somebody who knows better said otherwise: Permanent,
// Unavailable and Wait are the only ways to say so. Text is never matched.
package retry

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// A Class says what may be done about an error.
type Class int

// The classes, in the order in which the worst of several errors wins.
const (
	// Transient errors may pass when tried again: time-outs, resets, 5xx.
	Transient Class = iota
	// ClassWait: not due yet, or a fact from upstream is missing. Counted apart.
	ClassWait
	// ClassUnavailable: a whole store or engine is away. Spends no attempt.
	ClassUnavailable
	// ClassPermanent: it can never work.
	ClassPermanent
)

// String returns the class's name, as it stands in headers, rows and metrics.
func (c Class) String() string {
	switch c {
	case ClassWait:
		return "wait"
	case ClassUnavailable:
		return "unavailable"
	case ClassPermanent:
		return "permanent"
	}
	return "transient"
}

type classed struct {
	class Class
	cause string // of classes wait and unavailable
	due   time.Time
	err   error
}

func (e *classed) Error() string { return e.err.Error() }
func (e *classed) Unwrap() error { return e.err }

func mark(class Class, due time.Time, err error) error {
	if err == nil {
		return nil
	}
	return &classed{class: class, due: due, err: err}
}

// Permanent marks err as one that no retry will cure. Permanent(nil) is nil, as are its siblings'.
func Permanent(err error) error { return mark(ClassPermanent, time.Time{}, err) }

// Unavailable marks err as the absence of a whole store or engine.
func Unavailable(err error) error { return mark(ClassUnavailable, time.Time{}, err) }

// UnavailableFor is Unavailable with a word for what is away. Messages that wait for it are counted by that word, and
// trying one of them again costs little while it is away: whoever returns the error knows before it is tried.
func UnavailableFor(cause string, err error) error {
	if err == nil {
		return nil
	}
	return &classed{class: ClassUnavailable, cause: cause, err: err}
}

// Wait marks err as one that time may cure; due may be zero: then the lanes decide.
func Wait(err error, due time.Time) error { return mark(ClassWait, due, err) }

// WaitFor is Wait with a word for what is waited for. Waits of one message are counted by it, so that each of several
// causes has all its waits.
func WaitFor(cause string, err error, due time.Time) error {
	if err == nil {
		return nil
	}
	return &classed{class: ClassWait, cause: cause, due: due, err: err}
}

// ClassOf returns the class of err: that of the outermost mark, else Transient.
func ClassOf(err error) Class {
	var c *classed
	if errors.As(err, &c) {
		return c.class
	}
	return Transient
}

// IsPermanent reports whether no retry will cure err.
func IsPermanent(err error) bool { return err != nil && ClassOf(err) == ClassPermanent }

// Due returns when an error of class wait wants to be looked at again; zero if it did not say.
func Due(err error) time.Time {
	var c *classed
	if errors.As(err, &c) {
		return c.due
	}
	return time.Time{}
}

// A Policy says how often to try in place and how long to wait between.
type Policy struct {
	Attempts int           // calls in all; 0 means until Elapsed or for ever
	Wait     time.Duration // before the second call; doubles after each, with jitter
	MaxWait  time.Duration // bound of one wait
	Elapsed  time.Duration // no call is begun later than this after the first; 0 means no bound
}

// Do calls f until it succeeds, returns an error that is not Transient, the policy is
// used up, or ctx is done. It returns how often it called f and the last error, or
// the cause of ctx. If each is not nil, it is told of every failure that will be
// followed by another call.
func (p Policy) Do(ctx context.Context, f func() error, each func(attempt int, wait time.Duration, err error)) (attempts int, err error) {
	start := time.Now()
	for n := 1; ; n++ {
		err := f()
		if err == nil {
			return n, nil
		}
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		wait := p.Backoff(n)
		if ClassOf(err) != Transient || p.Attempts > 0 && n >= p.Attempts ||
			p.Elapsed > 0 && time.Since(start)+wait > p.Elapsed {
			return n, err
		}
		if each != nil {
			each(n, wait, err)
		}
		if err := Sleep(ctx, wait); err != nil {
			return n, err
		}
	}
}

// Backoff returns how long to wait after the nth failure: between half and all of Wait·2^(n-1), at most MaxWait.
func (p Policy) Backoff(n int) time.Duration {
	wait := p.Wait
	for range n - 1 {
		if wait *= 2; p.MaxWait > 0 && wait >= p.MaxWait {
			break
		}
	}
	if p.MaxWait > 0 {
		wait = min(wait, p.MaxWait)
	}
	if wait <= 1 {
		return wait
	}
	return wait/2 + rand.N(wait/2)
}

// Sleep waits for d or for ctx, whose cause it then returns.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// CauseOf returns the cause of an error of class wait or unavailable; "" if it has none.
func CauseOf(err error) string {
	var c *classed
	if errors.As(err, &c) {
		return c.cause
	}
	return ""
}

type watchKey struct{}

// Watched returns a context whose Alive calls f.
func Watched(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, watchKey{}, f)
}

// Alive tells whoever watches the task behind ctx that it gets on. Tasks that may be long call
// it now and then, such as after each piece of a file: one that does not, and is not done either, is
// taken for one that hangs.
func Alive(ctx context.Context) {
	if f, ok := ctx.Value(watchKey{}).(func()); ok {
		f()
	}
}
