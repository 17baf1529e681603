package kafka

import (
	"context"
	"sync/atomic"
)

// A byteBudget counts bytes in memory. Any number of goroutines may add; only one may wait.
type byteBudget struct {
	n     atomic.Int64
	freed chan struct{}
}

func newByteBudget() *byteBudget { return &byteBudget{freed: make(chan struct{}, 1)} }

func (s *byteBudget) add(n int64) {
	s.n.Add(n)
	if n < 0 {
		s.notify()
	}
}

// notify makes wait check its limit again.
func (s *byteBudget) notify() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// full reports whether limit is reached.
func (s *byteBudget) full(limit int64) bool { return s.n.Load() >= limit }

// wait returns when less than limit is in use, or ctx is done.
func (s *byteBudget) wait(ctx context.Context, limit func() int64) {
	for s.full(limit()) && ctx.Err() == nil {
		s.waitFreed(ctx)
	}
}

// waitFreed returns when bytes were freed, or ctx is done.
func (s *byteBudget) waitFreed(ctx context.Context) {
	select {
	case <-s.freed:
	case <-ctx.Done():
	}
}
