package bench

import (
	"context"
	"runtime"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
)

// tracking is what the bookkeeping of one record takes, in nanoseconds.
func (r *runner) tracking(context.Context) (m measurement, err error) {
	t := kafka.NewTracking()
	t.Bursts(r.amounts.bursts / 10) // warm
	for range 5 {
		start := time.Now()
		t.Bursts(r.amounts.bursts)
		m.ours = append(m.ours, float64(time.Since(start).Nanoseconds())/float64(r.amounts.bursts*kafka.TrackingBurst))
	}
	return m, nil
}

// trackingAllocs is what the bookkeeping of one record allocates.
func (r *runner) trackingAllocs(context.Context) (m measurement, err error) {
	t := kafka.NewTracking()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	t.Bursts(r.amounts.bursts)
	runtime.ReadMemStats(&after)
	// The rest of the process may allocate a handful meanwhile.
	m.ours = []float64{float64((after.Mallocs - before.Mallocs) / uint64(r.amounts.bursts*kafka.TrackingBurst))}
	return m, nil
}

// Heap is looked at until it has not grown for a while, the handlers being stuck.
const (
	heapEvery = 200 * time.Millisecond
	heapSame  = 10 // looks without growth
)

// behind has many records wait behind handlers that are stuck, and takes by how much the
// heap grows, garbage left out.
func (r *runner) behind(ctx context.Context) (m measurement, err error) {
	g, err := r.newRig(ctx)
	if err != nil {
		return m, err
	}
	defer g.close()
	if err := g.Fill(ctx, prefix, r.amounts.behind, raw()); err != nil {
		return m, err
	}
	stuck := newLap(1)
	p, err := kafka.NewPool(config(g.Addr()), kafka.PoolConfig{
		Role: bench(0), Topics: []schemas.Topic{schemas.Changes}, Raw: true, Drain: time.Millisecond,
	}, func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
		stuck.begin()
		stuck.end()
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if err != nil {
		return m, err
	}
	before := heap()
	var most float64
	err = while(ctx, p, func(ctx context.Context) error {
		if _, err := stuck.rate(ctx); err != nil {
			return err
		}
		most, err = highest(ctx, heapEvery, heap)
		return err
	})
	m.ours = []float64{max(most-before, 0) / (1 << 20)}
	return m, err
}

// highest looks until there is nothing higher for a while.
func highest(ctx context.Context, every time.Duration, look func() float64) (most float64, err error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for same := 0; same < heapSame; same++ {
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
func heap() float64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return float64(s.HeapAlloc)
}
