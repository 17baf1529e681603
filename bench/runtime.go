package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
)

// watermill is the file name of the peer's program, as built by make peers.
const watermill = "watermill-kafka"

// runtime returns the figures of the stream runtime.
func (r *runner) runtime() ([]figure, error) {
	a := r.amounts
	return []figure{
		{fmt.Sprintf("pool: no-op over %s messages, a process a side", count(a.peerRecords)), "records/s",
			watermill, ratioAtLeast(2.5), r.compareWatermill},
		{fmt.Sprintf("pool: p99 of class high, tasks of 1 ms, %s of class low behind", count(a.flood)), "ms",
			"the same, idle", ratioAtMost(2), r.classes},
		{fmt.Sprintf("pool: p99 of a tenant, tasks of 1 ms, %s of another's in front", count(a.sustained)), "ms",
			"the same, idle", ratioAtMost(3), r.tenants},
	}, nil
}

// Accounts. Probe messages belong to the first, floods that delay them to the second.
const (
	mainAccount  = "acme"
	floodAccount = "globex"
)

func accounts() []string { return []string{mainAccount, floodAccount, "hooli", "initech"} }

// Store ids, the same in every account.
const (
	source      = "1"
	destination = "2"
)

// keys is the number of distinct message keys in every figure.
const keys = 10_000

// encoded encodes one message per key and returns a function that cycles through them.
func encoded(message func(i int) schemas.Message) (func(i int) schemas.Record, error) {
	recs := make([]schemas.Record, keys)
	for k := range recs {
		var err error
		if recs[k], err = schemas.Encode(message(k)); err != nil {
			return nil, err
		}
	}
	return func(i int) schemas.Record { return recs[i%keys] }, nil
}

func item(i int) string { return fmt.Sprintf("item-%07d", i) }

func epoch() *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: 1_700_000_000} }

// command returns a DuplicationCommand for the copier's Pool. The caller may put any string into cause.
func command(topic schemas.Topic, account string, i int, cause string) schemas.Message {
	c := &pb.DuplicationCommand{
		Account: account, Space: "maps", Item: item(i), SourceStore: source, DestinationStore: destination,
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Cause: cause, Time: epoch(),
	}
	c.Id = schemas.ID("command", account, c.GetItem(), cause)
	return schemas.Message{Topic: topic, Body: c}
}

// flood returns commands of one account about other items than the probes. Records of the same key wait for each other
// regardless of their class.
func flood(topic schemas.Topic, account string) (func(i int) schemas.Record, error) {
	return encoded(func(i int) schemas.Message { return command(topic, account, keys+i, "") })
}

// consumeSide consumes a topic with a handler that does nothing. The time runs from the first call of the handler to
// the end of the last.
type consumeSide struct {
	Broker, Group string
	Records       int
}

