package s3

import (
	"context"
	"errors"
	"io"
	"sync"
)

// pieces reads what follows a first body. It fetches pieces ahead, side by side, into memory that is free at that moment, and
// never waits for memory: a Put that holds its own while it reads would then wait for other Puts that wait for it. The
// piece for which there is no memory is read from its body.
type parallelReader struct {
	ctx     context.Context // of the requests
	cancel  context.CancelFunc
	plan    readPlan // what is not asked for yet
	buffers *bufferPool
	open    opener

	body    io.ReadCloser  // is read now; nil: none
	queue   []chan fetched // in order
	unread  []byte         // what is left of whole
	current buffer
	all     sync.WaitGroup
	err     error // the end
}

type fetched struct {
	buffer
	err error // then there is no part
}

var errClosed = errors.New("body is closed")

// A cut is how what is left from at on is read: size bytes at a time, so many side by side.
type readPlan struct {
	offset, remaining, rangeSize int64
	parallel                     int
}

// An opener opens n bytes from at on.
type opener func(ctx context.Context, at, n int64) (io.ReadCloser, error)

// newPieces reads first, and then the cut. All readers share the memory.
func newParallelReader(ctx context.Context, first io.ReadCloser, c readPlan, memory *bufferPool, open opener) *parallelReader {
	ctx, cancel := context.WithCancel(ctx)
	return &parallelReader{ctx: ctx, cancel: cancel, plan: c, buffers: memory, open: open, body: first}
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
		if err != io.EOF { // an error that wraps EOF is a stream that broke
			p.err = err
			return n, err
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, p.err
}

// fetchAhead has as many pieces fetched as may be in memory and have room there now.
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

// next makes the next piece the one that is read, or returns the end.
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

// take returns where the next n bytes begin.
func (c *readPlan) take(n int64) (at int64) {
	at = c.offset
	c.offset, c.remaining = c.offset+n, c.remaining-n
	return at
}

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

// give gives back the memory of what is read.
func (p *parallelReader) releaseCurrent() {
	if p.current.free != nil {
		p.current.free()
	}
	p.current = buffer{}
}

// Close ends what is being fetched.
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
