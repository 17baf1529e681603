package bench

import (
	"context"
	"runtime"
	"time"

	"github.com/millrace/millrace/schemas"
)

// Heap is looked at until it has not grown for a while, the handlers being stuck.
const (
	heapInterval    = 200 * time.Millisecond
	heapStableReads = 10 // looks without growth
)

// behind has many records wait behind handlers that are stuck, and takes by how much the
// heap grows, garbage left out.
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
	pc.Drain = time.Millisecond // the stuck handlers would take all of the default
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

// highest looks until there is nothing higher for a while.
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

// heap is how many bytes are live.
func liveHeap() float64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return float64(s.HeapAlloc)
}
