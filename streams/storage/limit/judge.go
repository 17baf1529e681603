package limit

import (
	"context"
	"errors"
	"io"
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

// judgeStream is judge where the caller had a part in how long it took.
func judgeStream(ctx context.Context, err error) event {
	if e := judge(ctx, err); e == answered || ctx.Err() == nil {
		return e
	}
	return nothing
}

func timeUp(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// isAnswer reports whether err is one that only a working store gives.
func isAnswer(err error) bool {
	for _, answer := range [...]error{
		storage.ErrNotFound, storage.ErrNoSpace, storage.ErrExists, storage.ErrNotEmpty, storage.ErrChanged, storage.ErrDigest,
		storage.ErrName, storage.ErrReadOnly, storage.ErrUnsupported, storage.ErrNoMarker, storage.ErrWrongMarker,
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

// A body is what a caller gave to Put. It remembers whether Put failed for reasons of
// the caller's own. A driver may read it in a goroutine that outlives the Put.
type body struct {
	r      io.Reader
	failed atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF { // one that wraps EOF is a stream that broke
		b.failed.Store(true)
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
	if err != nil && b.failed.Load() {
		return nothing
	}
	return judgeStream(ctx, err)
}

// A reader is what Open opened. Its first failure is reported, and so is its end; each
// piece that is read tells whoever watches the task that it gets on.
type reader struct {
	io.ReadCloser
	alive  func()
	report func(error)
	done   bool // reported
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if n > 0 {
		r.alive()
	}
	if err == nil || r.done {
		return n, err
	}
	r.done = true
	if err == io.EOF { // one that wraps EOF is a stream that broke
		r.report(nil)
	} else {
		r.report(err)
	}
	return n, err
}
