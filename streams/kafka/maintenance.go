package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/retry"
)

const (
	maintainInterval = 10 * time.Second
	maintainTimeout  = 5 * time.Second      // of the wait for running tasks, and of Maintain; rebalances wait for it
	maintainPoll     = 5 * time.Millisecond // between checks whether tasks have ended
)

// prepare calls Prepare until it succeeds or Run must stop.
func (p *Pool) prepare() error {
	policy := retry.Policy{Wait: p.cfg.Retry.Wait, MaxWait: p.cfg.Retry.MaxWait}
	_, err := policy.Do(p.running, func() error { return p.cfg.Prepare(p.running) },
		func(attempt int, wait time.Duration, err error) {
			p.router.Log.Warn("retry prepare for assigned partitions", "attempt", attempt, "retry_after", wait, "err", err)
		})
	if err != nil {
		return fmt.Errorf("prepare for assigned partitions: %w", err)
	}
	return nil
}

// runMaintenance calls Maintain at each interval until ctx is done.
func (p *Pool) runMaintenance(ctx context.Context) {
	t := time.NewTicker(p.cfg.MaintainInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := p.maintain(ctx); err != nil && ctx.Err() == nil {
			p.router.Log.Warn("retry maintenance", "retry_after", p.cfg.MaintainInterval, "err", err)
		}
	}
}

// maintain calls Maintain, if the role is not paused and all running tasks end, with their outputs, within
// maintainTimeout.
func (p *Pool) maintain(ctx context.Context) error {
	f := p.fetchers[0]
	if p.kafka.Controls.Role(p.cfg.Role) || p.cfg.MaintainDue != nil && !p.cfg.MaintainDue() || !f.rebalanceMu.TryLock() {
		return nil
	}
	defer f.rebalanceMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, maintainTimeout)
	defer cancel()
	if len(f.owned(nil)) == 0 {
		return nil
	}
	name := p.router.Config.Topic(p.cfg.Topics[0])
	_, ends, err := core.Bounds(ctx, kadm.NewClient(f.cl), name)
	if err != nil {
		return fmt.Errorf("read the partitions of %s: %w", name, err)
	}
	p.sched.Block(true)
	defer p.sched.Block(false)
	for !p.sched.Idle() || !p.outputs.empty() {
		if retry.Sleep(ctx, maintainPoll) != nil {
			return errors.New("tasks are still running")
		}
	}
	n := len(ends[name])
	byKey := kgo.StickyKeyPartitioner(nil).ForTopic(name) // the partitioner of all producers
	return p.cfg.Maintain(ctx, func(key string) bool {
		id := byKey.Partition(&kgo.Record{Key: []byte(key)}, n)
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.assignments[core.Partition{Topic: name, ID: int32(id)}] != nil
	})
}
