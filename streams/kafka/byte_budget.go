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

func (b *byteBudget) add(n int64) {
	b.n.Add(n)
	if n < 0 {
		b.notify()
	}
}

// notify makes wait check its limit again.
func (b *byteBudget) notify() {
	select {
	case b.freed <- struct{}{}:
	default:
	}
}

// full reports whether limit is reached.
func (b *byteBudget) full(limit int64) bool { return b.n.Load() >= limit }

// wait returns when less than limit is in use, or ctx is done.
func (b *byteBudget) wait(ctx context.Context, limit func() int64) {
	for b.full(limit()) && ctx.Err() == nil {
		b.waitFreed(ctx)
	}
}

// waitFreed returns when bytes were freed, or ctx is done.
func (b *byteBudget) waitFreed(ctx context.Context) {
	select {
	case <-b.freed:
	case <-ctx.Done():
	}
}
