package kafka

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
)

// drain has no more tasks of shares begun, waits for those at work, and cancels them
// after d; those that are parked it cancels at once, as what they wait for may be about to end too. Those that are
// still at work after another poolGrace it leaves behind.
func (p *Pool) drain(assignments []*assignment, d time.Duration) {
	for _, part := range assignments {
		part.stop()
	}
	p.interrupt(assignments, true, errRevoked)
	for _, d := range []time.Duration{d, cancelGrace} {
		if awaitIdle(assignments, d) {
			return
		}
		for _, part := range assignments {
			part.cancelled.Store(true)
		}
		p.interrupt(assignments, false, errRevoked)
	}
	for _, part := range assignments {
		if n := int(part.running.Load()); n > 0 {
			p.router.log.Error("tasks ignore that they were cancelled", "topic", part.topic, "partition", part.id, "tasks", n)
		}
	}
}

func awaitIdle(assignments []*assignment, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for _, part := range assignments {
		select {
		case <-part.idle:
		case <-timer.C:
			return false
		}
	}
	return true
}

// interrupt cancels the tasks of shares that are at work, or only those that are parked.
func (p *Pool) interrupt(assignments []*assignment, onlyParked bool, cause error) {
	for _, w := range p.liveWorkers() {
		w.interrupt(assignments, onlyParked, cause)
	}
}

func (p *Pool) liveWorkers() []*worker {
	p.sched.mu.Lock()
	defer p.sched.mu.Unlock()
	all := make([]*worker, 0, len(p.sched.workers))
	for w := range p.sched.workers {
		all = append(all, w)
	}
	return all
}

// atWork returns the offsets of in's tasks that handlers have, by share. What is parked does nothing that could end
// the process.
func (p *Pool) runningOffsets(in *fetcher) map[*assignment]runningOffsets {
	at, now := map[*assignment]runningOffsets{}, p.clock.Load()
	for _, w := range p.liveWorkers() {
		w.mu.Lock()
		if t := w.task; t != nil && t.part.fetcher == in && !w.parked {
			all := at[t.part]
			if young := now-w.began < int64(suspectFor); !w.progressed.Load() || young && !t.part.stopping.Load() {
				all.suspect = append(all.suspect, t.rec.Offset)
			} else {
				all.progressing = append(all.progressing, t.rec.Offset)
			}
			at[t.part] = all
		}
		w.mu.Unlock()
	}
	return at
}

// soonAfter is how long after its begin a task may be the cause of its process's death, although it has made progress. A
// copy of a day outlives more deaths than a task may be the cause of: of neighbours, of machines.
const suspectFor = 30 * time.Second

// stop ends all tasks, and the sending of outputs, for at most Drain if ctx is what
// ends them and at once if it is an error, and commits.
func (p *Pool) stop(ctx context.Context, giveUp func()) {
	var d time.Duration
	if ctx.Err() != nil {
		d = p.cfg.Drain
	}
	timer := time.AfterFunc(d, giveUp)
	defer timer.Stop()
	var all []*assignment
	for _, in := range p.fetchers {
		all = append(all, in.owned(nil)...)
	}
	for _, part := range all {
		part.stop()
	}
	draining, drained := context.WithCancel(p.ctx)
	var each sync.WaitGroup
	for _, in := range p.fetchers {
		each.Go(func() { in.commitWhileDraining(draining) })
	}
	p.drain(all, d)
	drained()
	each.Wait()
	for _, in := range p.fetchers {
		each.Go(func() {
			_ = in.commit(p.ctx) // has said what is wrong; what is not committed is done again
			in.discard(in.owned(nil))
		})
	}
	each.Wait()
}

// leave waits for the workers to end, for at most d, and returns how many tasks keep them: those of
// partitions that were lost long ago are among them.
func (p *Pool) waitWorkers(d time.Duration) (stuck int) {
	ended := make(chan struct{})
	go func() {
		p.workers.Wait()
		close(ended)
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ended:
		return 0
	case <-timer.C:
	}
	for _, w := range p.liveWorkers() {
		w.mu.Lock()
		if w.task != nil {
			stuck++
		}
		w.mu.Unlock()
	}
	return max(stuck, 1)
}

