package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/streams/retry"
)

// A backlog is more messages of one account, or for one store, than fit into a window, with long tasks. If it
// stayed where it is, messages of others behind it would not be read for hours. So messages that fill a
// window for a second are moved to the backlog topic of the class, which is read like the other topics, with
// its own windows. There the messages of a flow use a third of the partitions, unless the key must determine
// the partition.
const (
	stuckAfter        = time.Second      // a window that is full for this long is stuck
	divertWindow      = 10 * time.Second // for this long later messages of a flow are moved too,
	fewArrivals       = 64               // and again while at least 1/fewArrivals of a window arrives meanwhile
	minAccountPart    = 256              // an account with less than 1/minAccountPart of a window is not moved
	backlogMemoryPart = 2                // messages of the backlog topic may use 1/backlogMemoryPart of Bytes
	backlogSlots      = 3                // parts of the partitions of a backlog topic; a flow uses one
)

// moveBacklogs moves backlogs to the backlog topic until ctx is done.
func (in *fetcher) moveBacklogs(ctx context.Context) {
	t := time.NewTicker(stuckAfter / 4)
	defer t.Stop()
	var heavy time.Time                   // since when memory has been full; zero: it is not
	landed, since := int64(0), time.Now() // the last count of acknowledged moves, and its time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		in.diversion.expire(now, in.p.window/fewArrivals)
		in.limitBacklogFetch()
		switch {
		case !in.memory.full(in.memoryLimit()):
			heavy = time.Time{}
		case heavy.IsZero():
			heavy = now
		}
		if n := in.diversion.acked.Load(); n > landed || in.diversion.unacked.Load() == 0 {
			landed, since = n, now
		}
		stalled := now.Sub(since) >= stuckAfter
		in.diversion.stalled.Store(stalled)
		if !stalled && !in.diversion.denied.Load() {
			in.moveHeaviest(ctx, !heavy.IsZero() && now.Sub(heavy) >= stuckAfter)
		}
		for _, part := range in.owned(nil) { // also if nothing can be moved
			if part.stuckFor(stuckAfter) {
				part.resumeStuck()
			}
		}
	}
}

// moveHeaviest moves the messages that keep partitions from being read: those that fill the windows or are
// too many stragglers or, if memory is full (heavy), those that use the most memory.
func (in *fetcher) moveHeaviest(ctx context.Context, heavy bool) {
	stuck := map[*assignment]bool{}
	for _, part := range in.owned(nil) {
		if !part.backlog && !part.stopping.Load() && (heavy || part.stuckFor(stuckAfter) || part.manyStragglers()) {
			stuck[part] = true
		}
	}
	if len(stuck) == 0 {
		return
	}
	flows, all := map[Work]bool{}, map[Work]int64{}
	for part, tasks := range in.p.sched.queuedAmounts(stuck) {
		of := map[Work]int64{}
		for f, n := range tasks {
			of[f] = n.tasks
			all[f] += n.bytes
		}
		if heavy {
			continue
		}
		for _, f := range heaviest(of, int64(min(maxStragglers, part.window()/2)/2), max(2, int64(in.p.window/minAccountPart))) {
			flows[f] = true
		}
	}
	if heavy {
		for _, f := range heaviest(all, in.p.cfg.Bytes/4, in.p.cfg.Bytes/minAccountPart) {
			flows[f] = true
		}
	}
	if len(flows) > 0 {
		in.moveFlows(ctx, stuck, flows)
	}
}

