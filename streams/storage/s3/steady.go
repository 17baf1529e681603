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
var readTries = retry.Policy{Attempts: 5, Wait: 100 * time.Millisecond, MaxWait: 5 * time.Second}

// A steady body has so many bytes, and goes on where a connection broke: of the same version, or not at all.
type steady struct {
	ctx   context.Context // of the requests whose bodies it reads
	body  io.ReadCloser   // nil: it has to be opened
	at    int64
	left  int64
	open  opener
	what  string
	tries int // since a byte came
	err   error
}

func (b *steady) Read(p []byte) (int, error) {
	for b.left > 0 {
		if b.err != nil {
			return 0, b.err
		}
		if b.body == nil {
			b.again()
			continue
		}
		n, err := b.body.Read(p[:min(int64(len(p)), b.left)])
		b.at, b.left = b.at+int64(n), b.left-int64(n)
		if n > 0 {
			b.tries = 0
		}
		if err != nil && b.left > 0 {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("the body ends %d bytes early: %w", b.left, io.ErrUnexpectedEOF)
			}
			b.broke(err)
		}
		if n > 0 || err == nil {
			return n, nil
		}
	}
	return 0, io.EOF
}

// again opens what is left.
func (b *steady) again() {
	if b.tries > 0 {
		if err := retry.Sleep(b.ctx, readTries.Backoff(b.tries)); err != nil {
			b.err = err
			return
		}
		retry.Alive(b.ctx)
	}
	body, err := b.open(b.ctx, b.at, b.left)
	if err != nil {
		b.broke(err)
		return
	}
	b.body = body
}

// broke notes what ended a body; what no other try cures, and one too many, is the end.
func (b *steady) broke(err error) {
	if b.body != nil {
		b.body.Close()
		b.body = nil
	}
	b.tries++
	switch {
	case b.ctx.Err() != nil:
		b.err = context.Cause(b.ctx)
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrRange): // what is read was there, and was longer
		b.err = fmt.Errorf("%s: it is gone, or shorter: %w", b.what, storage.ErrChanged)
	case !unclear(err) || b.tries >= readTries.Attempts:
		b.err = fmt.Errorf("%s: %w", b.what, err)
	}
}

// mayPass says that an error is no fact, and that the same request may be made again.
func mayPass(err error) bool {
	if retry.ClassOf(err) != retry.Transient {
		return false
	}
	for _, fact := range []error{
		storage.ErrNotFound, storage.ErrNoSpace, storage.ErrChanged, storage.ErrExists, storage.ErrRange, storage.ErrListing, storage.ErrSlowDown, errArchived,
	} {
		if errors.Is(err, fact) {
			return false
		}
	}
	return true
}

func (b *steady) Close() error {
	b.err = errClosed
	if b.body == nil {
		return nil
	}
	err := b.body.Close()
	b.body = nil
	return err
}
