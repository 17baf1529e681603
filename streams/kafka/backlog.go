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

// A backlog is more messages of one account, or for one store, than a window holds, whose tasks take long. If it stayed in
// front, the messages of others behind it would not be read for hours. So what fills a window for a second is moved to a
// topic of the class, the backlog topic, which is read beside the others, with windows of its own. There the messages of a
// flow have a third of the partitions, unless their partitions are those of their keys.
const (
	stuckAfter  = time.Second      // that a window is full
	divertFor   = 10 * time.Second // and more, while so many messages of a flow arrive, these are moved too:
	fewArrive   = 64               // this part of a window
	lightest    = 256              // an account with less than this part of a window is not moved
	backlogPart = 2                // of Bytes: what the messages of a backlog topic may weigh
	slots       = 3                // parts of the partitions of a backlog topic, one for each flow
)

// divert moves backlogs out of the way until ctx is done.
func (in *intake) divert(ctx context.Context) {
	t := time.NewTicker(stuckAfter / 4)
	defer t.Stop()
	var heavy time.Time                   // since when the records in flight weigh as much as they may; zero: they do not
	landed, since := int64(0), time.Now() // what was last taken, and when
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		in.diverted.expire(now, in.p.window/fewArrive)
		in.restrain()
		switch {
		case !in.weight.full(in.room()):
			heavy = time.Time{}
		case heavy.IsZero():
			heavy = now
		}
		if n := in.diverted.landed.Load(); n > landed || in.diverted.flying.Load() == 0 {
			landed, since = n, now
		}
		stalled := now.Sub(since) >= stuckAfter
		in.diverted.stalled.Store(stalled)
		if !stalled && !in.diverted.off.Load() {
			in.makeWay(ctx, !heavy.IsZero() && now.Sub(heavy) >= stuckAfter)
		}
		for _, sh := range in.owned(nil) { // also if nothing can be moved
			if sh.stuck(stuckAfter) {
				sh.goOn()
			}
		}
	}
}

// makeWay moves what keeps partitions from being read, or soon will: what fills their windows or what commits name or, if
// the intake is too heavy to read on, what weighs most of all.
func (in *intake) makeWay(ctx context.Context, heavy bool) {
	stuck := map[*share]bool{}
	for _, sh := range in.owned(nil) {
		if !sh.backlog && !sh.stopping.Load() && (heavy || sh.stuck(stuckAfter) || sh.crowded()) {
			stuck[sh] = true
		}
	}
	if len(stuck) == 0 {
		return
	}
	flows, all := map[Work]bool{}, map[Work]int64{}
	for sh, tasks := range in.p.sched.waiting(stuck) {
		of := map[Work]int64{}
		for f, n := range tasks {
			of[f] = n.tasks
			all[f] += n.bytes
		}
		if heavy {
			continue
		}
		for _, f := range heaviest(of, int64(min(maxLate, sh.window()/2)/2), max(2, int64(in.p.window/lightest))) {
			flows[f] = true
		}
	}
	if heavy {
		for _, f := range heaviest(all, in.p.cfg.Bytes/4, in.p.cfg.Bytes/lightest) {
			flows[f] = true
		}
	}
	if len(flows) > 0 {
		in.moveAside(ctx, stuck, flows)
	}
}

// moveAside moves the tasks of shares and flows that were not begun, and has those moved that will be read. First it moves
// those of one key: if the brokers do not take them, the others stay where they are. Then it moves them in parts, each when
// as many were acknowledged as there were in the one before. The tasks of a key are moved together, so that they keep their
// order.
func (in *intake) moveAside(ctx context.Context, shares map[*share]bool, flows map[Work]bool) {
	named := map[*share]map[int64]int{} // what was at work in deaths stays where that is known
	for sh := range shares {
		named[sh] = sh.suspects()
	}
	backlog := func(head, t *task) bool {
		return shares[t.share] && flows[t.flow.work] && !head.begun() && !t.stays && named[t.share][t.rec.Offset] == 0
	}
	in.moving <- struct{}{} // messages that are polled meanwhile are handled or moved after these
	defer func() { <-in.moving }()
	if !in.tryOne(ctx, backlog) {
		return
	}
	for {
		landed := in.diverted.landed.Load()
		moved, more := in.movePart(backlog, flows)
		if !more || moved == 0 || !in.lands(ctx, landed+moved) {
			return
		}
	}
}

// A queued task was taken out of the scheduler; head was the first of its key then.
type queued struct{ head, task *task }

// withdraw takes the tasks for which gone is true out of the scheduler, and returns them in the order in which they were
// read.
func (in *intake) withdraw(gone func(head, t *task) bool) (tasks []queued) {
	in.p.sched.purge(func(head, t *task) bool {
		is := gone(head, t)
		if is {
			tasks = append(tasks, queued{head, t})
		}
		return is
	}, func(*task) {})
	slices.SortFunc(tasks, func(a, b queued) int { return cmp.Compare(a.task.seq, b.task.seq) })
	return tasks
}

// tryOne moves the tasks of one key for which backlog is true, and reports whether the brokers have taken them.
func (in *intake) tryOne(ctx context.Context, backlog func(head, t *task) bool) bool {
	var first *task
	tasks := in.withdraw(func(head, t *task) bool {
		if first == nil && backlog(head, head) && !in.movesMuch(head.share) {
			first = head
		}
		return head == first && backlog(head, t)
	})
	landed := in.diverted.landed.Load()
	for _, q := range tasks {
		in.move(q.task, in.diverted.slotOf(q.task.flow.work))
	}
	return len(tasks) > 0 && in.lands(ctx, landed+int64(len(tasks)))
}

