package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousebench"
	"github.com/millrace/millrace/streams/kafka"
)

// A prober publishes messages that say when they were published, and gathers how long they
// took.
type prober struct {
	producer *kafka.Producer
	started  time.Time // what messages say is since then, by the monotonic clock

	mu   sync.Mutex // guards the rest
	took []float64  // milliseconds
	want int
	all  chan struct{} // closed when want are there
}

func newProber(g *testBroker) (*prober, error) {
	p, err := kafka.NewProducer(config(g.Addr()), "bench")
	if err != nil {
		return nil, err
	}
	return &prober{producer: p, started: time.Now()}, nil
}

// message returns one that is published now.
func (p *prober) message(account string, i int) schemas.Message {
	return command(schemas.DuplicationHigh, account, i, strconv.FormatInt(int64(time.Since(p.started)), 10))
}

// note takes the time since d was published. What is no probe has no cause.
func (p *prober) observe(d *schemas.Delivery) {
	at, err := strconv.ParseInt(d.Body.(*pb.DuplicationCommand).GetCause(), 10, 64)
	if err != nil {
		return
	}
	took := float64(time.Since(p.started)-time.Duration(at)) / float64(time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took = append(p.took, took)
	if len(p.took) == p.want {
		close(p.all)
	}
}

// probes are n messages, one each interval.
type probeLoad struct {
	n       int
	every   time.Duration
	account string
}

// publishers bounds the probes that are being published at a time.
const publishers = 256

// p99 publishes probes, whether or not those before have come, and returns the p99 of what
// they took.
func (p *prober) p99(ctx context.Context, o probeLoad) (float64, error) {
	p.mu.Lock()
	p.took, p.want, p.all = nil, o.n, make(chan struct{})
	all := p.all
	p.mu.Unlock()
	group, publishing := errgroup.WithContext(ctx)
	group.SetLimit(publishers)
	start := time.Now()
	for i := 0; i < o.n && publishing.Err() == nil; i++ {
		sleep(publishing, time.Until(start.Add(time.Duration(i)*o.every)))
		group.Go(func() error { return p.producer.Publish(publishing, p.message(o.account, i%keys)) })
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	select {
	case <-all:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return percentile(p.took, 99), nil
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// warm are the first probes: until they have come, the group has not formed.
func warmUp(account string) probeLoad {
	return probeLoad{n: 20, every: 10 * time.Millisecond, account: account}
}

// latency runs once against a Pool of the copier's, with a prober whose messages reach its
// handler.
func (r *runner) latency(
	ctx context.Context, pc kafka.PoolConfig, h func(context.Context, *prober, *schemas.Delivery), once func(context.Context, *testBroker, *prober) error,
) error {
	g, err := r.newBroker(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	p, err := newProber(g)
	if err != nil {
		return err
	}
	defer p.producer.Close()
	pool, err := newPool(g.Addr(), pc, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
		h(ctx, p, d)
		return nil, nil
	})
	if err != nil {
		return err
	}
	return runWhile(ctx, pool, func(ctx context.Context) error {
		if _, err := p.p99(ctx, warmUp(mainAccount)); err != nil {
			return err
		}
		return once(ctx, g, p)
	})
}

// sightings asks again and again until it has been answered with n different names, and returns how many seconds after it was
// sent each was first seen. A name that has not been sent yet is passed over.
func readLatencies(
	ctx context.Context, b *clickhousebench.Bench, question string, n int, sent func(name string) time.Time,
) (took []float64, err error) {
	seen, moved := map[string]bool{}, time.Now()
	for len(seen) < n && ctx.Err() == nil {
		names, err := b.Strings(ctx, question)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		for _, name := range names {
			if at := sent(name); !seen[name] && !at.IsZero() {
				seen[name], moved = true, now
				took = append(took, now.Sub(at).Seconds())
			}
		}
		if now.Sub(moved) > progressTimeout {
			return nil, fmt.Errorf("nothing moves for %v: %d of %d are on record", progressTimeout, len(seen), n)
		}
		sleep(ctx, 20*time.Millisecond)
	}
	return took, ctx.Err()
}
