package limit

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// classify returns what the result of an operation under ctx says about the store.
//
// A cancelled context says nothing: its owner cancelled it. An expired one, or one with a cause that wraps
// context.DeadlineExceeded, says that the store did not answer in time: otherwise a store that hangs would
// look healthy.
func classify(ctx context.Context, err error) event {
	if err == nil {
		return answered
	}
	class := retry.ClassOf(err)
	switch {
	case class == retry.ClassPermanent, class == retry.ClassWait, class == retry.Transient && isAnswer(err):
		return answered
	case ctx.Err() != nil && !deadlineExceeded(ctx):
		return nothing
	case class != retry.ClassUnavailable:
		return failed
	case refusesWrites(err):
		return nothing
	}
	return unavailable
}

// classifyStream is classify for an operation that also took the caller's time. alone: at the deadline, the
// store was being waited for, not the caller.
func classifyStream(ctx context.Context, err error, alone bool) event {
	e := classify(ctx, err)
	switch {
	case e == failed && alone && (deadlineExceeded(ctx) || isTimeout(err)):
		return hung
	case e == answered, ctx.Err() == nil:
		return e
	}
	return nothing
}

// isTimeout reports whether err is a timeout of the driver.
func isTimeout(err error) bool {
	var e interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &e) && e.Timeout()
}

func deadlineExceeded(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// isAnswer reports whether err is one that only a working store returns.
func isAnswer(err error) bool {
	for _, answer := range [...]error{
		storage.ErrNotFound, storage.ErrNoSpace, storage.ErrExists, storage.ErrNotEmpty, storage.ErrChanged,
		storage.ErrDigest,
		storage.ErrName, storage.ErrReadOnly, storage.ErrUnsupported, storage.ErrNoMarker, storage.ErrWrongMarker,
		storage.ErrTooLarge, storage.ErrListing, storage.ErrSlowDown,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// refusesWrites reports whether an unavailable store refuses only writes: a full disk can be read, and its
// items must still be checked.
func refusesWrites(err error) bool {
	return errors.Is(err, storage.ErrReadOnly) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// streamEnough is the number of bytes that shows that a store transfers bytes, long before the end of a
// large item.
const streamEnough = 64 << 20

// A putBody is the reader that a caller gave to Put. It remembers whether the caller made Put fail. A
// driver may read it in a goroutine that outlives the Put.
type putBody struct {
	r        io.Reader
	expired  func() bool       // reports whether ctx has ended
	throttle func(n int) error // waits until n bytes may be transferred
	failed   atomic.Bool
	reading  atomic.Int32
	// slowReader: ctx ended while the caller's reader was being read, not while the store was at work.
	slowReader atomic.Bool
}

func (b *putBody) Read(p []byte) (int, error) {
	began := !b.expired()
	b.reading.Add(1)
	n, err := b.r.Read(p)
	var waitErr error
	if err == nil {
		waitErr = b.throttle(n)
	}
	if began && b.expired() {
		b.slowReader.Store(true)
	}
	b.reading.Add(-1)
	if waitErr != nil || err != nil && err != io.EOF { // an error that wraps EOF is a broken stream
		b.failed.Store(true)
	}
	if err == nil {
		return n, waitErr
	}
	return n, err
}

// verify wraps PutOptions.Verify, and counts its errors as the caller's.
func (b *putBody) verify(f func(digest.Set, int64) error) func(digest.Set, int64) error {
	if f == nil {
		return nil
	}
	return func(d digest.Set, size int64) error {
		err := f(d, size)
		if err != nil {
			b.failed.Store(true)
		}
		return err
	}
}

// classify returns what the result of the Put says about the store.
func (b *putBody) classify(ctx context.Context, err error) event {
	switch {
	case err == nil:
		return streamed
	case b.failed.Load():
		return nothing
	}
	return classifyStream(ctx, err, b.reading.Load() == 0 && !b.slowReader.Load())
}

// An openReader is the reader that Open returned. Its first failure and its end are reported to the
// breaker; each successful read is reported to the watchdog of the task.
type openReader struct {
	io.ReadCloser
	alive     func()
	expired   func() bool // reports whether ctx has ended
	classify  func(err error, alone bool) event
	nameStore func(event, error) error // adds the store's name
	throttle  func(n int) error        // waits until n bytes may be transferred
	n         int64                    // bytes read so far

	mu     sync.Mutex // guards the fields below: Close may be concurrent with Read
	report func(event, error)
	done   bool   // the last result is reported
	closed func() // called by the first Close; nil afterwards
}

func (r *openReader) Read(p []byte) (int, error) {
	began := !r.expired()
	n, err := r.ReadCloser.Read(p)
	if n > 0 {
		r.alive()
	}
	before := r.n
	r.n += int64(n)
	switch {
	case err == io.EOF: // an error that wraps EOF is a broken stream
		r.reportOnce(streamed, nil, true)
	case err != nil:
		e := r.classify(err, began)
		r.reportOnce(e, err, true)
		return n, r.nameStore(e, err)
	case before < streamEnough && r.n >= streamEnough:
		r.reportOnce(streamed, nil, false)
	}
	if err == nil {
		return n, r.throttle(n)
	}
	return n, err
}

func (r *openReader) reportOnce(e event, err error, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.done {
		r.done = last
		r.report(e, err)
	}
}

// Close ends the stream; a stream without an end or a failure says nothing.
func (r *openReader) Close() error {
	r.reportOnce(nothing, nil, true)
	r.mu.Lock()
	closed := r.closed
	r.closed = nil
	r.mu.Unlock()
	if closed != nil {
		defer closed()
	}
	return r.ReadCloser.Close()
}
