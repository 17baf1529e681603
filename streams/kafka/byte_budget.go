package kafka

import (
	"context"
	"sync/atomic"
)

// A scale weighs what is in memory. Any number may add; one may wait.
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

// stir has wait look at its limit.
func (s *byteBudget) notify() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// full reports whether there is limit on the scale, or more.
func (s *byteBudget) full(limit int64) bool { return s.n.Load() >= limit }

// wait returns when there is less than limit on the scale, or ctx is done.
func (s *byteBudget) wait(ctx context.Context, limit func() int64) {
	for s.full(limit()) && ctx.Err() == nil {
		s.waitFreed(ctx)
	}
}

// less returns when something was taken off the scale, or ctx is done.
func (s *byteBudget) waitFreed(ctx context.Context) {
	select {
	case <-s.freed:
	case <-ctx.Done():
	}
}
