package bench

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/schemas"
)

// added is the p99 of the time from before a message is published until its handler is
// called, at 1,000 messages a second.
func (r *runner) publishLatency(ctx context.Context) (m measurement, err error) {
	for range r.amounts.fewRounds() {
		err := r.latency(ctx, copierConfig(schemas.RoleCopier, schemas.DuplicationHigh),
			func(_ context.Context, p *prober, d *schemas.Delivery) { p.observe(d) },
			func(ctx context.Context, _ *testBroker, p *prober) error {
				ms, err := p.p99(ctx, probeLoad{n: r.amounts.probes, every: time.Millisecond, account: mainAccount})
				m.ours = append(m.ours, ms)
				return err
			})
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// urgentEvery is the time between two messages whose latency under a flood is taken.
const probeInterval = 4 * time.Millisecond

// classes is the p99 of the time from before a message of the class high is published until
// a task of 1 ms is done, with the low class's flood behind; the peer is the same without.
func (r *runner) classes(ctx context.Context) (m measurement, err error) {
	record, err := flood(schemas.DuplicationLow, mainAccount)
	if err != nil {
		return m, err
	}
	urgent := probeLoad{n: r.amounts.floodProbes, every: probeInterval, account: mainAccount}
	pc := copierConfig(schemas.RoleCopier, schemas.DuplicationHigh, schemas.DuplicationLow)
	for range r.amounts.fewRounds() {
		err := r.latency(ctx, pc, sleepAndObserve, func(ctx context.Context, g *testBroker, p *prober) error {
			idle, err := p.p99(ctx, urgent)
			if err != nil {
				return err
			}
			if err := g.Fill(ctx, prefix, r.amounts.flood, record); err != nil {
				return err
			}
			flooded, err := p.p99(ctx, urgent)
			m.ours, m.peers = append(m.ours, flooded), append(m.peers, idle)
			return err
		})
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

func sleepAndObserve(ctx context.Context, p *prober, d *schemas.Delivery) {
	sleepMillisecond(ctx)
	p.observe(d)
}

// tenants is the same for a message of one account, while another keeps a number of its own
// in front: what stands in a partition beyond the Pool's window no scheduler sees.
func (r *runner) tenants(ctx context.Context) (m measurement, err error) {
	record, err := flood(schemas.DuplicationHigh, floodAccount)
	if err != nil {
		return m, err
	}
	ours := probeLoad{n: r.amounts.floodProbes, every: probeInterval, account: mainAccount}
	pc := copierConfig(schemas.RoleCopier, schemas.DuplicationHigh)
	for range r.amounts.fewRounds() {
		var handled atomic.Int64 // with the probes, which are few
		h := func(ctx context.Context, p *prober, d *schemas.Delivery) {
			sleepAndObserve(ctx, p, d)
			handled.Add(1)
		}
		err := r.latency(ctx, pc, h, func(ctx context.Context, g *testBroker, p *prober) error {
			idle, err := p.p99(ctx, ours)
			if err != nil {
				return err
			}
			stand := &sustainedFlood{g: g, record: record, handled: &handled, n: r.amounts.sustained}
			if err := stand.topUp(ctx); err != nil {
				return err
			}
			var flooded float64
			err = runWhile(ctx, stand, func(ctx context.Context) (err error) {
				flooded, err = p.p99(ctx, ours)
				return err
			})
			m.ours, m.peers = append(m.ours, flooded), append(m.peers, idle)
			return err
		})
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// A standing flood keeps n records in front of everybody else's.
type sustainedFlood struct {
	g       *testBroker
	record  func(i int) schemas.Record
	handled *atomic.Int64
	n       int
	sent    int
}

// topEvery is the time between two looks at how much of a flood is left.
const topUpInterval = 20 * time.Millisecond

// Run tops up until ctx is done.
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

// top publishes what is missing.
func (s *sustainedFlood) topUp(ctx context.Context) error {
	missing := s.n - (s.sent - int(s.handled.Load()))
	if missing <= 0 {
		return nil
	}
	first := s.sent
	s.sent += missing
	return s.g.Fill(ctx, prefix, missing, func(i int) schemas.Record { return s.record(first + i) })
}
