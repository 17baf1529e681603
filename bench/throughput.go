package bench

import (
	"context"
	"runtime"

	"github.com/millrace/millrace/bench/kafkabench"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
)

// rateBenchmark measures the rate at which n stored records are consumed. Each side uses a new consumer group in each
// round.
type rateBenchmark struct {
	n      int
	record func(i int) schemas.Record
	ours   func(ctx context.Context, g *testBroker, round int) (rate float64, err error)
	peer   func(ctx context.Context, g *testBroker, round int) (rate float64, err error) // nil: there is none
}

// run runs both sides in turns.
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

// ours returns our side: a Pool with the copier's configuration and the given number of workers.
func ours(n, workers int, work func(context.Context)) func(context.Context, *testBroker, int) (float64, error) {
	return func(ctx context.Context, g *testBroker, round int) (float64, error) {
		pc := copierConfig(roundRole(round), consumedTopic)
		pc.Workers = workers
		return consume(ctx, g.Addr(), pc, n, work)
	}
}

// noop measures the rate with a handler that does nothing.
func (r *runner) noop(ctx context.Context) (m measurement, err error) {
	record, err := commands(accounts()...)
	if err != nil {
		return m, err
	}
	n := r.amounts.noop
	side := ours(n, settings.Default().Roles.Copier.Workers, noWork)
	return rateBenchmark{n: n, record: record, ours: side}.run(ctx, r, r.amounts.rounds)
}

// workers is the number of workers in figures with a waiting handler.
const workers = 256

// tasks measures the rate of many workers with tasks of one millisecond.
func (r *runner) tasks(ctx context.Context) (m measurement, err error) {
	record, err := commands(accounts()...)
	if err != nil {
		return m, err
	}
	n := r.amounts.tasks
	return rateBenchmark{n: n, record: record, ours: ours(n, workers, sleepMillisecond)}.run(ctx, r, r.amounts.rounds)
}

// skewed measures the rate with a few frequent keys, many rare ones, and tasks of one millisecond.
//
// The tasks of the most frequent key, a tenth of all, run in sequence on both sides. With one goroutine per partition,
// all other tasks of that key's partition wait for them. No schedule of these keys can be more than 1.72 times as fast
// as that: the largest partition's share divided by the most frequent key's share.
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
