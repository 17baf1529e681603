package app

import (
	"context"
	"maps"
	"slices"
	"sync"
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
	hanging  int // the calls before it that had not returned
	answer   chan error
	returned atomic.Bool
}

// ask returns why tasks cannot use each store; nil if they can. Only answers to calls that it makes count.
func (s *storeCalls) ask(ctx context.Context, names []StoreName) []error {
	ctx, cancel := context.WithTimeoutCause(ctx, storeAnswerTimeout, retry.Unavailable(errNoAnswer))
	defer cancel()
	maps.DeleteFunc(s.newest, func(n StoreName, _ *storeCall) bool { return !slices.Contains(names, n) })
	answers := make([]error, len(names))
	var asking sync.WaitGroup
	for n, name := range names {
		call := s.call(ctx, name)
		if call == nil {
			answers[n] = retry.Unavailable(errNoAnswer)
			continue
		}
		asking.Go(func() {
			select {
			case answers[n] = <-call.answer:
			case <-ctx.Done():
				answers[n] = context.Cause(ctx)
			}
		})
	}
	asking.Wait()
	return answers
}

// call begins a call of a store. It returns nil if an earlier one hangs.
func (s *storeCalls) call(ctx context.Context, name StoreName) *storeCall {
	if s.newest == nil {
		s.newest = map[StoreName]*storeCall{}
	}
	next := &storeCall{store: s.current(name), begun: time.Now(), answer: make(chan error, 1)}
	if last := s.newest[name]; last != nil && last.store == next.store && !last.returned.Load() {
		if next.begun.Sub(last.begun) < askAgainAfter<<last.hanging {
			return nil
		}
		next.hanging = last.hanging + 1
	}
	s.newest[name] = next
	go func() { // one that hangs for good stays until the process ends
		err := s.usable(ctx, name)
		next.returned.Store(true)
		next.answer <- err
	}()
	return next
}
