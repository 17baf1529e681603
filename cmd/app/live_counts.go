package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

const (
	// liveCountFresh is the age up to which a count is not repeated, and liveCountKnown the age up to which it counts
	// while the space cannot be counted again.
	liveCountFresh = 10 * time.Minute
	liveCountKnown = 24 * time.Hour
)

// errNotCounted reports that a count is not over yet.
var errNotCounted = errors.New("the copies are not counted yet")

// liveCounts counts the live copies of spaces for stewards, one space after the other: the count of a large space takes
// longer than a message may, and is then there for the next one. It is safe for concurrent use.
type liveCounts struct {
	count func(ctx context.Context, space schemas.Copy) (int64, error)
	wake  chan struct{} // has one element if requested is not empty

	mu        sync.Mutex // guards the rest
	counts    map[schemas.Copy]*liveCount
	requested []schemas.Copy
}

// A liveCount is the last count of a space.
type liveCount struct {
	n    int64
	at   time.Time     // when it began; zero: there is none
	err  error         // of the newest one
	over chan struct{} // closed when the count that is requested is over; nil: none is
}

func newLiveCounts(count func(context.Context, schemas.Copy) (int64, error)) *liveCounts {
	return &liveCounts{count: count, wake: make(chan struct{}, 1), counts: map[schemas.Copy]*liveCount{}}
}

// countLive counts the live copies of a space while no table lacks records.
func (a *App) countLive(ctx context.Context, space schemas.Copy) (n int64, err error) {
	err = a.withoutGaps(ctx, func() (err error) {
		n, err = read.LiveCopies(ctx, a.db, space)
		return err
	})
	return n, err
}

// Live implements steward.Copies.
func (l *liveCounts) Live(ctx context.Context, space schemas.Copy) (int64, error) {
	c, over := l.request(space)
	n, err := l.last(c)
	if err == nil || over == nil {
		return n, err
	}
	select {
	case <-ctx.Done():
	case <-over:
	}
	return l.last(c)
}

// last returns the newest count of a space, unless it is too old.
func (l *liveCounts) last(c *liveCount) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !c.at.IsZero() && time.Since(c.at) < liveCountKnown:
		return c.n, nil
	case c.err != nil:
		return 0, c.err
	}
	return 0, errNotCounted
}

// request returns the count of a space, and a channel that is closed when it is over if it has to be counted.
func (l *liveCounts) request(space schemas.Copy) (*liveCount, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts[space]
	if c == nil {
		c = &liveCount{}
		l.counts[space] = c
	}
	if !c.at.IsZero() && time.Since(c.at) < liveCountFresh {
		return c, nil
	}
	if c.over == nil {
		c.err, c.over = nil, make(chan struct{})
		l.requested = append(l.requested, space)
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return c, c.over
}

// Run counts what is requested, until ctx is done.
func (l *liveCounts) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		}
		for space, ok := l.next(); ok && ctx.Err() == nil; space, ok = l.next() {
			begun := time.Now()
			n, err := l.count(ctx, space)
			l.set(space, n, begun, err)
		}
	}
}

// next takes a requested space.
func (l *liveCounts) next() (space schemas.Copy, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.requested) == 0 {
		return schemas.Copy{}, false
	}
	space, l.requested = l.requested[0], l.requested[1:]
	return space, true
}

func (l *liveCounts) set(space schemas.Copy, n int64, begun time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts[space]
	if c.err = err; err == nil {
		c.n, c.at = n, begun
	}
	close(c.over)
	c.over = nil
}
