package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/bench/clickhousebench"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
)

// prober publishes messages that carry their publish time, and collects their latencies.
type prober struct {
	producer *kafka.Producer
	started  time.Time // messages carry the time since then, by the monotonic clock

	mu   sync.Mutex // guards the rest
	took []float64  // milliseconds
	want int
	all  chan struct{} // closed when took has want values
}

func newProber(g *testBroker) (*prober, error) {
	p, err := kafka.NewProducer(config(g.Addr()), "bench")
	if err != nil {
		return nil, err
	}
	return &prober{producer: p, started: time.Now()}, nil
}

// message returns probe i with the current time.
func (p *prober) message(account string, i int) schemas.Message {
	return command(schemas.DuplicationHigh, account, i, strconv.FormatInt(int64(time.Since(p.started)), 10))
}

// observe records the latency of d. It ignores messages that are not probes: they have no cause.
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

// probeLoad is n messages of one account, one per interval.
type probeLoad struct {
	n       int
	every   time.Duration
	account string
}

// publishers is the maximum number of probes that are being published at the same time.
const publishers = 256

// p99 publishes probes at their interval, without waiting for earlier ones, and returns the p99 of their latencies in
// milliseconds.
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

// warmUp returns the first probes. By the time they are handled, the consumer group has formed.
func warmUp(account string) probeLoad {
	return probeLoad{n: 20, every: 10 * time.Millisecond, account: account}
}

// latency starts a broker, a Pool and a prober and calls once. The Pool passes each message to h.
func (r *runner) latency(
	ctx context.Context, pc kafka.PoolConfig, h func(context.Context, *prober, *schemas.Delivery),
	once func(context.Context, *testBroker, *prober) error,
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

// readLatencies repeats a query until it has returned n different names, and returns for each the seconds from
// sent(name) until it was first returned. It skips names with a zero sent time.
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
			return nil, fmt.Errorf("no progress for %v: %d of %d are recorded", progressTimeout, len(seen), n)
		}
		sleep(ctx, 20*time.Millisecond)
	}
	return took, ctx.Err()
}
