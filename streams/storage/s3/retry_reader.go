package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// readRetry is the retry policy of a read that makes no progress. Any byte resets it.
var readRetry = retry.Policy{Attempts: 5, Wait: 100 * time.Millisecond, MaxWait: 5 * time.Second}

// A retryReader reads a range of an object. After a broken connection it continues at the same offset of the same
// version, or returns an error.
type retryReader struct {
	ctx        context.Context // of the requests
	body       io.ReadCloser   // nil: not open
	offset     int64
	remaining  int64
	open       opener
	what       string
	pendingErr error // of a body that ended early after some bytes; the next attempt returns it
	err        error
}

func (b *retryReader) Read(p []byte) (int, error) {
	if b.remaining == 0 {
		return 0, io.EOF
	}
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	var n int
	err := retryWhile(b.ctx, readRetry, isAmbiguous, func() (err error) {
		n, err = b.readOnce(p)
		return err
	})
	switch {
	case err == nil:
		return n, nil
	case b.ctx.Err() != nil:
		b.err = storage.ContextErr(b.ctx)
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, errRange): // it existed before, with this range
		b.err = fmt.Errorf("%s: deleted or truncated during the read: %w", b.what, storage.ErrChanged)
	default:
		b.err = fmt.Errorf("%s: %w", b.what, err)
	}
	return 0, b.err
}

// readOnce reads once and opens the body first if necessary. If the body ends early, it closes it and returns the
// reason: at once if no byte was read, otherwise in the next call.
func (b *retryReader) readOnce(p []byte) (n int, err error) {
	if err, b.pendingErr = b.pendingErr, nil; err != nil {
		return 0, err
	}
	if b.body == nil {
		if b.body, err = b.open(b.ctx, b.offset, b.remaining); err != nil {
			b.body = nil
			return 0, err
		}
	}
	n, err = b.body.Read(p[:min(int64(len(p)), b.remaining)])
	b.offset, b.remaining = b.offset+int64(n), b.remaining-int64(n)
	if err == nil || b.remaining == 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the body ends %d bytes early: %w", b.remaining, io.ErrUnexpectedEOF)
	}
	b.body.Close()
	b.body = nil
	if n > 0 {
		b.pendingErr, err = err, nil
	}
	return n, err
}

// retryWhile calls f until it succeeds, returns an error for which retryable is false, or the policy is exhausted. It
// returns the last error of f, or storage.ContextErr(ctx).
func retryWhile(ctx context.Context, p retry.Policy, retryable func(error) bool, f func() error) error {
	var last error // not retryable
	_, err := p.Do(ctx, func() error {
		err := f()
		if err != nil && !retryable(err) {
			last, err = err, retry.Permanent(err)
		}
		return err
	}, func(int, time.Duration, error) { retry.Alive(ctx) })
	switch {
	case last != nil:
		return last
	case err != nil && ctx.Err() != nil:
		return storage.ContextErr(ctx)
	}
	return err
}

// isTransient reports whether an error says nothing about the subject of a request and the request may be repeated.
func isTransient(err error) bool {
	if retry.ClassOf(err) != retry.Transient {
		return false
	}
	for _, fact := range []error{
		storage.ErrNotFound, storage.ErrNoSpace, storage.ErrChanged, storage.ErrExists, errRange,
		storage.ErrListing, storage.ErrSlowDown, errArchived,
	} {
		if errors.Is(err, fact) {
			return false
		}
	}
	return true
}

func (b *retryReader) Close() error {
	b.err = errClosed
	if b.body == nil {
		return nil
	}
	err := b.body.Close()
	b.body = nil
	return err
}
