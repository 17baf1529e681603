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

// judge returns what the end of an operation under ctx says about the store.
//
// A context that was cancelled says nothing: its owner did it. One whose time is up
// says that the store did not answer in time, also where a cause that wraps
// context.DeadlineExceeded says so: a store that hangs must not look well for ever.
func judge(ctx context.Context, err error) event {
	if err == nil {
		return answered
	}
	class := retry.ClassOf(err)
	switch {
	case class == retry.ClassPermanent, class == retry.ClassWait, class == retry.Transient && isAnswer(err):
		return answered
	case ctx.Err() != nil && !timeUp(ctx):
		return nothing
	case class != retry.ClassUnavailable:
		return failed
	case takesNoWrites(err):
		return nothing
	}
	return away
}

// judgeStream is judge where the caller had a part in how long it took. alone says that it was the
// store that was waited for when the time was up.
func judgeStream(ctx context.Context, err error, alone bool) event {
	e := judge(ctx, err)
	switch {
	case e == failed && alone && (timeUp(ctx) || isTimeout(err)):
		return hung
	case e == answered, ctx.Err() == nil:
		return e
	}
	return nothing
}

// isTimeout reports whether err is of a driver that has waited long enough.
func isTimeout(err error) bool {
	var e interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &e) && e.Timeout()
}

func timeUp(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// isAnswer reports whether err is one that only a working store gives.
func isAnswer(err error) bool {
	for _, answer := range [...]error{
		storage.ErrNotFound, storage.ErrNoSpace, storage.ErrExists, storage.ErrNotEmpty, storage.ErrChanged, storage.ErrDigest,
		storage.ErrName, storage.ErrReadOnly, storage.ErrUnsupported, storage.ErrNoMarker, storage.ErrWrongMarker,
		storage.ErrTooLarge, storage.ErrListing, storage.ErrSlowDown,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// takesNoWrites reports whether a store that calls itself unavailable means its writing
// only: a full disk can be read, and what is on it must be checked.
func takesNoWrites(err error) bool {
	return errors.Is(err, storage.ErrReadOnly) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// streamEnough bytes show that a store's bytes come or go, long before an item's end.
const streamEnough = 64 << 20

// A body is what a caller gave to Put. It remembers whether Put failed for reasons of
// the caller's own. A driver may read it in a goroutine that outlives the Put.
type body struct {
	r       io.Reader
	over    func() bool       // the Put's time is up
	move    func(n int) error // waits for the turn of so many bytes
	failed  atomic.Bool
	reading atomic.Int32
	// late: time was up while it was read, and not while the store was at work.
	late atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	began := !b.over()
	b.reading.Add(1)
	n, err := b.r.Read(p)
	var turn error
	if err == nil {
		turn = b.move(n)
	}
	if began && b.over() {
		b.late.Store(true)
	}
	b.reading.Add(-1)
	if turn != nil || err != nil && err != io.EOF { // one that wraps EOF is a stream that broke
		b.failed.Store(true)
	}
	if err == nil {
		return n, turn
	}
	return n, err
}

// verify wraps a PutOptions.Verify, whose refusals are the caller's own, too.
func (b *body) verify(f func(digest.Set, int64) error) func(digest.Set, int64) error {
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

// judge returns what the end of the Put of b says about the store.
func (b *body) judge(ctx context.Context, err error) event {
	switch {
	case err == nil:
		return streamed
	case b.failed.Load():
		return nothing
	}
	return judgeStream(ctx, err, b.reading.Load() == 0 && !b.late.Load())
}

// A reader is what Open opened. Its first failure is reported, and so is its end; each
// piece that is read tells whoever watches the task that it gets on.
type reader struct {
	io.ReadCloser
	alive func()
	over  func() bool // the caller's time is up
	judge func(err error, alone bool) event
	blame func(event, error) error // names the store
	move  func(n int) error        // waits for the turn of so many bytes
	n     int64                    // bytes that came

	mu     sync.Mutex // guards the rest: it may be closed while it is read
	report func(event, error)
	done   bool   // nothing more is reported
	closed func() // nil when it was called
}

func (r *reader) Read(p []byte) (int, error) {
	began := !r.over()
	n, err := r.ReadCloser.Read(p)
	if n > 0 {
		r.alive()
	}
	before := r.n
	r.n += int64(n)
	switch {
	case err == io.EOF: // one that wraps EOF is a stream that broke
		r.tell(streamed, nil, true)
	case err != nil:
		e := r.judge(err, began)
		r.tell(e, err, true)
		return n, r.blame(e, err)
	case before < streamEnough && r.n >= streamEnough:
		r.tell(streamed, nil, false)
	}
	if err == nil {
		return n, r.move(n)
	}
	return n, err
}

func (r *reader) tell(e event, err error, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.done {
		r.done = last
		r.report(e, err)
	}
}

// Close ends the reading, which without an end or a failure says nothing.
func (r *reader) Close() error {
	r.tell(nothing, nil, true)
	r.mu.Lock()
	closed := r.closed
	r.closed = nil
	r.mu.Unlock()
	if closed != nil {
		defer closed()
	}
	return r.ReadCloser.Close()
}
