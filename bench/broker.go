package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

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

// brokerGC keeps the heap small. The data is byte slices, which are cheap to mark, but fresh memory for each
// fetch would take CPU time from the benchmark.
const brokerGC = 50

// serveBroker runs three brokers on loopback that keep their data in memory.
func serveBroker(in io.Reader, out io.Writer) error {
	debug.SetGCPercent(brokerGC)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		return fmt.Errorf("start broker in memory: %w", err)
	}
	defer cluster.Close()
	return serve(cluster.ListenAddrs()[0], in, out)
}

// testBroker is an in-memory broker in its own process, with the topics of the catalogue.
type testBroker struct{ *server }

func (r *runner) newBroker(ctx context.Context) (*testBroker, error) {
	s, err := r.startServer(ctx, "broker", "")
	if err != nil {
		return nil, err
	}
	if err := admin.EnsureTopics(ctx, config(s.addr), admin.TopicOptions{Partitions: partitions}); err != nil {
		s.close()
		return nil, err
	}
	return &testBroker{s}, nil
}

const (
	fillLinger = 5 * time.Millisecond
	fillBuffer = 200_000 // unacknowledged records at a time
)

// fill writes n records and waits until all are acknowledged. Record i is record(i), and goes to its topic and to
// the partition of its key, in batches as Producers write them. One goroutine calls record.
func (g *testBroker) fill(ctx context.Context, n int, record func(i int) schemas.Record) error {
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(g.addr), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.WithCompressor(client.Compressor()),
		kgo.ProducerLinger(fillLinger),
		kgo.MaxBufferedRecords(fillBuffer),
	)
	if err != nil {
		return fmt.Errorf("fill topics: %w", err)
	}
	defer cl.Close()
	var (
		once  sync.Once
		first error // first error
	)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		r := record(i)
		rec := &kgo.Record{Topic: prefix + string(r.Topic), Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		cl.Produce(ctx, rec, func(_ *kgo.Record, err error) {
			if err != nil {
				once.Do(func() { first = err })
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return fmt.Errorf("fill topics: %w", err)
	}
	if first != nil {
		return fmt.Errorf("fill topics: %w", first)
	}
	return nil
}

// config returns the Kafka configuration for one process.
func config(broker string) client.Config {
	return client.Config{Brokers: []string{broker}, ClientID: "bench", Prefix: prefix, Log: slog.New(slog.DiscardHandler)}
}

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
