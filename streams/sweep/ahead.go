package sweep

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/streams/retry"
)

const (
	// aheadAge is how long a page that was read ahead may wait. What an older one has found may have changed. The page
	// before is published meanwhile, for which there may be no room for minutes.
	aheadAge = 5 * time.Minute
	// aheadPoll is how long a page is waited for before others may work meanwhile, and then the time between two looks.
	aheadPoll = 100 * time.Millisecond
	// aheadStall is how long a page may be read ahead without a call of retry.Alive.
	aheadStall = 10 * time.Minute
)

// A pageAhead is the next page of a round, which is read while the one before is published.
type pageAhead struct {
	cursor []byte
	cancel context.CancelFunc
	alive  atomic.Int64  // when it last made progress, in ns
	done   chan struct{} // is closed at the end, after the fields below are set
	page   Page
	err    error
	ended  time.Time
}

// readAhead begins to read the page at a cursor, unless as many others are being read, or wait, as there are workers.
func (r *run) readAhead(cursor []byte) {
	if !r.split.Ahead || !r.aheads.TryAcquire(1) {
		return
	}
	ctx, cancel := context.WithCancel(r.base)
	a := &pageAhead{cursor: cursor, cancel: cancel, done: make(chan struct{})}
	a.alive.Store(time.Now().UnixNano())
	round := r.summary.Round
	go func() {
		defer close(a.done)
		defer func() {
			if p := recover(); p != nil { // it is reported when the page is read again
				a.err = fmt.Errorf("panic: %v", p)
			}
		}()
		a.page, a.err = r.split.Pages(retry.Watched(ctx, func() { a.alive.Store(time.Now().UnixNano()) }), round, cursor)
		a.ended = time.Now()
	}()
	r.ahead = a
}

// takeAhead returns the page that was read ahead; false if there is none for the cursor of the round, or it failed or
// is old, so that it is read now. Others may work while it is waited for.
func (r *run) takeAhead(ctx context.Context) (page Page, ok bool, err error) {
	a := r.ahead
	if a == nil {
		return page, false, nil
	}
	defer r.stopAhead()
	if !bytes.Equal(a.cursor, r.cursor) {
		return page, false, nil
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return page, false, context.Cause(ctx)
	case <-time.After(aheadPoll):
	}
	for !a.isDone() {
		if time.Since(time.Unix(0, a.alive.Load())) > aheadStall {
			return page, false, nil
		}
		if err := r.wait(ctx, aheadPoll); err != nil {
			return page, false, err
		}
	}
	return a.page, a.err == nil && time.Since(a.ended) < aheadAge, nil
}

func (a *pageAhead) isDone() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// stopAhead ends the reading of the next page, if there is any.
func (r *run) stopAhead() {
	if r.ahead == nil {
		return
	}
	r.ahead.cancel()
	<-r.ahead.done
	r.ahead = nil
	r.aheads.Release(1)
}
