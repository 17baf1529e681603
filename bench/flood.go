package bench

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/schemas"
)

// publishLatency measures the p99 from just before a message is published until its handler is called, at 1,000
// messages per second.
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

// probeInterval is the time between two probes under a flood.
const probeInterval = 4 * time.Millisecond

// classes measures the p99 from just before a message of class high is published until its task of 1 ms is done, while
// a flood of class low is queued. The peer is the same measurement without the flood.
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

// tenants measures the same p99 for messages of one account while another account keeps a fixed number of messages
// queued ahead of them. The scheduler cannot see messages beyond the Pool's window in a partition.
func (r *runner) tenants(ctx context.Context) (m measurement, err error) {
	record, err := flood(schemas.DuplicationHigh, floodAccount)
	if err != nil {
		return m, err
	}
	ours := probeLoad{n: r.amounts.floodProbes, every: probeInterval, account: mainAccount}
	pc := copierConfig(schemas.RoleCopier, schemas.DuplicationHigh)
	for range r.amounts.fewRounds() {
		var handled atomic.Int64 // includes the probes, which are few
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
	return s.g.Fill(ctx, prefix, missing, func(i int) schemas.Record { return s.record(first + i) })
}
