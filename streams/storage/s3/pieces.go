package s3

import (
	"context"
	"errors"
	"io"
	"sync"
)

// pieces reads what follows a first body, in pieces that are fetched side by side and given in order. No more
// pieces than parallel are in memory.
type pieces struct {
	first  io.ReadCloser // nil: it has ended
	next   chan chan piece
	now    []byte // what is left of whole
	whole  part
	slots  chan struct{}
	cancel context.CancelFunc
	all    sync.WaitGroup
	err    error // the end
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

// newPieces has what comes after first fetched, into memory of a room that all readers share.
func newPieces(ctx context.Context, first io.ReadCloser, c cut, memory *room, open opener) *pieces {
	size, parallel, end := c.size, c.parallel, c.at+c.left
	ctx, cancel := context.WithCancel(ctx)
	p := &pieces{first: first, next: make(chan chan piece, parallel), slots: make(chan struct{}, parallel), cancel: cancel}
	for range parallel {
		p.slots <- struct{}{}
	}
	p.all.Go(func() {
		defer close(p.next)
		for at := c.at; at < end; at += size {
			n := min(size, end-at)
			select {
			case <-ctx.Done():
				return
			case <-p.slots:
			}
			to, err := memory.part(ctx, n)
			if err != nil { // closed
				return
			}
			done := make(chan piece, 1)
			p.next <- done // never full: there are no more pieces than slots
			p.all.Go(func() { done <- fetch(ctx, to, at, open) })
		}
	})
	return p
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

func (p *pieces) Read(b []byte) (int, error) {
	if p.first != nil {
		n, err := p.first.Read(b)
		if err == nil {
			return n, nil
		}
		p.first.Close()
		p.first = nil
		if !errors.Is(err, io.EOF) {
			p.err = err
			return n, err
		}
		if n > 0 {
			return n, nil
		}
	}
	for len(p.now) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		done, ok := <-p.next
		if !ok {
			p.err = io.EOF
			return 0, p.err
		}
		got := <-done
		if p.err = got.err; got.err == nil {
			p.now, p.whole = got.bytes, got.part
		}
	}
	n := copy(b, p.now)
	if p.now = p.now[n:]; len(p.now) == 0 {
		p.give()
		p.slots <- struct{}{}
	}
	return n, nil
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
	if p.first != nil {
		p.first.Close()
		p.first = nil
	}
	p.all.Wait()
	p.give()
	for done := range p.next {
		if left := <-done; left.err == nil {
			left.free()
		}
	}
	p.now, p.err = nil, errClosed
	return nil
}
