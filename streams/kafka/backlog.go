package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

// A backlog is more messages of one account, or for one store, than fit into a window, with long tasks. If it
// stayed where it is, messages of others behind it would not be read for hours. So messages that fill a
// window for a second are moved to the backlog topic of the class, which is read like the other topics, with
// its own windows. There the messages of a flow use a third of the partitions, unless the key must determine
// the partition.
const (
	stuckAfter        = time.Second      // a window that is full for this long is stuck
	divertWindow      = 10 * time.Second // a flow stops being moved if few messages arrive within it:
	fewArrivals       = 64               // less than 1/fewArrivals of a window are few
	minAccountPart    = 256              // an account with less than 1/minAccountPart of a window is not moved
	backlogMemoryPart = 2                // messages of the backlog topic may use 1/backlogMemoryPart of Bytes
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
		if !part.backlog && !part.stopping.Load() && (memoryFull || part.stuckFor(stuckAfter) || part.manyStragglers()) {
			stuck[part] = true
		}
	}
	if len(stuck) == 0 {
		return
	}
	flows, all := map[Work]bool{}, map[Work]int64{}
	for part, tasks := range f.p.sched.queuedAmounts(stuck) {
		counts := map[Work]int64{}
		for w, n := range tasks {
			counts[w] = n.tasks
			all[w] += n.bytes
		}
		if memoryFull {
			continue
		}
		keep, least := int64(min(maxStragglers, part.window()/2)/2), max(2, int64(f.p.window/minAccountPart))
		for _, w := range heaviest(counts, keep, least) {
			flows[w] = true
		}
	}
	if memoryFull {
		for _, w := range heaviest(all, f.p.cfg.Bytes/4, f.p.cfg.Bytes/minAccountPart) {
			flows[w] = true
		}
	}
	if len(flows) > 0 {
		f.moveFlows(ctx, stuck, flows)
	}
}

// moveFlows moves the tasks of flows in assignments that have not started, and then the ones that arrive later.
// First it moves the tasks of one key: if the brokers do not accept them, the others stay where they are.
// Then it moves the rest in parts, each after the part before is acknowledged. Tasks of a key are moved
// together, which keeps their order.
func (f *fetcher) moveFlows(ctx context.Context, assignments map[*assignment]bool, flows map[Work]bool) {
	// Messages that were running in deaths stay, because the metadata of their own partition records that.
	deaths := map[*assignment]map[int64]int{}
	for part := range assignments {
		deaths[part] = part.deathCounts()
	}
	backlog := func(head, t *task) bool {
		return assignments[t.part] && flows[t.flow.work] && !head.started() && !t.unmovable &&
			deaths[t.part][t.rec.Offset] == 0
	}
	f.queueLock <- struct{}{} // messages polled meanwhile are handled or moved after these
	defer func() { <-f.queueLock }()
	if !f.moveFirstKey(ctx, backlog) {
		return
	}
	for {
		acked := f.diversion.acked.Load()
		moved, more := f.movePart(backlog, flows)
		if !more || moved == 0 || !f.awaitAcked(ctx, acked+moved) {
			return
		}
	}
}

// A withdrawnTask was removed from the scheduler. head was the first task of its key.
type withdrawnTask struct{ head, task *task }

// withdraw removes the tasks for which match returns true from the scheduler, and returns them in the order in
// which they were read.
func (f *fetcher) withdraw(match func(head, t *task) bool) (tasks []withdrawnTask) {
	f.p.sched.removeQueued(func(head, t *task) bool {
		matches := match(head, t)
		if matches {
			tasks = append(tasks, withdrawnTask{head, t})
		}
		return matches
	}, func(*task) {})
	slices.SortFunc(tasks, func(a, b withdrawnTask) int { return cmp.Compare(a.task.seq, b.task.seq) })
	return tasks
}

// moveFirstKey moves the tasks of one key for which backlog returns true, and reports whether the brokers
// have accepted them.
func (f *fetcher) moveFirstKey(ctx context.Context, backlog func(head, t *task) bool) bool {
	var first *task
	tasks := f.withdraw(func(head, t *task) bool {
		if first == nil && backlog(head, head) && !f.moveLimitReached(head.part) {
			first = head
		}
		return head == first && backlog(head, t)
	})
	acked := f.diversion.acked.Load()
	for _, q := range tasks {
		f.move(q.task, f.diversion.slotOf(q.task.flow.work))
	}
	return len(tasks) > 0 && f.awaitAcked(ctx, acked+int64(len(tasks)))
}

