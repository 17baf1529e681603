package kafka

import (
	"context"
	"sync/atomic"
)

// A scale weighs what is in memory. Any number may add; one may wait.
type scale struct {
	n     atomic.Int64
	moved chan struct{}
}

func newScale() *scale { return &scale{moved: make(chan struct{}, 1)} }

func (s *scale) add(n int64) {
	s.n.Add(n)
	if n < 0 {
		s.stir()
	}
}

// stir has wait look at its limit.
func (s *scale) stir() {
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// full reports whether there is limit on the scale, or more.
func (s *scale) full(limit int64) bool { return s.n.Load() >= limit }

// wait returns when there is less than limit on the scale, or ctx is done.
func (s *scale) wait(ctx context.Context, limit func() int64) {
	for s.full(limit()) && ctx.Err() == nil {
		s.less(ctx)
	}
}

// less returns when something was taken off the scale, or ctx is done.
func (s *scale) less(ctx context.Context) {
	select {
	case <-s.moved:
	case <-ctx.Done():
	}
}
