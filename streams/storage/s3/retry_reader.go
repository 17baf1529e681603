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

// readTries is how often in a row a body is opened again without a byte having come.
var readRetry = retry.Policy{Attempts: 5, Wait: 100 * time.Millisecond, MaxWait: 5 * time.Second}

// A steady body has so many bytes, and goes on where a connection broke: of the same version, or not at all.
type retryReader struct {
	ctx        context.Context // of the requests whose bodies it reads
	body       io.ReadCloser   // nil: it has to be opened
	offset     int64
	remaining  int64
	open       opener
	what       string
	pendingErr error // why the last body ended early; the next attempt begins with it
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
		b.err = storage.Ended(b.ctx)
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, errRange): // it was there before, and longer
		b.err = fmt.Errorf("%s: it is gone, or shorter: %w", b.what, storage.ErrChanged)
	default:
		b.err = fmt.Errorf("%s: %w", b.what, err)
	}
	return 0, b.err
}

// some reads what comes next. After a body that ended early it returns why, if no byte came with it, and opens the rest
// in a later call.
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

// again calls f until it succeeds, or returns an error for which may is false, or the policy is used up. It returns the
// last error of f, or the end of ctx.
func retryWhile(ctx context.Context, p retry.Policy, may func(error) bool, f func() error) error {
	var last error // for which may is false
	_, err := p.Do(ctx, func() error {
		err := f()
		if err != nil && !may(err) {
			last, err = err, retry.Permanent(err)
		}
		return err
	}, func(int, time.Duration, error) { retry.Alive(ctx) })
	switch {
	case last != nil:
		return last
	case err != nil && ctx.Err() != nil:
		return storage.Ended(ctx)
	}
	return err
}

// mayPass says that an error is no fact, and that the same request may be made again.
func isTransient(err error) bool {
	if retry.ClassOf(err) != retry.Transient {
		return false
	}
	for _, fact := range []error{
		storage.ErrNotFound, storage.ErrNoSpace, storage.ErrChanged, storage.ErrExists, errRange, storage.ErrListing, storage.ErrSlowDown, errArchived,
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
