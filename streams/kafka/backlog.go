package kafka

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/schedule"
	"github.com/millrace/millrace/streams/retry"
)

// A backlog is more messages of one account, or for one store, than fit into a window, with long tasks. If it
// stayed where it is, messages of others behind it would not be read for hours. So messages that fill a
// window for a second are moved to the backlog topic of the class, which is read like the other topics, with
// its own windows. There the messages of a flow use a third of the partitions, unless the key must determine
// the partition. A message behind a million others waits for seconds. Moves of class low are slower, since class
// high waits for the processors and the broker: there it waits for minutes.
const (
	stuckAfter        = time.Second      // a window that is full for this long is stuck
	divertWindow      = 10 * time.Second // a flow stops being moved if few messages arrive within it:
	fewArrivals       = 64               // less than 1/fewArrivals of a window are few
	minAccountPart    = 256              // an account with less than 1/minAccountPart of a window is not moved
	backlogMemoryPart = 2                // messages of the backlog topic may use 1/backlogMemoryPart of Bytes
	maxUnackedMoves   = 1 << 20          // bytes of unacknowledged moves: other requests to a broker queue behind them
	maxHeld           = 30 * time.Second // for which a move holds polls, and with them a rebalance
	lowMoveRate       = 5 << 20          // bytes a second that are moved of class low,
	lowMoveBurst      = 512 << 10        // and bytes after which to wait for that
)

// moveBacklogs moves backlogs to the backlog topic until ctx is done.
func (f *fetcher) moveBacklogs(ctx context.Context) {
	t := time.NewTicker(stuckAfter / 4)
	defer t.Stop()
	var fullSince time.Time              // since when memory has been full; zero: it is not
	acked, since := int64(0), time.Now() // the last count of acknowledged moves, and its time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		f.diversion.expire(now, f.p.window/fewArrivals)
		f.limitBacklogFetch()
		switch {
		case !f.memory.full(f.memoryLimit()):
			fullSince = time.Time{}
		case fullSince.IsZero():
			fullSince = now
		}
		if n := f.diversion.acked.Load(); n > acked || f.diversion.unacked.Load() == 0 {
			acked, since = n, now
		}
		stalled := now.Sub(since) >= stuckAfter
		f.diversion.stalled.Store(stalled)
		if !stalled && !f.diversion.denied.Load() {
			f.moveHeaviest(ctx, !fullSince.IsZero() && now.Sub(fullSince) >= stuckAfter)
		}
		for _, part := range f.owned(nil) { // also if nothing can be moved
			if part.stuckFor(stuckAfter) {
				part.resumeStuck()
			}
		}
	}
}

// moveHeaviest moves the messages that keep partitions from being read: those that fill the windows or are
// too many stragglers or, with memoryFull, those that use the most memory.
func (f *fetcher) moveHeaviest(ctx context.Context, memoryFull bool) {
	stuck := map[*assignment]bool{}
	for _, part := range f.owned(nil) {
		if !part.backlog && !part.gate.Closed() && (memoryFull || part.stuckFor(stuckAfter) || part.manyStragglers()) {
			stuck[part] = true
		}
	}
	if len(stuck) == 0 {
		return
	}
	flows := map[schedule.FlowID]bool{}
	counts, bytes := f.queuedByFlow(stuck)
	if memoryFull {
		for _, id := range heaviest(bytes, f.p.cfg.Bytes/4, f.p.cfg.Bytes/minAccountPart) {
			flows[id] = true
		}
	} else {
		for part, tasks := range counts {
			keep, least := int64(min(maxStragglers, part.window()/2)/2), max(2, int64(f.p.window/minAccountPart))
			for _, id := range heaviest(tasks, keep, least) {
				flows[id] = true
			}
		}
	}
	if len(flows) > 0 {
		f.moveFlows(ctx, stuck, flows)
	}
}

// queuedByFlow returns the number of tasks of assignments that have not started, and the size of their records, by
// flow. It leaves out tasks that are paused, that belong to no known account, or that queue behind a started task.
func (f *fetcher) queuedByFlow(
	assignments map[*assignment]bool,
) (counts map[*assignment]map[schedule.FlowID]int64, bytes map[schedule.FlowID]int64) {
	counts, bytes = map[*assignment]map[schedule.FlowID]int64{}, map[schedule.FlowID]int64{}
	f.p.sched.EachQueued(func(first, queued *schedule.Task) {
		t, id := taskOf(queued), queued.Flow()
		if !assignments[t.part] || t.unmovable || id.Account == "" || taskOf(first).started() {
			return
		}
		if counts[t.part] == nil {
			counts[t.part] = map[schedule.FlowID]int64{}
		}
		counts[t.part][id]++
		bytes[id] += t.bytes()
	})
	return counts, bytes
}

