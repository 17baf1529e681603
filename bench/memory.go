package bench

import (
	"context"
	"runtime"
	"time"

	"github.com/millrace/millrace/schemas"
)

// The heap is read until it stops growing while the handlers block.
const (
	heapInterval    = 200 * time.Millisecond
	heapStableReads = 10 // consecutive reads without growth
)

// heapGrowth measures how much the live heap grows while many records wait behind blocked handlers.
func (r *runner) heapGrowth(ctx context.Context) (m measurement, err error) {
	g, err := r.newBroker(ctx)
	if err != nil {
		return m, err
	}
	defer g.close()
	record, err := commands(accounts()...)
	if err != nil {
		return m, err
	}
	if err := g.Fill(ctx, prefix, r.amounts.waiting, record); err != nil {
		return m, err
	}
	stuck := newStopwatch(1)
	pc := copierConfig(roundRole(0), consumedTopic)
	pc.DrainTimeout = time.Millisecond // blocked handlers would use up the whole default
	p, err := newPool(g.Addr(), pc, func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
		stuck.begin()
		stuck.end()
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if err != nil {
		return m, err
	}
	before := liveHeap()
	var most float64
	err = runWhile(ctx, p, func(ctx context.Context) error {
		if _, err := stuck.rate(ctx); err != nil {
			return err
		}
		most, err = peakValue(ctx, heapInterval, liveHeap)
		return err
	})
	m.ours = []float64{max(most-before, 0) / (1 << 20)}
	return m, err
}

// peakValue calls look at an interval until its value has not grown for heapStableReads calls, and returns the largest
// value.
func peakValue(ctx context.Context, every time.Duration, look func() float64) (most float64, err error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for same := 0; same < heapStableReads; same++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if now := look(); now > most {
			if now > most*1.01 {
				same = -1
			}
			most = now
		}
	}
	return most, nil
}

// liveHeap collects garbage and returns the bytes of live heap objects.
func liveHeap() float64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return float64(s.HeapAlloc)
}