// moveFlows moves the tasks of flows in shares that have not started, and then the ones that arrive later.
// First it moves the tasks of one key: if the brokers do not accept them, the others stay where they are.
// Then it moves the rest in parts, each after the part before is acknowledged. Tasks of a key are moved
// together, which keeps their order.
func (in *fetcher) moveFlows(ctx context.Context, shares map[*assignment]bool, flows map[Work]bool) {
	named := map[*assignment]map[int64]int{} // messages that were running in deaths stay, because the metadata of their own partition records that
	for part := range shares {
		named[part] = part.deathCounts()
	}
	backlog := func(head, t *task) bool {
		return shares[t.part] && flows[t.flow.work] && !head.started() && !t.unmovable && named[t.part][t.rec.Offset] == 0
	}
	in.queueLock <- struct{}{} // messages polled meanwhile are handled or moved after these
	defer func() { <-in.queueLock }()
	if !in.moveFirstKey(ctx, backlog) {
		return
	}
	for {
		landed := in.diversion.acked.Load()
		moved, more := in.movePart(backlog, flows)
		if !more || moved == 0 || !in.awaitAcked(ctx, landed+moved) {
			return
		}
	}
}

// A withdrawnTask was removed from the scheduler. head was the first task of its key.
type withdrawnTask struct{ head, task *task }

// withdraw removes the tasks for which gone returns true from the scheduler, and returns them in the order in
// which they were read.
func (in *fetcher) withdraw(gone func(head, t *task) bool) (tasks []withdrawnTask) {
	in.p.sched.removeQueued(func(head, t *task) bool {
		is := gone(head, t)
		if is {
			tasks = append(tasks, withdrawnTask{head, t})
		}
		return is
	}, func(*task) {})
	slices.SortFunc(tasks, func(a, b withdrawnTask) int { return cmp.Compare(a.task.seq, b.task.seq) })
	return tasks
}

// moveFirstKey moves the tasks of one key for which backlog returns true, and reports whether the brokers
// have accepted them.
func (in *fetcher) moveFirstKey(ctx context.Context, backlog func(head, t *task) bool) bool {
	var first *task
	tasks := in.withdraw(func(head, t *task) bool {
		if first == nil && backlog(head, head) && !in.moveLimitReached(head.part) {
			first = head
		}
		return head == first && backlog(head, t)
	})
	landed := in.diversion.acked.Load()
	for _, q := range tasks {
		in.move(q.task, in.diversion.slotOf(q.task.flow.work))
	}
	return len(tasks) > 0 && in.awaitAcked(ctx, landed+int64(len(tasks)))
}

// movePart moves the first part of the tasks for which backlog returns true. When none are left, it starts to
// move arriving messages of flows.
func (in *fetcher) movePart(backlog func(head, t *task) bool, flows map[Work]bool) (moved int64, more bool) {
	var rest []*task
	moves := map[*task]bool{} // by the head of the key
	for _, q := range in.withdraw(backlog) {
		if _, ok := moves[q.head]; !ok {
			moves[q.head] = !in.moveLimitReached(q.task.part)
		}
		if !moves[q.head] {
			rest = append(rest, q.task)
			continue
		}
		in.move(q.task, in.diversion.slotOf(q.task.flow.work))
		moved++
	}
	if len(rest) > 0 {
		in.requeue(rest...)
		return moved, true
	}
	for f := range flows {
		if in.diversion.open(f) {
			in.p.router.log.Info("move a backlog out of the way", "account", f.Account, "stores", f.Stores, "to", in.backlogTopic)
		}
	}
	return moved, false
}

// moveLimitReached reports whether so many messages of s, or so many bytes in total, are being moved that no
// more may be sent before some are acknowledged.
func (in *fetcher) moveLimitReached(s *assignment) bool {
	return s.unackedMoves.Load() >= int64(s.window()/4) || in.diversion.unackedBytes.Load() >= in.p.cfg.Bytes/4
}

// awaitAcked waits at most a second until n messages of the fetcher have been acknowledged.
func (in *fetcher) awaitAcked(ctx context.Context, n int64) bool {
	return waitUntil(ctx, func() bool { return in.diversion.acked.Load() >= n })
}

// awaitMoveRoom waits at most a second until one more message of s may be moved.
func (in *fetcher) awaitMoveRoom(s *assignment) bool {
	ok := waitUntil(in.p.outputs.ctx, func() bool { return !in.moveLimitReached(s) })
	if !ok {
		in.diversion.stalled.Store(true)
	}
	return ok
}