// watch keeps the Pool's time, and looks after the tasks at work until ctx is done.
func (p *Pool) watchdog(ctx context.Context) {
	began := time.Now()
	tick := time.NewTicker(clockStep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Since(began)
		p.clock.Store(int64(now))
		for _, w := range p.liveWorkers() {
			if err := w.checkProgress(int64(now)); err != nil {
				p.fetchers[0].metrics.ignoring(1)
				p.fail(err)
				return
			}
		}
		p.sched.releaseUnused()
		p.shedPaused()
	}
}

// balance takes what is paused out of the way where it keeps the rest from being read. Who waits for slots
// does as it is told, and is not stuck: those who have them are watched.
func (p *Pool) shedPaused() {
	for in := range p.sched.waitingForSlots() {
		in.metrics.progressed()
	}
	held := p.sched.pausedCounts()
	for _, in := range p.fetchers {
		in.metrics.holding(held[in] - in.pausedTasks)
		in.pausedTasks = held[in]
	}
	if _, waits := schemas.Lookup(schemas.Again(p.cfg.Role)); !waits || !p.kafka.Controls.anyPaused() {
		return
	}
	if slices.ContainsFunc(p.fetchers, (*fetcher).underPressure) {
		p.sched.startShedding()
	} else {
		p.sched.stopShedding()
	}
}

// deadline is how long a task may be at work. One of unknown size is cancelled only when it makes no progress.
func (p *Pool) deadline(t *task) time.Duration {
	if t.cost <= quantum {
		return math.MaxInt64 / 2
	}
	const ages = 1 << 32 // seconds
	return p.deadlineBase + time.Duration(min((t.cost-quantum)/p.deadlineRate, ages))*time.Second
}

// grace is how long a task that was cancelled may take to end before Run does.
func (p *Pool) cancelTimeout() time.Duration { return max(p.cfg.Drain, time.Minute) }

// obey follows the controls until ctx is done.
func (p *Pool) applyControls(ctx context.Context) {
	changed, cancel := p.kafka.Controls.Watch()
	defer cancel()
	for {
		paused := p.kafka.Controls.Role(p.cfg.Role)
		allowed := p.cfg.Workers
		if n, ok := p.kafka.Controls.workers(p.cfg.Role); ok {
			allowed = n
		}
		p.sched.mu.Lock()
		missing := allowed - p.sched.mainWorkers
		p.sched.mu.Unlock()
		p.startWorkers(max(missing, 0), 0)
		p.sched.setControls(paused, allowed, p.paused)
		for _, in := range p.fetchers {
			in.setPaused(paused)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// paused says whether work is paused, though its role is not.
func (p *Pool) paused(w Work) bool {
	c := p.kafka.Controls
	if !c.anyPaused() {
		return false
	}
	for _, store := range w.Stores {
		if c.Paused(p.cfg.Role, w.Account, store) {
			return true
		}
	}
	return false
}

// gate returns why t must not be handled now.
func (p *Pool) admit(t *task) error {
	w := &t.flow.work
	if p.kafka.Controls.anyPaused() && p.paused(*w) {
		return errWorkPaused
	}
	if p.cfg.Admit == nil {
		return nil
	}
	for _, store := range w.Stores {
		if store == "" {
			continue
		}
		if err := p.cfg.Admit(w.Account, store); err != nil {
			return err
		}
	}
	return nil
}

// oldest says since when the oldest task of in is at work, and from when the oldest message is that is not
// done.
func (p *Pool) oldest(in *fetcher) (o oldest) {
	now := p.clock.Load()
	for _, w := range p.liveWorkers() {
		w.mu.Lock()
		if t := w.task; t != nil && t.part.fetcher == in && !w.parked {
			if since := time.Now().Add(-time.Duration(now - w.began)); o.task.IsZero() || since.Before(o.task) {
				o.task = since
			}
		}
		w.mu.Unlock()
	}
	for _, part := range in.owned(nil) {
		if at, ok := part.oldest(); ok && (o.message.IsZero() || at.Before(o.message)) {
			o.message = at
		}
	}
	return o
}