// movePart moves the first of the tasks for which backlog is true. If there are no more, what arrives of flows is moved from
// then on.
func (in *intake) movePart(backlog func(head, t *task) bool, flows map[Work]bool) (moved int64, more bool) {
	var rest []*task
	moves := map[*task]bool{} // by head
	for _, q := range in.withdraw(backlog) {
		if _, ok := moves[q.head]; !ok {
			moves[q.head] = !in.movesMuch(q.task.share)
		}
		if !moves[q.head] {
			rest = append(rest, q.task)
			continue
		}
		in.move(q.task, in.diverted.slotOf(q.task.flow.work))
		moved++
	}
	if len(rest) > 0 {
		in.giveBack(rest...)
		return moved, true
	}
	for f := range flows {
		if in.diverted.open(f) {
			in.p.router.log.Info("move a backlog out of the way", "account", f.Account, "stores", f.Stores, "to", in.backlog)
		}
	}
	return moved, false
}

// movesMuch reports whether so many messages of s are moved, or so much of all, that no others should be before these are
// acknowledged.
func (in *intake) movesMuch(s *share) bool {
	return s.moving.Load() >= int64(s.window()/4) || in.diverted.bytes.Load() >= in.p.cfg.Bytes/4
}

// lands waits until n messages of the intake were acknowledged, for a second at most.
func (in *intake) lands(ctx context.Context, n int64) bool {
	return soon(ctx, func() bool { return in.diverted.landed.Load() >= n })
}

// roomFor waits until one more message of s may be moved, for a second at most.
func (in *intake) roomFor(s *share) bool {
	ok := soon(in.p.out.ctx, func() bool { return !in.movesMuch(s) })
	if !ok {
		in.diverted.stalled.Store(true)
	}
	return ok
}

// soon waits until is returns true, for a second at most, and reports whether it has.
func soon(ctx context.Context, is func() bool) bool {
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

// giveBack has tasks handled where they are.
func (in *intake) giveBack(tasks ...*task) {
	keys, work := make([]uint64, len(tasks)), make([]Work, len(tasks))
	for i, t := range tasks {
		keys[i] = in.p.describe(t, &work[i])
	}
	in.p.queue(in, tasks, keys, work)
	if slices.ContainsFunc(tasks, func(t *task) bool { return t.share.stopping.Load() }) { // drop may have come before them
		in.p.sched.purge(stopping, in.p.forget)
	}
}

// without moves the tasks whose flows are moved, and returns the others.
func (in *intake) without(tasks []*task, keys []uint64, work []Work) ([]*task, []uint64, []Work) {
	if !in.diverted.any.Load() || in.diverted.off.Load() {
		return tasks, keys, work
	}
	n := 0
	for i, t := range tasks {
		if !t.share.backlog && !t.stays {
			if slot, ok := in.diverted.take(work[i]); ok && in.roomFor(t.share) {
				in.move(t, slot)
				continue
			}
		}
		tasks[n], keys[n], work[n] = t, keys[i], work[i]
		n++
	}
	return tasks[:n], keys[:n], work[:n]
}

// move publishes the message of t, which was not begun, to a slot of the backlog topic.
func (in *intake) move(t *task, slot int) {
	if !t.share.begin() {
		in.p.forget(t)
		return
	}
	rec, bytes := in.p.router.onward(&t.letter, in.backlog), t.bytes()
	rec.Partition = byKey
	if !in.p.cfg.CoPartitioned { // else its partition is that of its key, as in the other topics
		rec.Partition = bySlot(slot)
	}
	in.diverted.flying.Add(1)
	in.diverted.bytes.Add(bytes)
	t.share.moving.Add(1)
	in.p.out.send(t.share, rec, func(err error) {
		in.diverted.flying.Add(-1)
		in.diverted.bytes.Add(-bytes)
		t.share.moving.Add(-1)
		switch {
		case err == nil:
			in.diverted.landed.Add(1)
			in.meter.countHandled(t.fate, 1, -1)
			in.p.finish(t)
		case t.share.dead() || in.p.out.ctx.Err() != nil:
			in.p.abandon(t)
		default:
			if errors.Is(err, kerr.TopicAuthorizationFailed) && !in.diverted.off.Swap(true) {
				in.p.router.log.Error("backlogs stay in front of the messages of others: they cannot be moved", "to", in.backlog, "err", err)
			} else if !in.diverted.refused.Swap(true) { // from here on all of them would be logged
				in.p.router.log.Warn("a message of a backlog stays where it is: the brokers refuse it", "to", in.backlog, "err", err)
			}
			t.stays = true
			t.share.leave()
			go in.giveBack(t) // not in the way of the client
		}
	})
}

// restrain reads no more of the backlog topic while what is in flight of it weighs as much as it may.
func (in *intake) restrain() {
	if in.backlog == "" {
		return
	}
	in.turning.Lock()
	defer in.turning.Unlock()
	most := in.p.cfg.Bytes / backlogPart
	switch n := in.behind.Load(); {
	case !in.full && n >= most:
		in.full = true
		in.cl.PauseFetchTopics(in.backlog)
	case in.full && n < most/2:
		in.full = false
		if !in.tap {
			in.cl.ResumeFetchTopics(in.backlog)
		}
	}
}