// waitUntil polls is for at most a second, and reports whether it returned true.
func waitUntil(ctx context.Context, is func() bool) bool {
	for range 200 {
		if is() {
			return true
		}
		if retry.Sleep(ctx, stuckAfter/200) != nil {
			return false
		}
	}
	return false
}

// requeue returns tasks to the scheduler, so that they are handled from their own partition.
func (in *fetcher) requeue(tasks ...*task) {
	keys, work := make([]uint64, len(tasks)), make([]Work, len(tasks))
	for i, t := range tasks {
		keys[i] = in.p.describe(t, &work[i])
	}
	in.p.submit(in, tasks, keys, work)
	if slices.ContainsFunc(tasks, func(t *task) bool { return t.part.stopping.Load() }) { // discard may have run before
		in.p.sched.removeQueued(isStopping, in.p.freeTask)
	}
}

// moveDiverted moves the tasks of flows that are being moved, and returns the others.
func (in *fetcher) moveDiverted(tasks []*task, keys []uint64, work []Work) ([]*task, []uint64, []Work) {
	if !in.diversion.active.Load() || in.diversion.denied.Load() {
		return tasks, keys, work
	}
	n := 0
	for i, t := range tasks {
		if !t.part.backlog && !t.unmovable {
			if slot, ok := in.diversion.routeOf(work[i]); ok && in.awaitMoveRoom(t.part) {
				in.move(t, slot)
				continue
			}
		}
		tasks[n], keys[n], work[n] = t, keys[i], work[i]
		n++
	}
	return tasks[:n], keys[:n], work[:n]
}

// move publishes the message of t, which has not started, to a slot of the backlog topic.
func (in *fetcher) move(t *task, slot int) {
	if !t.part.beginTask() {
		in.p.freeTask(t)
		return
	}
	rec, bytes := in.p.router.backlogRecord(&t.inflightRecord, in.backlogTopic), t.bytes()
	rec.Partition = byKey
	if !in.p.cfg.CoPartitioned { // otherwise the key determines the partition, as in the other topics
		rec.Partition = bySlot(slot)
	}
	in.diversion.unacked.Add(1)
	in.diversion.unackedBytes.Add(bytes)
	t.part.unackedMoves.Add(1)
	in.p.outputs.send(t.part, rec, func(err error) {
		in.diversion.unacked.Add(-1)
		in.diversion.unackedBytes.Add(-bytes)
		t.part.unackedMoves.Add(-1)
		switch {
		case err == nil:
			in.diversion.acked.Add(1)
			in.metrics.handled(t.disposition, 1, -1)
			in.p.finish(t)
		case t.part.isCancelled() || in.p.outputs.ctx.Err() != nil:
			in.p.abandon(t)
		default:
			if errors.Is(err, kerr.TopicAuthorizationFailed) && !in.diversion.denied.Swap(true) {
				in.p.router.log.Error("backlogs stay in front of the messages of others: they cannot be moved", "to", in.backlogTopic, "err", err)
			} else if !in.diversion.refused.Swap(true) { // log only the first one
				in.p.router.log.Warn("a message of a backlog stays where it is: the brokers refuse it", "to", in.backlogTopic, "err", err)
			}
			t.unmovable = true
			t.part.endTask()
			go in.requeue(t) // in a goroutine, to not block the client
		}
	})
}

// limitBacklogFetch pauses the backlog topic while its records in flight use their part of the memory.
func (in *fetcher) limitBacklogFetch() {
	if in.backlogTopic == "" {
		return
	}
	in.pauseMu.Lock()
	defer in.pauseMu.Unlock()
	most := in.p.cfg.Bytes / backlogMemoryPart
	switch n := in.backlogBytes.Load(); {
	case !in.backlogPaused && n >= most:
		in.backlogPaused = true
		in.cl.PauseFetchTopics(in.backlogTopic)
	case in.backlogPaused && n < most/2:
		in.backlogPaused = false
		if !in.paused {
			in.cl.ResumeFetchTopics(in.backlogTopic)
		}
	}
}
