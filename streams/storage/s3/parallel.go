package s3

import (
	"context"
	"errors"
	"io"
	"sync"
)

// A parallelReader reads a first body and then the ranges of a plan. It fetches ranges ahead in parallel, as far as
// buffers are free at that moment. It never waits for a buffer: Puts hold buffers while they read, so readers that wait
// could deadlock with each other. A range without a buffer is read directly from its body.
type parallelReader struct {
	ctx     context.Context // of the requests
	cancel  context.CancelFunc
	plan    readPlan // the ranges that are not requested yet
	buffers *bufferPool
	open    opener

	body    io.ReadCloser  // the body that is being read; nil: none
	queue   []chan fetched // the ranges that are being fetched, in order
	unread  []byte         // the rest of current
	current buffer
	all     sync.WaitGroup
	err     error // final
}

type fetched struct {
	buffer
	err error // if set, there is no buffer
}

var errClosed = errors.New("body is closed")

// A readPlan is the rest of an object to be read: remaining bytes from offset, in ranges of rangeSize bytes, parallel
// of them at a time.
type readPlan struct {
	offset, remaining, rangeSize int64
	parallel                     int
}

// An opener opens n bytes at the offset at.
type opener func(ctx context.Context, at, n int64) (io.ReadCloser, error)

// newParallelReader returns a reader of first and then of the plan. All readers share the buffers.
func newParallelReader(
	ctx context.Context, first io.ReadCloser, plan readPlan, buffers *bufferPool, open opener,
) *parallelReader {
	ctx, cancel := context.WithCancel(ctx)
	return &parallelReader{ctx: ctx, cancel: cancel, plan: plan, buffers: buffers, open: open, body: first}
}

func (p *parallelReader) Read(b []byte) (int, error) {
	for p.err == nil {
		p.prefetch()
		if len(p.unread) > 0 {
			n := copy(b, p.unread)
			if p.unread = p.unread[n:]; len(p.unread) == 0 {
				p.releaseCurrent()
			}
			return n, nil
		}
		if p.body == nil {
			p.err = p.next()
			continue
		}
		n, err := p.body.Read(b)
		if err == nil {
			return n, nil
		}
		p.body.Close()
		p.body = nil
		if err != io.EOF { // an error that wraps EOF means a broken stream
			p.err = err
			return n, err
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, p.err
}

// prefetch starts to fetch ranges, up to the parallelism of the plan and while buffers are free.
func (p *parallelReader) prefetch() {
	n := len(p.queue)
	if p.current.free != nil {
		n++
	}
	for ; n < p.plan.parallel && p.plan.remaining > 0; n++ {
		to, ok := p.buffers.tryGet(min(p.plan.rangeSize, p.plan.remaining))
		if !ok {
			return
		}
		at := p.plan.take(int64(len(to.bytes)))
		done := make(chan fetched, 1)
		p.queue = append(p.queue, done)
		p.all.Go(func() { done <- fetch(p.ctx, to, at, p.open) })
	}
}

// next sets the next range as the one to read. It returns io.EOF if there is none.
func (p *parallelReader) next() (err error) {
	if len(p.queue) > 0 {
		got := <-p.queue[0]
		p.queue = p.queue[1:]
		p.unread, p.current = got.bytes, got.buffer
		return got.err
	}
	if p.plan.remaining <= 0 {
		return io.EOF
	}
	n := min(p.plan.rangeSize, p.plan.remaining)
	p.body, err = p.open(p.ctx, p.plan.take(n), n)
	return err
}

// take removes the next n bytes from the plan and returns their offset.
func (c *readPlan) take(n int64) (at int64) {
	at = c.offset
	c.offset, c.remaining = c.offset+n, c.remaining-n
	return at
}

// fetch reads a range into a buffer. After an error it frees the buffer.
func fetch(ctx context.Context, to buffer, at int64, open opener) fetched {
	body, err := open(ctx, at, int64(len(to.bytes)))
	if err == nil {
		_, err = io.ReadFull(body, to.bytes)
		body.Close()
	}
	if err != nil {
		to.free()
		return fetched{err: err}
	}
	return fetched{buffer: to}
}

// releaseCurrent frees the current buffer, if there is one.
func (p *parallelReader) releaseCurrent() {
	if p.current.free != nil {
		p.current.free()
	}
	p.current = buffer{}
}

// Close cancels the fetches, waits for them and frees their buffers.
func (p *parallelReader) Close() error {
	p.cancel()
	if p.body != nil {
		p.body.Close()
		p.body = nil
	}
	p.all.Wait()
	p.releaseCurrent()
	for _, done := range p.queue {
		if left := <-done; left.err == nil {
			left.free()
		}
	}
	p.queue, p.unread, p.err = nil, nil, errClosed
	return nil
}
