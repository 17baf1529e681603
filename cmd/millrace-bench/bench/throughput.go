package bench

import (
	"context"
	"runtime"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkabench"
)

// A contest is about the rate at which n records that are there are consumed. Each side
// has a group of its own in each round.
type contest struct {
	n      int
	record func(i int) schemas.Record
	ours   func(ctx context.Context, g *rig, round int) (rate float64, err error)
	theirs func(ctx context.Context, g *rig, round int) (rate float64, err error) // nil: no peer
}

// run has the sides take turns.
func (c contest) run(ctx context.Context, r *runner, rounds int) (m measurement, err error) {
	g, err := r.newRig(ctx)
	if err != nil {
		return m, err
	}
	defer g.close()
	if err := g.Fill(ctx, prefix, c.n, c.record); err != nil {
		return m, err
	}
	for i := range rounds {
		runtime.GC()
		rate, err := c.ours(ctx, g, i)
		if err != nil {
			return m, err
		}
		m.ours = append(m.ours, rate)
		if c.theirs == nil {
			continue
		}
		runtime.GC()
		if rate, err = c.theirs(ctx, g, i); err != nil {
			return m, err
		}
		m.peers = append(m.peers, rate)
	}
	return m, nil
}

// ours returns our side: a Pool over changes, in the group of its round.
func ours(n int, pc kafka.PoolConfig, work func(context.Context)) func(context.Context, *rig, int) (float64, error) {
	return func(ctx context.Context, g *rig, round int) (float64, error) {
		pc.Role, pc.Topics = bench(round), []schemas.Topic{schemas.Changes}
		return consume(ctx, g.Addr(), pc, n, work)
	}
}

// noop has a handler that does nothing, and records that nobody decodes.
func (r *runner) noop(ctx context.Context) (measurement, error) {
	n := r.amounts.raw
	return contest{n: n, record: raw(), ours: ours(n, kafka.PoolConfig{Raw: true}, nothing)}.run(ctx, r, r.amounts.rounds)
}

// decoded has a handler that does nothing, and whole messages.
func (r *runner) decoded(ctx context.Context) (m measurement, err error) {
	record, err := whole()
	if err != nil {
		return m, err
	}
	n := r.amounts.whole
	return contest{n: n, record: record, ours: ours(n, kafka.PoolConfig{}, nothing)}.run(ctx, r, r.amounts.rounds)
}

// workers are those of the Pools whose tasks wait for something: as many as may wait at a time,
// whatever the number of partitions.
const workers = 256

// tasks has tasks of a millisecond and many workers.
func (r *runner) tasks(ctx context.Context) (m measurement, err error) {
	record, err := whole()
	if err != nil {
		return m, err
	}
	n := r.amounts.tasks
	return contest{n: n, record: record, ours: ours(n, kafka.PoolConfig{Workers: workers}, rest)}.run(ctx, r, r.amounts.rounds)
}

// skewed has some keys that come often and many that come seldom, and tasks of a millisecond.
// The tasks of the most frequent key, a tenth of all, take turns on either side; with a
// goroutine per partition all others of its partition wait for them. So no order of tasks can be more than
// 1.72 times as fast as that, where these keys fall: the largest partition's share by the most frequent key's.
func (r *runner) skewed(ctx context.Context) (m measurement, err error) {
	record, err := whole()
	if err != nil {
		return m, err
	}
	n := r.amounts.skewed
	drawn := zipf(n)
	return contest{
		n: n, record: func(i int) schemas.Record { return record(drawn[i]) },
		ours: ours(n, kafka.PoolConfig{Workers: workers, Raw: true}, rest),
		theirs: func(ctx context.Context, g *rig, round int) (rate float64, err error) {
			l := newLap(n)
			peer := kafkabench.PartitionConsumer{
				Broker: g.Addr(), Topic: prefix + string(schemas.Changes), Group: prefix + "peer." + string(bench(round)),
				Handle: func(ctx context.Context, _, _ []byte) { l.begin(); rest(ctx); l.end() },
			}
			err = while(ctx, peer, func(ctx context.Context) error {
				rate, err = l.rate(ctx)
				return err
			})
			return rate, err
		},
	}.run(ctx, r, r.amounts.long())
}
