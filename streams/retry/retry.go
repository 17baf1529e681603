// Package retry classifies errors and decides whether and when to retry.
//
// Every error is transient unless it was wrapped by Permanent, Unavailable or Wait. The text of an error never decides
// its class.
package retry

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// A Class determines how an error is handled.
type Class int

// The classes, from the mildest to the worst. Of several errors, the worst class counts.
const (
	// Transient errors may disappear on a retry: time-outs, resets, 5xx.
	Transient Class = iota
	// ClassWait: the work is not due yet, or lacks information from upstream. Waits are counted apart from attempts.
	ClassWait
	// ClassUnavailable: a whole store or engine is unavailable. It does not count as an attempt.
	ClassUnavailable
	// ClassPermanent: no retry can succeed.
	ClassPermanent
)

// String returns the name of the class in headers, rows and metrics.
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
	cause string // set by WaitFor and UnavailableFor
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

// Permanent marks err as permanent: no retry can succeed. Permanent(nil) is nil, as it is for Unavailable and Wait.
func Permanent(err error) error { return mark(ClassPermanent, time.Time{}, err) }

// Unavailable marks err as the unavailability of a whole store or engine.
func Unavailable(err error) error { return mark(ClassUnavailable, time.Time{}, err) }

// UnavailableFor is like Unavailable, and names the unavailable part. Waiting messages are counted by that name. Its
// callers know the unavailability in advance, so that a retry costs little while it lasts.
func UnavailableFor(cause string, err error) error {
	if err == nil {
		return nil
	}
	return &classed{class: ClassUnavailable, cause: cause, err: err}
}

// Wait marks err as one that may disappear by time due. If due is zero, the delay lanes determine the wait.
func Wait(err error, due time.Time) error { return mark(ClassWait, due, err) }

// WaitFor is like Wait, and names the cause of the wait. The waits of a message are counted by cause, so that the limit
// on waits applies to each cause alone.
func WaitFor(cause string, err error, due time.Time) error {
	if err == nil {
		return nil
	}
	return &classed{class: ClassWait, cause: cause, due: due, err: err}
}

// ClassOf returns the class of err: the class of its outermost mark, or Transient if it has none.
func ClassOf(err error) Class {
	var c *classed
	if errors.As(err, &c) {
		return c.class
	}
	return Transient
}

// IsPermanent reports whether err is of class permanent.
func IsPermanent(err error) bool { return err != nil && ClassOf(err) == ClassPermanent }

// Due returns the time for the next attempt after an error of class wait; zero if none is set.
func Due(err error) time.Time {
	var c *classed
	if errors.As(err, &c) {
		return c.due
	}
	return time.Time{}
}

// A Policy limits the retries of one call, and the waits between them.
type Policy struct {
	Attempts int           // number of calls in all; 0 means no limit
	Wait     time.Duration // wait before the second call; doubles with each call, with jitter
	MaxWait  time.Duration // longest single wait; 0 means no limit
	Elapsed  time.Duration // no call begins later than this after the first; 0 means no limit
}

// Do calls f until it succeeds, returns an error that is not Transient, the policy is exhausted, or ctx is done. It
// returns the number of calls and the last error, or the cause of ctx. If each is not nil, Do calls it before the wait
// that follows a failed call.
func (p Policy) Do(ctx context.Context, f func() error, each func(attempt int, wait time.Duration,
	err error)) (attempts int, err error) {
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

// Backoff returns the wait after the nth failure. It is random between half and all of Wait·2^(n-1), bounded by
// MaxWait.
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

// Sleep waits for d. If ctx ends first, Sleep returns its cause.
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

// Watched returns a context for which Alive calls f.
func Watched(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, watchKey{}, f)
}

// Alive reports progress to the function that Watched added to ctx, if any. Long tasks call it regularly, for example
// after each part of a file. A task that neither reports progress nor ends is considered stuck.
func Alive(ctx context.Context) {
	if f, ok := ctx.Value(watchKey{}).(func()); ok {
		f()
	}
}
