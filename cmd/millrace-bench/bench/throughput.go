package bench

import (
	"context"
	"runtime"

	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/kafkabench"
)

// A contest is about the rate at which n records that are there are consumed. Each side
// has a group of its own in each round.
type rateBenchmark struct {
	n      int
	record func(i int) schemas.Record
	ours   func(ctx context.Context, g *testBroker, round int) (rate float64, err error)
	peer   func(ctx context.Context, g *testBroker, round int) (rate float64, err error) // nil: no peer
}

// run has the sides take turns.
func (c rateBenchmark) run(ctx context.Context, r *runner, rounds int) (m measurement, err error) {
	g, err := r.newBroker(ctx)
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
		if c.peer == nil {
			continue
		}
		runtime.GC()
		if rate, err = c.peer(ctx, g, i); err != nil {
			return m, err
		}
		m.peers = append(m.peers, rate)
	}
	return m, nil
}

// ours returns our side: the copier's Pool with a number of workers, in the group of its round.
func ours(n, workers int, work func(context.Context)) func(context.Context, *testBroker, int) (float64, error) {
	return func(ctx context.Context, g *testBroker, round int) (float64, error) {
		pc := copierConfig(roundRole(round), consumedTopic)
		pc.Workers = workers
		return consume(ctx, g.Addr(), pc, n, work)
	}
}

// noop has a handler that does nothing.
func (r *runner) noop(ctx context.Context) (m measurement, err error) {
	record, err := commands(accounts()...)
	if err != nil {
		return m, err
	}
	n := r.amounts.noop
	return rateBenchmark{n: n, record: record, ours: ours(n, settings.Default().Roles.Copier.Workers, noWork)}.run(ctx, r, r.amounts.rounds)
}

// workers is the number of workers of the Pools whose tasks wait for something.
const workers = 256

// tasks has tasks of a millisecond and many workers.
func (r *runner) tasks(ctx context.Context) (m measurement, err error) {
	record, err := commands(accounts()...)
	if err != nil {
		return m, err
	}
	n := r.amounts.tasks
	return rateBenchmark{n: n, record: record, ours: ours(n, workers, sleepMillisecond)}.run(ctx, r, r.amounts.rounds)
}

// skewed has a few frequent keys and many rare ones, and tasks of a millisecond.
// The tasks of the most frequent key, a tenth of all, run one after the other on either side; with a
// goroutine per partition all others of its partition wait for them. With these keys no order of tasks can be
// more than 1.72 times as fast as that: the largest partition's share by the most frequent key's.
func (r *runner) skewed(ctx context.Context) (m measurement, err error) {
	record, err := commands(mainAccount)
	if err != nil {
		return m, err
	}
	n := r.amounts.skewed
	drawn := zipf(n)
	return rateBenchmark{
		n: n, record: func(i int) schemas.Record { return record(drawn[i]) },
		ours: ours(n, workers, sleepMillisecond),
		peer: func(ctx context.Context, g *testBroker, round int) (rate float64, err error) {
			l := newStopwatch(n)
			peer := kafkabench.PartitionConsumer{
				Broker: g.Addr(), Topic: prefix + string(consumedTopic), Group: prefix + "peer." + string(roundRole(round)),
				Handle: func(ctx context.Context, _, _ []byte) { l.begin(); sleepMillisecond(ctx); l.end() },
			}
			err = runWhile(ctx, peer, func(ctx context.Context) error {
				rate, err = l.rate(ctx)
				return err
			})
			return rate, err
		},
	}.run(ctx, r, r.amounts.fewRounds())
}
