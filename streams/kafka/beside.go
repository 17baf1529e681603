package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/retry"
)

const (
	poolBeside  = 10 * time.Second
	besideLimit = 5 * time.Second      // of the wait for tasks at work to end, and of Beside: no partition moves meanwhile
	besideLook  = 5 * time.Millisecond // between two looks whether they have
)

// beside calls Prepare after each assignment, and Beside every so often, until ctx is done.
func (p *Pool) beside(ctx context.Context) error {
	var due <-chan time.Time
	if p.cfg.Beside != nil {
		t := time.NewTicker(p.cfg.Every)
		defer t.Stop()
		due = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.prepareDue:
			if err := p.prepare(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("prepare for the partitions that were assigned: %w", err)
			}
		case <-due:
			if err := p.besides(ctx); err != nil && ctx.Err() == nil {
				p.router.log.Warn("will be done again beside the messages", "wait", p.cfg.Every, "err", err)
			}
		}
	}
}

// prepare calls Prepare until it succeeds. Then tasks are begun, unless partitions were assigned meanwhile.
func (p *Pool) prepare(ctx context.Context) error {
	p.sched.mu.Lock()
	n := p.sched.unprepared
	p.sched.mu.Unlock()
	policy := retry.Policy{Wait: p.cfg.Retry.Wait, MaxWait: p.cfg.Retry.MaxWait}
	_, err := policy.Do(ctx, func() error { return p.cfg.Prepare(ctx) }, func(attempt int, wait time.Duration, err error) {
		p.router.log.Warn("prepare again for the partitions that were assigned", "attempt", attempt, "wait", wait, "err", err)
	})
	if err == nil {
		p.sched.bar(func() { p.sched.unprepared -= n })
	}
	return err
}

// assigned has no task begun before Prepare is called.
func (p *Pool) assigned() {
	if p.cfg.Prepare == nil {
		return
	}
	p.sched.bar(func() { p.sched.unprepared++ })
	select {
	case p.prepareDue <- struct{}{}:
	default:
	}
}

// besides calls Beside, if the role is not paused and the tasks at work, with their outputs, come to an end soon.
func (p *Pool) besides(ctx context.Context) error {
	f := p.fetchers[0]
	if p.kafka.Controls.Role(p.cfg.Role) || p.cfg.Needed != nil && !p.cfg.Needed() || !f.rebalanceMu.TryLock() {
		return nil
	}
	defer f.rebalanceMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, besideLimit)
	defer cancel()
	if len(f.owned(nil)) == 0 || !p.sched.prepared() {
		return nil
	}
	name := p.router.cfg.topic(p.cfg.Topics[0])
	_, ends, err := bounds(ctx, kadm.NewClient(f.cl), name)
	if err != nil {
		return fmt.Errorf("read the partitions of %s: %w", name, err)
	}
	p.sched.bar(func() { p.sched.quiesced = true })
	defer p.sched.bar(func() { p.sched.quiesced = false })
	for !p.sched.resting() || !p.outputs.empty() {
		if retry.Sleep(ctx, besideLook) != nil {
			return errors.New("tasks are at work")
		}
	}
	n := len(ends[name])
	byKey := kgo.StickyKeyPartitioner(nil).ForTopic(name) // as producers do
	return p.cfg.Beside(ctx, func(key string) bool {
		id := byKey.Partition(&kgo.Record{Key: []byte(key)}, n)
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.assignments[partition{name, int32(id)}] != nil
	})
}

// bar changes why no task is begun.
func (s *scheduler) bar(change func()) {
	s.mu.Lock()
	defer s.unlock()
	change()
	for i := range s.workReady {
		s.workReady[i].Broadcast()
	}
}

// barred reports whether no task is begun, of any class.
func (s *scheduler) barred() bool { return s.halted || s.quiesced || s.unprepared > 0 }

// prepared reports whether Prepare was called since partitions were assigned.
func (s *scheduler) prepared() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unprepared == 0
}

// resting reports whether no task is at work.
func (s *scheduler) resting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.classes {
		if s.classes[i].running > 0 {
			return false
		}
	}
	return true
}
