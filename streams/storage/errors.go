package storage

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sentinels for callers to branch on. Any other error means that the store did not answer.
var (
	ErrNotFound    = errors.New("item is absent")
	ErrNoSpace     = errors.New("space is absent")
	ErrExists      = errors.New("exists already")
	ErrNotEmpty    = errors.New("space is not empty")
	ErrChanged     = errors.New("is not the version that was seen")
	ErrDigest      = errors.New("bytes do not agree with what is known of them")
	ErrName        = errors.New("name cannot be stored")
	ErrReadOnly    = errors.New("store is read-only")
	ErrUnsupported = errors.New("store cannot do this")
	ErrTooLarge    = errors.New("is larger than the store keeps")
	ErrListing     = errors.New("listing repeats itself or is not sorted")
	// ErrSlowDown: the store works, and asks for fewer requests (S3's SlowDown, HTTP 429). It is transient,
	// nothing was applied, and it does not mean that the store is unavailable.
	ErrSlowDown = errors.New("store asks for fewer requests")
	// ErrCredentials: the store answers and refuses the caller's credentials, or there are none. It is of
	// class unavailable: nothing in the store can be read.
	ErrCredentials = errors.New("store refuses the credentials")
	ErrNoMarker    = errors.New("store's marker is missing")
	ErrWrongMarker = errors.New("store's marker is of another store")
)

// NotApplied marks the error of a mutation that changed nothing in the store: it was refused before its
// first visible step, or the store proves that it refused the whole mutation. Any other error of a mutation
// leaves open whether it was applied, whatever it wraps. Drivers mark the errors that they return;
// NotApplied(nil) is nil.
func NotApplied(err error) error {
	if err == nil {
		return nil
	}
	return &notApplied{err}
}

// IsNotApplied reports whether err is marked by NotApplied.
func IsNotApplied(err error) bool {
	var mark *notApplied
	return errors.As(err, &mark)
}

type notApplied struct{ err error }

func (e *notApplied) Error() string { return e.err.Error() }
func (e *notApplied) Unwrap() error { return e.err }

// ContextErr returns the error of a call that ends because of its context: ctx.Err(), with the cause of ctx in
// its text; nil if ctx has not ended. It does not wrap the cause, which may be the error of another call,
// as with an errgroup: its sentinels, class and mark say nothing about this call.
func ContextErr(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || cause == err { //nolint:errorlint // a cause that wraps err says more
		return err
	}
	return fmt.Errorf("%w: %v", err, cause) //nolint:errorlint // the cause is not wrapped
}

// An AbsentError is the ErrNotFound or ErrNoSpace of a Stat.
type AbsentError struct {
	// At is when the store answered, by its own clock: a later write is not dated before it. Zero if the store
	// does not report it.
	At  time.Time
	Err error
}

func (e *AbsentError) Error() string { return e.Err.Error() }
func (e *AbsentError) Unwrap() error { return e.Err }

// Absent returns err as an *AbsentError if it wraps ErrNotFound or ErrNoSpace, else unchanged.
func Absent(err error, at time.Time) error {
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrNoSpace) {
		return &AbsentError{at.UTC(), err}
	}
	return err
}
