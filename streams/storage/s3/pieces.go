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
type pieces struct {
	ctx    context.Context // of the requests
	cancel context.CancelFunc
	left   cut // what is not asked for yet
	memory *room
	open   opener

	body  io.ReadCloser // is read now; nil: none
	ahead []chan piece  // in order
	now   []byte        // what is left of whole
	whole part
	all   sync.WaitGroup
	err   error // the end
}

type piece struct {
	part
	err error // then there is no part
}

var errClosed = errors.New("body is closed")

// A cut is how what is left from at on is read: size bytes at a time, so many side by side.
type cut struct {
	at, left, size int64
	parallel       int
}

// An opener opens n bytes from at on.
type opener func(ctx context.Context, at, n int64) (io.ReadCloser, error)

// newPieces reads first, and then the cut. All readers share the memory.
func newPieces(ctx context.Context, first io.ReadCloser, c cut, memory *room, open opener) *pieces {
	ctx, cancel := context.WithCancel(ctx)
	return &pieces{ctx: ctx, cancel: cancel, left: c, memory: memory, open: open, body: first}
}

func (p *pieces) Read(b []byte) (int, error) {
	for p.err == nil {
		p.fetchAhead()
		if len(p.now) > 0 {
			n := copy(b, p.now)
			if p.now = p.now[n:]; len(p.now) == 0 {
				p.give()
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
func (p *pieces) fetchAhead() {
	n := len(p.ahead)
	if p.whole.free != nil {
		n++
	}
	for ; n < p.left.parallel && p.left.left > 0; n++ {
		to, ok := p.memory.try(min(p.left.size, p.left.left))
		if !ok {
			return
		}
		at := p.left.take(int64(len(to.bytes)))
		done := make(chan piece, 1)
		p.ahead = append(p.ahead, done)
		p.all.Go(func() { done <- fetch(p.ctx, to, at, p.open) })
	}
}

// next makes the next piece the one that is read, or returns the end.
func (p *pieces) next() (err error) {
	if len(p.ahead) > 0 {
		got := <-p.ahead[0]
		p.ahead = p.ahead[1:]
		p.now, p.whole = got.bytes, got.part
		return got.err
	}
	if p.left.left <= 0 {
		return io.EOF
	}
	n := min(p.left.size, p.left.left)
	p.body, err = p.open(p.ctx, p.left.take(n), n)
	return err
}

// take returns where the next n bytes begin.
func (c *cut) take(n int64) (at int64) {
	at = c.at
	c.at, c.left = c.at+n, c.left-n
	return at
}

func fetch(ctx context.Context, to part, at int64, open opener) piece {
	body, err := open(ctx, at, int64(len(to.bytes)))
	if err == nil {
		_, err = io.ReadFull(body, to.bytes)
		body.Close()
	}
	if err != nil {
		to.free()
		return piece{err: err}
	}
	return piece{part: to}
}

// give gives back the memory of what is read.
func (p *pieces) give() {
	if p.whole.free != nil {
		p.whole.free()
	}
	p.whole = part{}
}

// Close ends what is being fetched.
func (p *pieces) Close() error {
	p.cancel()
	if p.body != nil {
		p.body.Close()
		p.body = nil
	}
	p.all.Wait()
	p.give()
	for _, done := range p.ahead {
		if left := <-done; left.err == nil {
			left.free()
		}
	}
	p.ahead, p.now, p.err = nil, nil, errClosed
	return nil
}
