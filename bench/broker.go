package bench

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/bench/kafkabench"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/kafka/schedule"
	"github.com/millrace/millrace/streams/storage/limit"
)

// prefix is the prefix of all topics and groups.
const prefix = "bench."

// partitions is the number of partitions per topic, the default of an installation.
const partitions = 12

// testBroker is an in-memory broker in its own process, with the topics of the catalogue.
type testBroker struct {
	*kafkabench.Broker
}

func (r *runner) newBroker(ctx context.Context) (*testBroker, error) {
	return r.newBrokerWith(ctx, partitions)
}

func (r *runner) newBrokerWith(ctx context.Context, partitions int) (*testBroker, error) {
	b, err := kafkabench.StartBroker(ctx, r.cfg.Self, "broker")
	if err != nil {
		return nil, err
	}
	g := &testBroker{b}
	if err := admin.EnsureTopics(ctx, config(b.Addr()), admin.TopicOptions{Partitions: int32(partitions)}); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// close stops the broker. It ignores the error, which does not affect the results.
func (g *testBroker) close() { _ = g.Close() }

// config returns the Kafka configuration for one process.
func config(broker string) client.Config {
	return client.Config{Brokers: []string{broker}, ClientID: "bench", Prefix: prefix, Log: slog.New(slog.DiscardHandler)}
}

// roundRole returns the role of round n. Each round reads from the start in its own consumer group.
func roundRole(n int) schemas.Role { return schemas.Role(fmt.Sprintf("bench%d", n)) }

// service runs until its context is done. It returns earlier only with an error.
type service interface {
	Run(ctx context.Context) error
}

// runWhile runs p until f returns, and returns the first error of the two.
func runWhile(ctx context.Context, p service, f func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.Run(ctx) })
	group.Go(func() error {
		defer stop()
		return f(ctx)
	})
	return group.Wait()
}

// stopwatch measures the time from the begin of the first of n calls to the end of the n-th.
type stopwatch struct {
	n           int64
	begun, done atomic.Int64
	first       time.Time
	took        chan time.Duration
}

func newStopwatch(n int) *stopwatch {
	return &stopwatch{n: int64(n), took: make(chan time.Duration, 1)}
}

func (l *stopwatch) begin() {
	if l.begun.Add(1) == 1 {
		l.first = time.Now()
	}
}

// end is called once for each begin. The goroutine that ends the n-th call may read first: the n calls that ended
// happened after it was set.
func (l *stopwatch) end() { l.endN(1) }

// endN ends n calls.
func (l *stopwatch) endN(n int) {
	if done := l.done.Add(int64(n)); done >= l.n && done-int64(n) < l.n {
		l.took <- time.Since(l.first)
	}
}

// stallTimeout is how long a measurement may make no progress before it fails.
const stallTimeout = 30 * time.Second

// rate waits for the last call and returns the calls per second.
func (l *stopwatch) rate(ctx context.Context) (float64, error) {
	look := time.NewTicker(stallTimeout)
	defer look.Stop()
	for before := int64(-1); ; {
		select {
		case took := <-l.took:
			return float64(l.n) / took.Seconds(), nil
		case <-look.C:
			now := l.done.Load()
			if now == before {
				return 0, fmt.Errorf("no progress for %v at record %d of %d", stallTimeout, now, l.n)
			}
			before = now
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// copierConfig returns the configuration of the copier's Pool as cmd/app derives it from the default settings, for the
// given role. By default stores and accounts have no limits. All breakers are closed.
func copierConfig(role schemas.Role, topics ...schemas.Topic) kafka.PoolConfig {
	d := settings.Default().Roles
	breakers := map[string]*limit.Breaker{}
	for _, account := range accounts() {
		for _, store := range []string{source, destination} {
			breakers[schemas.Key(account, store)] = limit.NewBreaker(limit.Config{})
		}
	}
	return kafka.PoolConfig{
		Role: role, Topics: topics, Workers: d.Copier.Workers, Reserved: d.Copier.Reserved, Large: d.Copier.Large,
		HighWeight: d.HighWeight, Window: d.Copier.Window, Bytes: int64(d.Copier.Bytes),
		DrainTimeout: d.Drain, StallTimeout: d.Stall, MaxAttempts: d.Attempts,
		Slots: schedule.NewSlots(func(string, string) schedule.Limit { return schedule.Limit{} }),
		Admit: func(account, store string) error {
			if b, ok := breakers[schemas.Key(account, store)]; ok {
				return b.Admit()
			}
			return nil
		},
		Describe: func(b schemas.Body) kafka.Work {
			c := b.(*pb.DuplicationCommand)
			return kafka.Work{
				Key:     schemas.Key(c.GetAccount(), c.GetDestinationStore(), c.GetSpace(), c.GetItem()),
				Account: c.GetAccount(), Stores: [2]string{c.GetSourceStore(), c.GetDestinationStore()},
				Bytes: c.GetSize(),
			}
		},
	}
}

// newPool returns a Pool with metrics and controls, as in production. Traces are off, which is the default.
func newPool(broker string, pc kafka.PoolConfig, h kafka.Handler) (*kafka.Pool, error) {
	cfg := config(broker)
	cfg.Metrics, cfg.Controls = metrics.New(prometheus.NewRegistry()), new(client.Controls)
	return kafka.NewPool(cfg, pc, h)
}

// consume runs a Pool over n stored records with work as the handler, and returns the records per second.
func consume(
	ctx context.Context, broker string, pc kafka.PoolConfig, n int, work func(context.Context),
) (rate float64, err error) {
	l := newStopwatch(n)
	p, err := newPool(broker, pc, func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
		l.begin()
		work(ctx)
		l.end()
		return nil, nil
	})
	if err != nil {
		return 0, err
	}
	err = runWhile(ctx, p, func(ctx context.Context) error {
		rate, err = l.rate(ctx)
		return err
	})
	return rate, err
}

// noWork is the handler for figures that measure only the runtime.
func noWork(context.Context) {}

// sleepMillisecond is a handler that waits for one millisecond, as if for a store.
func sleepMillisecond(ctx context.Context) {
	t := time.NewTimer(time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
