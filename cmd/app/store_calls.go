package app

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/lazy"
)

// askAgainAfter is the age of a call that hangs after which its store is asked once more. It doubles with each that
// hangs, so that a store has few of them.
const askAgainAfter = 10 * time.Minute

// storeCalls asks stores whether tasks can use them. Calls that hang delay no other store.
type storeCalls struct {
	usable func(context.Context, StoreName) error
	// current returns what usable asks.
	current func(StoreName) *lazy.Store
	newest  map[StoreName]*storeCall
}

// A storeCall is the newest call that asks a store.
type storeCall struct {
	store    *lazy.Store
	begun    time.Time
	answer   chan error
	returned atomic.Bool
	under    *atomic.Int32 // the calls of the store that have not returned
}

// ask returns why tasks cannot use each store; nil if they can. Only answers to calls that it makes count.
func (s *storeCalls) ask(ctx context.Context, names []StoreName) []error {
	ctx, cancel := context.WithTimeoutCause(ctx, storeAnswerTimeout, retry.Unavailable(errNoAnswer))
	defer cancel()
	maps.DeleteFunc(s.newest, func(n StoreName, _ *storeCall) bool { return !slices.Contains(names, n) })
	calls := make([]*storeCall, len(names))
	for n, name := range names {
		calls[n] = s.call(ctx, name)
	}
	answers := make([]error, len(names))
	for n, call := range calls {
		if call == nil {
			answers[n] = retry.Unavailable(errNoAnswer)
			continue
		}
		select {
		case answers[n] = <-call.answer:
			continue
		case <-ctx.Done():
		}
		select {
		case answers[n] = <-call.answer: // it came while another store was waited for
		default:
			answers[n] = context.Cause(ctx)
		}
	}
	return answers
}

// call begins a call of a store. It returns nil if an earlier one hangs.
func (s *storeCalls) call(ctx context.Context, name StoreName) *storeCall {
	if s.newest == nil {
		s.newest = map[StoreName]*storeCall{}
	}
	next := &storeCall{store: s.current(name), begun: time.Now(), answer: make(chan error, 1), under: new(atomic.Int32)}
	if last := s.newest[name]; last != nil && last.store == next.store {
		hanging := max(1, last.under.Load())
		if !last.returned.Load() && next.begun.Sub(last.begun) < askAgainAfter<<(hanging-1) {
			return nil
		}
		next.under = last.under
	}
	s.newest[name] = next
	next.under.Add(1)
	go func() { // one that hangs for good stays until the process ends
		err := s.usable(ctx, name)
		next.returned.Store(true)
		next.under.Add(-1)
		next.answer <- err
	}()
	return next
}