func (s *consumeSide) run(ctx context.Context) (res sideResult, err error) {
	var (
		begun, done atomic.Int64
		first       time.Time
	)
	took := make(chan time.Duration, 1)
	p, err := newPool(s.Broker, copierConfig(schemas.Role(s.Group), schemas.DuplicationHigh),
		func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
			if begun.Add(1) == 1 {
				first = time.Now()
			}
			if done.Add(1) == int64(s.Records) { // all others have ended: first is set
				took <- time.Since(first)
			}
			return nil, nil
		})
	if err != nil {
		return res, err
	}
	err = runWhile(ctx, p, func(ctx context.Context) error {
		select {
		case all := <-took:
			res = sideResult{Records: int64(s.Records), Seconds: all.Seconds()}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return res, err
}

// compareWatermill runs our side and watermill's router in turns, each in its own process and consumer group. Our side
// decodes and schedules messages; the peer passes on their bytes.
func (r *runner) compareWatermill(ctx context.Context) (m measurement, err error) {
	all := accounts()
	record, err := encoded(func(i int) schemas.Message {
		return command(schemas.DuplicationHigh, all[i%len(all)], i, "")
	})
	if err != nil {
		return m, err
	}
	n := r.amounts.peerRecords
	program := filepath.Join(r.cfg.Peers, watermill)
	g, err := r.newBroker(ctx)
	if err != nil {
		return m, err
	}
	defer g.close()
	if err := g.fill(ctx, n, record); err != nil {
		return m, err
	}
	ours := func(round int) (float64, error) {
		res, _, err := r.runSide(ctx, "consume", &consumeSide{g.addr, fmt.Sprint("bench", round), n})
		return res.rate(), err
	}
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
		return inTurns(r.amounts.rounds, "make peers", ours, nil)
	}
	return inTurns(r.amounts.rounds, "", ours, func(round int) (float64, error) {
		_, line, err := runTimed(ctx, nil, program, "--broker", g.addr, "--topic", prefix+string(schemas.DuplicationHigh),
			"--group", fmt.Sprint(prefix, "peer.bench", round), "--records", strconv.Itoa(n))
		if err != nil {
			return 0, err
		}
		res, err := parseResult(watermill, line)
		return res.rate(), err
	})
}

// prober publishes messages that carry their publish time, and collects their latencies.
type prober struct {
	producer *kafka.Producer
	started  time.Time // messages carry the time since then, by the monotonic clock

	mu   sync.Mutex // guards the rest
	took []float64  // milliseconds
	want int
	all  chan struct{} // closed when took has want values
}

func newProber(broker string) (*prober, error) {
	p, err := kafka.NewProducer(config(broker), "bench")
	if err != nil {
		return nil, err
	}
	return &prober{producer: p, started: time.Now()}, nil
}

// message returns probe i with the current time.
func (p *prober) message(i int) schemas.Message {
	return command(schemas.DuplicationHigh, mainAccount, i, strconv.FormatInt(int64(time.Since(p.started)), 10))
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

// publishers is the maximum number of probes that are being published at the same time.
const publishers = 256

// probeInterval is the time between two probes.
const probeInterval = 4 * time.Millisecond

// p99 publishes n probes at their interval, without waiting for earlier ones, and returns the p99 of their latencies in
// milliseconds.
func (p *prober) p99(ctx context.Context, n int) (float64, error) {
	p.mu.Lock()
	p.took, p.want, p.all = nil, n, make(chan struct{})
	all := p.all
	p.mu.Unlock()
	group, publishing := errgroup.WithContext(ctx)
	group.SetLimit(publishers)
	start := time.Now()
	for i := 0; i < n && publishing.Err() == nil; i++ {
		sleep(publishing, time.Until(start.Add(time.Duration(i)*probeInterval)))
		group.Go(func() error { return p.producer.Publish(publishing, p.message(i%keys)) })
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

// beside measures the p99 from just before a message of class high is published until its task of 1 ms is done, first
// on an idle Pool, which is the peer, and then while load runs. load calls probe when its messages are queued; handled
// counts the messages that the Pool has handled.
func (r *runner) beside(
	ctx context.Context, topics []schemas.Topic,
	load func(ctx context.Context, g *testBroker, handled *atomic.Int64, probe func(context.Context) error) error,
) (m measurement, err error) {
	once := func() error {
		g, err := r.newBroker(ctx)
		if err != nil {
			return err
		}
		defer g.close()
		p, err := newProber(g.addr)
		if err != nil {
			return err
		}
		defer p.producer.Close()
		var handled atomic.Int64
		pool, err := newPool(g.addr, copierConfig(schemas.RoleCopier, topics...),
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				sleep(ctx, time.Millisecond) // as if for a store
				p.observe(d)
				handled.Add(1)
				return nil, nil
			})
		if err != nil {
			return err
		}
		return runWhile(ctx, pool, func(ctx context.Context) error {
			if _, err := p.p99(ctx, 50); err != nil { // then the consumer group has formed
				return err
			}
			idle, err := p.p99(ctx, r.amounts.probes)
			if err != nil {
				return err
			}
			m.peers = append(m.peers, idle)
			return load(ctx, g, &handled, func(ctx context.Context) error {
				ms, err := p.p99(ctx, r.amounts.probes)
				m.ours = append(m.ours, ms)
				return err
			})
		})
	}
	for range r.amounts.rounds {
		if err := once(); err != nil {
			return m, err
		}
	}
	return m, nil
}

// classes measures class high while a flood of class low is queued.
func (r *runner) classes(ctx context.Context) (measurement, error) {
	record, err := flood(schemas.DuplicationLow, mainAccount)
	if err != nil {
		return measurement{}, err
	}
	return r.beside(ctx, []schemas.Topic{schemas.DuplicationHigh, schemas.DuplicationLow},
		func(ctx context.Context, g *testBroker, _ *atomic.Int64, probe func(context.Context) error) error {
			if err := g.fill(ctx, r.amounts.flood, record); err != nil {
				return err
			}
			return probe(ctx)
		})
}

// tenants measures one account while another keeps a fixed number of messages queued ahead of it. The scheduler cannot
// see messages beyond the Pool's window in a partition.
func (r *runner) tenants(ctx context.Context) (measurement, error) {
	record, err := flood(schemas.DuplicationHigh, floodAccount)
	if err != nil {
		return measurement{}, err
	}
	return r.beside(ctx, []schemas.Topic{schemas.DuplicationHigh},
		func(ctx context.Context, g *testBroker, handled *atomic.Int64, probe func(context.Context) error) error {
			stand := &sustainedFlood{g: g, record: record, handled: handled, n: r.amounts.sustained,
				sent: int(handled.Load())} // the first probes are not of the flood
			if err := stand.topUp(ctx); err != nil {
				return err
			}
			return runWhile(ctx, stand, probe)
		})
}

// sustainedFlood keeps n records queued ahead of the probes.
type sustainedFlood struct {
	g       *testBroker
	record  func(i int) schemas.Record
	handled *atomic.Int64
	n       int
	sent    int
}

// topUpInterval is the time between two refills of a flood.
const topUpInterval = 20 * time.Millisecond

// Run refills the flood until ctx is done.
func (s *sustainedFlood) Run(ctx context.Context) error {
	tick := time.NewTicker(topUpInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := s.topUp(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// topUp publishes as many records as were handled since the last call.
func (s *sustainedFlood) topUp(ctx context.Context) error {
	missing := s.n - (s.sent - int(s.handled.Load()))
	if missing <= 0 {
		return nil
	}
	first := s.sent
	s.sent += missing
	return s.g.fill(ctx, missing, func(i int) schemas.Record { return s.record(first + i) })
}