// movePart moves the first part of the tasks for which backlog returns true. When none are left, it starts to
// move arriving messages of flows.
func (f *fetcher) movePart(backlog func(head, t *task) bool, flows map[Work]bool) (moved int64, more bool) {
	var rest []*task
	moves := map[*task]bool{} // by the head of the key
	for _, q := range f.withdraw(backlog) {
		if _, ok := moves[q.head]; !ok {
			moves[q.head] = !f.moveLimitReached(q.task.part)
		}
		if !moves[q.head] {
			rest = append(rest, q.task)
			continue
		}
		f.move(q.task, f.diversion.slotOf(q.task.flow.work))
		moved++
	}
	if len(rest) > 0 {
		f.requeue(rest...)
		return moved, true
	}
	for w := range flows {
		if f.diversion.open(w) {
			f.p.router.log.Info("move backlog", "account", w.Account, "stores", w.Stores, "to", f.backlogTopic)
		}
	}
	return moved, false
}

// moveLimitReached reports whether so many messages of a, or so many bytes in total, are being moved that no
// more may be sent before some are acknowledged.
func (f *fetcher) moveLimitReached(a *assignment) bool {
	return a.unackedMoves.Load() >= int64(a.window()/4) || f.diversion.unackedBytes.Load() >= f.p.cfg.Bytes/4
}

// awaitAcked waits at most a second until n messages of the fetcher have been acknowledged.
func (f *fetcher) awaitAcked(ctx context.Context, n int64) bool {
	return waitUntil(ctx, func() bool { return f.diversion.acked.Load() >= n })
}

// awaitMoveRoom waits at most a second until one more message of a may be moved.
func (f *fetcher) awaitMoveRoom(a *assignment) bool {
	ok := waitUntil(f.p.outputs.ctx, func() bool { return !f.moveLimitReached(a) })
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
	keys, work := make([]uint64, len(tasks)), make([]Work, len(tasks))
	for i, t := range tasks {
		keys[i] = f.p.describe(t, &work[i])
	}
	f.p.submit(f, tasks, keys, work)
	if slices.ContainsFunc(tasks, func(t *task) bool { return t.part.stopping.Load() }) { // discard may have run before
		f.p.sched.removeQueued(isStopping, f.p.freeTask)
	}
}

// moveDiverted moves the tasks of flows that are being moved, and returns the others.
func (f *fetcher) moveDiverted(tasks []*task, keys []uint64, work []Work) ([]*task, []uint64, []Work) {
	if !f.diversion.active.Load() || f.diversion.denied.Load() {
		return tasks, keys, work
	}
	n := 0
	for i, t := range tasks {
		if !t.part.backlog && !t.unmovable {
			if slot, ok := f.diversion.routeOf(work[i]); ok && f.awaitMoveRoom(t.part) {
				f.move(t, slot)
				continue
			}
		}
		tasks[n], keys[n], work[n] = t, keys[i], work[i]
		n++
	}
	return tasks[:n], keys[:n], work[:n]
}

// move publishes the message of t, which has not started, to a slot of the backlog topic.
func (f *fetcher) move(t *task, slot int) {
	if !t.part.beginTask() {
		f.p.freeTask(t)
		return
	}
	rec, bytes := f.p.router.backlogRecord(&t.inflightRecord, f.backlogTopic), t.bytes()
	rec.Partition = client.ByKey
	if !f.p.cfg.CoPartitioned { // otherwise the key determines the partition, as in the other topics
		rec.Partition = client.BySlot(slot)
	}
	f.diversion.unacked.Add(1)
	f.diversion.unackedBytes.Add(bytes)
	t.part.unackedMoves.Add(1)
	f.p.outputs.send(t.part, rec, func(err error) {
		f.diversion.unacked.Add(-1)
		f.diversion.unackedBytes.Add(-bytes)
		t.part.unackedMoves.Add(-1)
		switch {
		case err == nil:
			f.diversion.acked.Add(1)
			f.metrics.CountHandled(t.disposition, 1, -1)
			f.p.finish(t)
		case t.part.isCancelled() || f.p.outputs.ctx.Err() != nil:
			f.p.abandon(t)
		default:
			if errors.Is(err, kerr.TopicAuthorizationFailed) && !f.diversion.denied.Swap(true) {
				f.p.router.log.Error("stop moving backlogs", "to", f.backlogTopic, "err", err)
			} else if !f.diversion.refused.Swap(true) { // log only the first one
				f.p.router.log.Warn("move message to backlog topic", "to", f.backlogTopic, "err", err)
			}
			t.unmovable = true
			t.part.endTask()
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