// moveFlows moves the tasks of flows in assignments that have not started, and then the ones that arrive later.
// First it moves the tasks of one key: if the brokers do not accept them, the others stay where they are.
// Then it moves the rest in parts, each after the part before is acknowledged. Tasks of a key are moved
// together, which keeps their order.
func (f *fetcher) moveFlows(ctx context.Context, assignments map[*assignment]bool, flows map[schedule.FlowID]bool) {
	// Messages that were running in deaths stay, because the metadata of their own partition records that.
	deaths := map[*assignment]map[int64]int{}
	for part := range assignments {
		deaths[part] = part.deathCounts()
	}
	backlog := func(first, queued *schedule.Task) bool {
		t := taskOf(queued)
		return assignments[t.part] && flows[t.Flow()] && !taskOf(first).started() && !t.unmovable &&
			deaths[t.part][t.Raw.Offset] == 0
	}
	f.queueLock <- struct{}{} // messages polled meanwhile are handled or moved after these
	defer func() { <-f.queueLock }()
	began := time.Now()
	acked := f.diversion.acked.Load()
	if moved, _ := f.moveKeys(backlog, 1); moved == 0 || !f.awaitAcked(ctx, acked+moved) {
		return
	}
	for {
		acked := f.diversion.acked.Load()
		moved, all := f.moveKeys(backlog, math.MaxInt)
		if all || time.Since(began) >= maxHeld { // the next call moves the others
			break
		}
		if moved == 0 || !f.awaitAcked(ctx, acked+moved) || !f.pace(ctx) {
			return
		}
	}
	for id := range flows {
		if f.diversion.open(id) {
			f.p.router.Log.Info("move backlog", "account", id.Account, "stores", id.Stores, "to", f.backlogTopic)
		}
	}
}

// moveKeys moves the tasks for which backlog returns true of at most so many keys, until too much is unacknowledged.
// It returns the number of tasks, and whether these were all.
func (f *fetcher) moveKeys(backlog func(first, t *schedule.Task) bool, most int) (moved int64, all bool) {
	var (
		key   *schedule.Task            // the first task of the key whose tasks are being moved
		tasks = map[*assignment]int64{} // that are moved
		bytes int64
	)
	all = true
	removed := f.p.sched.RemoveQueued(func(first, queued *schedule.Task) (remove, stop bool) {
		if !backlog(first, queued) {
			return false, false
		}
		t := taskOf(queued)
		if key != first {
			if most == 0 || f.moveLimitReached(t.part, tasks[t.part], bytes) {
				all = false
				return false, true
			}
			key = first
			most--
		}
		tasks[t.part]++
		bytes += t.bytes()
		return true, false
	})
	for _, r := range removed {
		f.move(taskOf(r.Task), f.diversion.slotOf(r.Task.Flow()))
	}
	return int64(len(removed)), all
}

// moveLimitReached reports whether so many messages of a, or so many bytes in total, are being moved that no
// more may be sent before some are acknowledged. The caller is about to move tasks of a, and bytes in total.
func (f *fetcher) moveLimitReached(a *assignment, tasks, bytes int64) bool {
	return a.unackedMoves.Load()+tasks >= int64(a.window()/4) ||
		f.diversion.unackedBytes.Load()+bytes >= min(f.p.cfg.Bytes/4, maxUnackedMoves)
}

// awaitAcked waits at most a second until n messages of the fetcher have been acknowledged.
func (f *fetcher) awaitAcked(ctx context.Context, n int64) bool {
	return waitUntil(ctx, func() bool { return f.diversion.acked.Load() >= n })
}

// awaitMoveRoom waits at most a second until one more message of a may be moved.
func (f *fetcher) awaitMoveRoom(a *assignment) bool {
	ok := waitUntil(f.p.outputs.ctx, func() bool { return !f.moveLimitReached(a, 0, 0) })
	if !ok {
		f.diversion.stalled.Store(true)
	}
	return ok
}

