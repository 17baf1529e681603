package kafka

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/kafka/schedule"
)

// drain stops the start of tasks of assignments and waits for the running ones. It cancels parked tasks at
// once, because what they wait for may be about to stop too, and the others after d. It stops waiting
// cancelGrace later.
func (p *Pool) drain(assignments []*assignment, d time.Duration) {
	for _, part := range assignments {
		part.gate.Close()
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
		if n := part.gate.Running(); n > 0 {
			p.router.Log.Error("abandon tasks that ignore cancellation", "topic", part.Topic, "partition", part.ID, "tasks", n)
		}
	}
}

func awaitIdle(assignments []*assignment, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for _, part := range assignments {
		select {
		case <-part.gate.Idle():
		case <-timer.C:
			return false
		}
	}
	return true
}

// interrupt cancels the tasks of assignments that are running or parked, or only the parked ones.
func (p *Pool) interrupt(assignments []*assignment, onlyParked bool, cause error) {
	for _, w := range p.liveWorkers() {
		w.interrupt(assignments, onlyParked, cause)
	}
}

func (p *Pool) liveWorkers() []*worker {
	p.liveMu.Lock()
	defer p.liveMu.Unlock()
	return slices.Collect(maps.Keys(p.live))
}

// runningOffsets returns the offsets of f's running tasks by assignment, and whether each task is suspect: it started
// a short time ago, or has made no progress since. Parked tasks are left out: they do
// nothing that could kill the process.
func (p *Pool) runningOffsets(f *fetcher) map[*assignment]map[int64]bool {
	at, now := map[*assignment]map[int64]bool{}, p.clock.Load()
	for _, w := range p.liveWorkers() {
		w.mu.Lock()
		if t := w.task; t != nil && t.part.fetcher == f && !w.parked {
			if at[t.part] == nil {
				at[t.part] = map[int64]bool{}
			}
			recent := now-w.began < int64(suspectFor)
			at[t.part][t.Raw.Offset] = !w.progressed.Load() || recent && !t.part.gate.Closed()
		}
		w.mu.Unlock()
	}
	return at
}

// suspectFor is how long after its start a task counts as a possible cause of its process's death even if it
// has made progress. A task that runs for a day outlives more deaths than maxDeaths that have other causes,
// such as a neighbour or the machine.
const suspectFor = 30 * time.Second

// stop ends all tasks and the publishing of outputs, and commits. It allows DrainTimeout if ctx is done, and no time
// if an error stopped Run. giveUp ends the publishing, endCommits the commit loops.
func (p *Pool) stop(ctx context.Context, giveUp, endCommits func()) {
	var d time.Duration
	if ctx.Err() != nil {
		d = p.cfg.DrainTimeout
	}
	timer := time.AfterFunc(d, giveUp)
	defer timer.Stop()
	var all []*assignment
	for _, f := range p.fetchers {
		all = append(all, f.owned(nil)...)
	}
	for _, part := range all {
		part.gate.Close()
	}
	for _, f := range p.fetchers {
		f.requestCommit() // and each second: the process may be killed before the running tasks have ended
	}
	p.drain(all, d)
	endCommits()
	var each sync.WaitGroup
	for _, f := range p.fetchers {
		each.Go(func() {
			_ = f.commit(p.ctx) // commit has logged its error; uncommitted work is repeated
			f.discard(f.owned(nil))
		})
	}
	each.Wait()
}

// waitWorkers waits at most d for the workers to return. It returns the number of tasks that still run,
// including those of partitions that were lost long ago.
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

// watchdog advances the Pool's clock and checks the running tasks until ctx is done.
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
				p.fetchers[0].metrics.AddStuck(1)
				p.fail(err)
				return
			}
		}
		p.sched.ReleaseUnused()
		p.shedPaused()
	}
}

// shedPaused moves paused tasks to the delay lanes while they keep other messages from being read. Tasks that
// wait for slots count as progress: the watchdog checks the tasks that hold the slots.
func (p *Pool) shedPaused() {
	p.sched.EachWaiting(func(t *schedule.Task) { p.metricsOf(taskOf(t)).MarkProgress() })
	held := map[*fetcher]int{}
	p.sched.EachPaused(func(t *schedule.Task) { held[taskOf(t).part.fetcher]++ })
	for _, f := range p.fetchers {
		f.metrics.AddHeld(held[f] - f.pausedTasks)
		f.pausedTasks = held[f]
	}
	if _, hasAgain := schemas.Lookup(schemas.Again(p.cfg.Role)); !hasAgain || !p.kafka.Controls.AnyPaused() {
		return
	}
	if slices.ContainsFunc(p.fetchers, (*fetcher).underPressure) {
		p.sched.StartShedding()
	} else {
		p.sched.StopShedding()
	}
}

// deadline is how long a task may run. A task of unknown size has no deadline; it is cancelled only if it
// makes no progress.
func (p *Pool) deadline(t *task) time.Duration {
	if t.WorkBytes() == 0 {
		return math.MaxInt64 / 2
	}
	const ages = 1 << 32 // seconds; avoids an overflow
	return p.deadlineBase + time.Duration(min(t.WorkBytes()/p.deadlineRate, ages))*time.Second
}

// cancelTimeout is how long a cancelled task may take to return before Run stops with an error.
func (p *Pool) cancelTimeout() time.Duration { return max(p.cfg.DrainTimeout, time.Minute) }

// applyControls applies pauses and worker counts until ctx is done.
func (p *Pool) applyControls(ctx context.Context) {
	changed, cancel := p.kafka.Controls.Watch()
	defer cancel()
	started := p.cfg.Workers // without those that replace workers with a parked task
	for {
		paused := p.kafka.Controls.Role(p.cfg.Role)
		allowed := p.cfg.Workers
		if n, ok := p.kafka.Controls.Workers(p.cfg.Role); ok {
			allowed = n
		}
		p.startWorkers(allowed-started, schedule.MainWorker)
		started = max(started, allowed)
		p.sched.SetControls(paused, allowed)
		for _, f := range p.fetchers {
			f.setPaused(paused)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// paused reports whether a flow is paused by its account or stores.
func (p *Pool) paused(id schedule.FlowID) bool {
	c := p.kafka.Controls
	if !c.AnyPaused() {
		return false
	}
	for _, store := range id.Stores {
		if c.Paused(p.cfg.Role, id.Account, store) {
			return true
		}
	}
	return false
}

// admit returns an error if t must not be handled now.
func (p *Pool) admit(t *task) error {
	id := t.Flow()
	if p.kafka.Controls.AnyPaused() && p.paused(id) {
		return core.ErrWorkPaused
	}
	if p.cfg.Admit == nil {
		return nil
	}
	for _, store := range id.Stores {
		if store == "" {
			continue
		}
		if err := p.cfg.Admit(id.Account, store); err != nil {
			return err
		}
	}
	return nil
}

// oldest returns when the oldest running task of f started, and the time of its oldest unfinished message.
func (p *Pool) oldest(f *fetcher) (o metrics.Oldest) {
	now := p.clock.Load()
	for _, w := range p.liveWorkers() {
		w.mu.Lock()
		if t := w.task; t != nil && t.part.fetcher == f && !w.parked {
			if since := time.Now().Add(-time.Duration(now - w.began)); o.Task.IsZero() || since.Before(o.Task) {
				o.Task = since
			}
		}
		w.mu.Unlock()
	}
	for _, part := range f.owned(nil) {
		if at, ok := part.oldest(); ok && (o.Message.IsZero() || at.Before(o.Message)) {
			o.Message = at
		}
	}
	return o
}
