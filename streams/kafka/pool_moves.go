package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// assigned makes partitions ours. No poll is held while it runs, as for its siblings.
func (p *Pool) assigned(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	each(parts, func(at partition) {
		ctx, cancel := context.WithCancelCause(p.ctx)
		p.shares[at] = &share{
			partition: at, ctx: ctx, cancel: cancel,
			tracker: newTracker(p.cfg.Window), idle: make(chan struct{}),
		}
	})
}

// revoked lets tasks at work end within Drain, cancels the rest, and commits.
func (p *Pool) revoked(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
	shares := p.owned(parts)
	if len(shares) == 0 {
		return
	}
	p.drain(shares, p.cfg.Drain)
	p.commit(p.ctx, cl)
	p.drop(shares, cl)
}

// lost cancels tasks at work and commits nothing.
func (p *Pool) lost(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
	p.drop(p.owned(parts), cl)
}

// owned returns the shares of parts, or all with nil.
func (p *Pool) owned(parts map[string][]int32) (shares []*share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if parts == nil {
		for _, sh := range p.shares {
			shares = append(shares, sh)
		}
	}
	each(parts, func(at partition) {
		if sh := p.shares[at]; sh != nil {
			shares = append(shares, sh)
		}
	})
	return shares
}

// drain has no more tasks of shares begun, waits for those at work, and cancels them
// after d. It returns how many are still at work after another poolGrace.
func (p *Pool) drain(shares []*share, d time.Duration) (stuck int) {
	for _, sh := range shares {
		p.sched.stop(sh)
	}
	for _, d := range []time.Duration{d, poolGrace} {
		if awaitIdle(shares, d) {
			return 0
		}
		for _, sh := range shares {
			sh.cancel(errRevoked)
		}
	}
	p.sched.mu.Lock()
	defer p.sched.mu.Unlock()
	for _, sh := range shares {
		if sh.busy > 0 {
			stuck += sh.busy
			p.router.log.Error("tasks ignore that they were cancelled", "topic", sh.topic, "partition", sh.id, "tasks", sh.busy)
		}
	}
	return stuck
}

func awaitIdle(shares []*share, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for _, sh := range shares {
		select {
		case <-sh.idle:
		case <-timer.C:
			return false
		}
	}
	return true
}

// drop kills shares: whatever of them ends later counts for nothing.
func (p *Pool) drop(shares []*share, cl *kgo.Client) {
	for _, sh := range shares {
		p.sched.stop(sh)
		sh.cancel(errRevoked)
		sh.mu.Lock()
		sh.tracker.kill()
		sh.mu.Unlock()
		p.mu.Lock()
		if p.shares[sh.partition] == sh {
			delete(p.shares, sh.partition)
		}
		p.mu.Unlock()
		p.commits.forget(sh.partition)
		cl.ResumeFetchPartitions(sh.one()) // a pause would outlive the assignment
	}
}

// tick commits every second.
func (p *Pool) tick(ctx context.Context) {
	t := time.NewTicker(poolCommit)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			p.commit(ctx, p.cl)
		}
	}
}

// commit commits what is done. What fails is committed the next time.
func (p *Pool) commit(ctx context.Context, cl *kgo.Client) {
	p.mu.Lock()
	for at, sh := range p.shares {
		if pos, ok := sh.take(); ok {
			p.commits.done(at, pos)
		}
	}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	err := p.commits.send(ctx, cl)
	switch {
	case err == nil || errors.Is(err, context.Canceled):
	case commitFatal(err):
		p.fail(err)
	default:
		p.router.log.Warn("will commit again", "err", err)
	}
}

// stop ends all tasks, and the sending of outputs, for at most Drain if ctx is what
// ends them and at once if it is an error, and commits.
func (p *Pool) stop(ctx context.Context, giveUp func()) (stuck int) {
	var d time.Duration
	if ctx.Err() != nil {
		d = p.cfg.Drain
	}
	timer := time.AfterFunc(d, giveUp)
	defer timer.Stop()
	shares := p.owned(nil)
	stuck = p.drain(shares, d)
	p.commit(p.ctx, p.cl)
	p.drop(shares, p.cl)
	return stuck
}