// waitUntil polls done for at most a second, and reports whether it returned true.
func waitUntil(ctx context.Context, done func() bool) bool {
	for range 200 {
		if done() {
			return true
		}
		if retry.Sleep(ctx, stuckAfter/200) != nil {
			return false
		}
	}
	return false
}

// requeue returns tasks to the scheduler, so that they are handled from their own partition.
func (f *fetcher) requeue(tasks ...*task) {
	entries := make([]schedule.Entry, len(tasks))
	for i, t := range tasks {
		entries[i] = f.p.describe(t)
	}
	f.p.sched.Add(entries)
	if slices.ContainsFunc(tasks, func(t *task) bool { return t.part.gate.Closed() }) { // discard may have run before
		f.p.removeStopping()
	}
}

// moveDiverted moves the tasks of flows that are being moved, and returns the others.
func (f *fetcher) moveDiverted(entries []schedule.Entry) []schedule.Entry {
	if !f.diversion.active.Load() || f.diversion.denied.Load() {
		return entries
	}
	return slices.DeleteFunc(entries, func(e schedule.Entry) bool {
		t := taskOf(e.Task)
		if t.part.backlog || t.unmovable {
			return false
		}
		slot, ok := f.diversion.routeOf(e.Flow)
		if !ok || !f.awaitMoveRoom(t.part) {
			return false
		}
		f.move(t, slot)
		f.pace(f.p.outputs.ctx)
		return true
	})
}

// pace limits moves of class low to lowMoveRate: it waits as long as the bytes moved since its last wait may take. It
// returns false if ctx ends before.
func (f *fetcher) pace(ctx context.Context) bool {
	n := f.diversion.unpaced
	if f.class != schemas.Low || n < lowMoveBurst {
		return true
	}
	f.diversion.unpaced = 0
	return retry.Sleep(ctx, time.Duration(n)*time.Second/lowMoveRate) == nil
}

// move publishes the message of t, which has not started, to a slot of the backlog topic.
func (f *fetcher) move(t *task, slot int) {
	if !t.part.gate.Begin() {
		f.p.freeTask(t)
		return
	}
	rec, bytes := f.p.router.BacklogRecord(&t.Record, f.backlogTopic), t.bytes()
	rec.Partition = client.ByKey
	if !f.p.cfg.CoPartitioned { // otherwise the key determines the partition, as in the other topics
		rec.Partition = client.BySlot(slot)
	}
	f.diversion.unacked.Add(1)
	f.diversion.unackedBytes.Add(bytes)
	f.diversion.unpaced += bytes
	t.part.unackedMoves.Add(1)
	f.p.outputs.send(t.part, rec, func(err error) {
		f.diversion.unacked.Add(-1)
		f.diversion.unackedBytes.Add(-bytes)
		t.part.unackedMoves.Add(-1)
		switch {
		case err == nil:
			f.diversion.acked.Add(1)
			f.metrics.CountHandled(t.Disposition, 1, -1)
			f.p.finish(t)
		case t.part.isCancelled() || f.p.outputs.ctx.Err() != nil:
			f.p.abandon(t)
		default:
			if errors.Is(err, kerr.TopicAuthorizationFailed) && !f.diversion.denied.Swap(true) {
				f.p.router.Log.Error("stop moving backlogs", "to", f.backlogTopic, "err", err)
			} else if !f.diversion.refused.Swap(true) { // log only the first one
				f.p.router.Log.Warn("move message to backlog topic", "to", f.backlogTopic, "err", err)
			}
			t.unmovable = true
			t.part.gate.End()
			go f.requeue(t) // in a goroutine, to not block the client
		}
	})
}

// limitBacklogFetch pauses the backlog topic while its records in flight use their part of the memory.
func (f *fetcher) limitBacklogFetch() {
	if f.backlogTopic == "" {
		return
	}
	f.pauseMu.Lock()
	defer f.pauseMu.Unlock()
	most := f.p.cfg.Bytes / backlogMemoryPart
	switch n := f.backlogBytes.Load(); {
	case !f.backlogPaused && n >= most:
		f.backlogPaused = true
		f.cl.PauseFetchTopics(f.backlogTopic)
	case f.backlogPaused && n < most/2:
		f.backlogPaused = false
		if !f.paused {
			f.cl.ResumeFetchTopics(f.backlogTopic)
		}
	}
}
