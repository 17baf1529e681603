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
	whole  []byte
	free   chan []byte
	cancel context.CancelFunc
	all    sync.WaitGroup
	err    error // the end
}

type piece struct {
	bytes []byte
	err   error
}

var errClosed = errors.New("body is closed")

// A cut is how what is left from at on is read: size bytes at a time, so many side by side.
type cut struct {
	at, left, size int64
	parallel       int
}

// An opener opens n bytes from at on.
type opener func(ctx context.Context, at, n int64) (io.ReadCloser, error)

// newPieces has what comes after first fetched.
func newPieces(ctx context.Context, first io.ReadCloser, c cut, open opener) *pieces {
	size, parallel, end := c.size, c.parallel, c.at+c.left
	ctx, cancel := context.WithCancel(ctx)
	p := &pieces{first: first, next: make(chan chan piece, parallel), free: make(chan []byte, parallel), cancel: cancel}
	for range parallel {
		p.free <- nil
	}
	p.all.Go(func() {
		defer close(p.next)
		for at := c.at; at < end; at += size {
			n := min(size, end-at)
			var room []byte
			select {
			case <-ctx.Done():
				return
			case room = <-p.free:
			}
			done := make(chan piece, 1)
			p.next <- done // never full: there are no more pieces than room
			p.all.Go(func() {
				if int64(cap(room)) < n {
					room = make([]byte, n)
				}
				b, err := fetch(ctx, room[:n], at, open)
				done <- piece{b, err}
			})
		}
	})
	return p
}

func fetch(ctx context.Context, room []byte, at int64, open opener) ([]byte, error) {
	body, err := open(ctx, at, int64(len(room)))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	_, err = io.ReadFull(body, room)
	return room, err
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
			p.now, p.whole = got.bytes, got.bytes
		}
	}
	n := copy(b, p.now)
	if p.now = p.now[n:]; len(p.now) == 0 {
		p.free <- p.whole
	}
	return n, nil
}

// Close ends what is being fetched.
func (p *pieces) Close() error {
	p.cancel()
	if p.first != nil {
		p.first.Close()
		p.first = nil
	}
	p.all.Wait()
	p.now, p.err = nil, errClosed
	return nil
}
