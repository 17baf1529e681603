package bench

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkabench"
	"github.com/millrace/millrace/streams/storage/limit"
)

// prefix is that of all topics and groups.
const prefix = "bench."

// partitions of each topic: those of an installation where nobody chose.
const partitions = 12

// A rig is a broker of its own, with the catalogue's topics.
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
	if err := kafka.EnsureTopics(ctx, config(b.Addr()), kafka.TopicOptions{Partitions: int32(partitions)}); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// close ends the broker. How that went is no matter to the figures.
func (g *testBroker) close() { _ = g.Close() }

// config is what the parts of one process share.
func config(broker string) kafka.Config {
	return kafka.Config{Brokers: []string{broker}, ClientID: "bench", Prefix: prefix, Log: slog.New(slog.DiscardHandler)}
}

// bench is the role of the nth round: each has a group of its own, and reads from the start.
func roundRole(n int) schemas.Role { return schemas.Role(fmt.Sprintf("bench%d", n)) }

// A part runs until its context is done; it ends earlier only with an error.
type service interface {
	Run(ctx context.Context) error
}

// while runs p for as long as f takes, and returns the error of the first that fails.
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

// A lap is the time from the begin of the first of n calls to the end of the last.
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

// end is called as often as begin. Whoever ends the nth call knows of the first: it has
// seen n calls end.
func (l *stopwatch) end() { l.endN(1) }

// ended is end n times.
func (l *stopwatch) endN(n int) {
	if done := l.done.Add(int64(n)); done >= l.n && done-int64(n) < l.n {
		l.took <- time.Since(l.first)
	}
}

// stall is how long a lap may stand still: records that never come are an error.
const stallTimeout = 30 * time.Second

// rate waits for the last call, and returns calls per second.
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
				return 0, fmt.Errorf("stands still for %v at record %d of %d", stallTimeout, now, l.n)
			}
			before = now
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// copier returns the configuration of the copier's Pool as cmd/app makes it from the default settings, with another
// role's name. No store or account has a limit by default, and no breaker is open.
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
		Drain: d.Drain, Stall: d.Stall, MaxAttempts: d.Attempts,
		Slots: kafka.NewSlots(func(string, string) kafka.Limit { return kafka.Limit{} }),
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

// newPool returns a Pool with metrics and controls, as the product has them, and without traces, which are off by
// default.
func newPool(broker string, pc kafka.PoolConfig, h kafka.Handler) (*kafka.Pool, error) {
	cfg := config(broker)
	cfg.Metrics, cfg.Controls = kafka.NewMetrics(prometheus.NewRegistry()), new(kafka.Controls)
	return kafka.NewPool(cfg, pc, h)
}

// consume runs a Pool over n records that are there, with work in the handler, and returns
// records per second.
func consume(ctx context.Context, broker string, pc kafka.PoolConfig, n int, work func(context.Context)) (rate float64, err error) {
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

// nothing is what a handler does whose runtime is measured.
func noWork(context.Context) {}

// rest is what a handler does that waits for a store, for a millisecond.
func sleepMillisecond(ctx context.Context) {
	t := time.NewTimer(time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
