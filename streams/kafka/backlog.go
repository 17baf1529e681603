package kafka

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

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

// A diversion is which flows of an intake are moved to its backlog topic.
type diversion struct {
	any     atomic.Bool  // there are some
	flying  atomic.Int64 // messages that are moved, and not acknowledged
	bytes   atomic.Int64 // what they weigh
	landed  atomic.Int64 // messages that were acknowledged
	waits   atomic.Bool  // for a second the brokers have acknowledged none, or too few to move more of a partition
	refused atomic.Bool  // they have refused one for good
	off     atomic.Bool  // they do not allow it

	mu    sync.Mutex // guards the rest
	flows map[Work]*route
	next  time.Time // when it is looked how many have arrived
}

// A route is where the messages of a flow are moved.
type route struct {
	slot    int
	open    bool // also what arrives is moved
	arrived int  // messages since it was looked
}

// flowName is w without what differs between messages of one flow.
func flowName(w Work) Work {
	w.Key, w.Bytes = "", 0
	return w
}

// take returns where the message of w is to be moved, if its flow is.
func (d *diversion) take(w Work) (slot int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.flows[flowName(w)]
	if r == nil || !r.open {
		return 0, false
	}
	r.arrived++
	return r.slot, !d.waits.Load()
}

// slotOf returns the slot of a flow: if it has none yet, the one that the fewest others have.
func (d *diversion) slotOf(f Work) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.flows[f]; r != nil {
		return r.slot
	}
	var used [slots]int
	for _, r := range d.flows {
		used[r.slot]++
	}
	first, slot := int(hash(f.Account, f.Stores[0], f.Stores[1])%slots), 0
	for i := range slots {
		if at := (first + i) % slots; i == 0 || used[at] < used[slot] {
			slot = at
		}
	}
	d.flows[f] = &route{slot: slot}
	return slot
}

// open has what arrives of a flow moved, and reports whether it was not before.
func (d *diversion) open(f Work) (fresh bool) {
	d.slotOf(f)
	d.mu.Lock()
	defer d.mu.Unlock()
	fresh = !d.flows[f].open
	d.flows[f].open = true
	d.any.Store(true)
	return fresh
}

// expire forgets the flows of which few messages arrive.
func (d *diversion) expire(now time.Time, few int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Before(d.next) {
		return
	}
	d.next = now.Add(divertFor)
	maps.DeleteFunc(d.flows, func(_ Work, r *route) bool { return r.arrived < few })
	for _, r := range d.flows {
		r.arrived = 0
	}
	d.any.Store(len(d.flows) > 0)
}

// An owner is an account with its flows, the heaviest first.
type owner struct {
	account string
	sum     int64
	flows   []Work
}

// owners is a heap with the heaviest account on top.
type owners []*owner

func (o owners) Len() int { return len(o) }
func (o owners) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(o[j].sum, o[i].sum), cmp.Compare(o[i].account, o[j].account)) < 0
}
func (o owners) Swap(i, j int) { o[i], o[j] = o[j], o[i] }
func (o *owners) Push(x any)   { *o = append(*o, x.(*owner)) }
func (o *owners) Pop() any {
	last := (*o)[len(*o)-1]
	*o = (*o)[:len(*o)-1]
	return last
}

// heaviest returns the flows to move: of the account that has most left its heaviest one, or all if that is less than half
// of them, until no more than keep is left in all. An account that has less than least stays as it is.
func heaviest(weights map[Work]int64, keep, least int64) (flows []Work) {
	by := map[string]*owner{}
	var all owners
	var sum int64
	for f, n := range weights {
		o := by[f.Account]
		if o == nil {
			o = &owner{account: f.Account}
			by[f.Account], all = o, append(all, o)
		}
		o.sum += n
		sum += n
		o.flows = append(o.flows, f)
	}
	all = slices.DeleteFunc(all, func(o *owner) bool { return o.sum < least })
	for _, o := range all {
		slices.SortFunc(o.flows, func(a, b Work) int {
			return cmp.Or(cmp.Compare(weights[b], weights[a]), slices.Compare(a.Stores[:], b.Stores[:]))
		})
	}
	heap.Init(&all)
	for sum > keep && len(all) > 0 {
		o := all[0]
		n := weights[o.flows[0]]
		if n < o.sum-n {
			flows = append(flows, o.flows...)
			sum -= o.sum
			heap.Pop(&all)
			continue
		}
		flows = append(flows, o.flows[0])
		sum -= n
		if o.sum, o.flows = o.sum-n, o.flows[1:]; o.sum >= least {
			heap.Fix(&all, 0)
		} else {
			heap.Pop(&all)
		}
	}
	return flows
}

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
		waits := now.Sub(since) >= stuckAfter
		in.diverted.waits.Store(waits)
		if !waits && !in.diverted.off.Load() {
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

// tryOne moves the tasks of one key for which backlog is true, and reports whether the brokers have taken them.
func (in *intake) tryOne(ctx context.Context, backlog func(head, t *task) bool) bool {
	var first *task
	var tasks []*task
	in.moving <- struct{}{}
	in.p.sched.purge(func(head, t *task) bool {
		if first == nil && backlog(head, head) && !in.movesMuch(head.share) {
			first = head
		}
		return head == first && backlog(head, t)
	}, func(t *task) { tasks = append(tasks, t) })
	slices.SortFunc(tasks, func(a, b *task) int { return cmp.Compare(a.seq, b.seq) })
	landed := in.diverted.landed.Load()
	for _, t := range tasks {
		in.move(t, in.diverted.slotOf(t.flow.work))
	}
	<-in.moving
	return len(tasks) > 0 && in.lands(ctx, landed+int64(len(tasks)))
}

// movePart moves the first of the tasks for which backlog is true. If there are no more, what arrives of flows is moved from
// then on.
func (in *intake) movePart(backlog func(head, t *task) bool, flows map[Work]bool) (moved int64, more bool) {
	in.moving <- struct{}{} // what is read meanwhile comes after
	defer func() { <-in.moving }()
	var tasks, rest []*task
	keys := map[*task]*task{} // the head of the key of each
	in.p.sched.purge(func(head, t *task) bool {
		gone := backlog(head, t)
		if gone {
			keys[t] = head
		}
		return gone
	}, func(t *task) { tasks = append(tasks, t) })
	slices.SortFunc(tasks, func(a, b *task) int { return cmp.Compare(a.seq, b.seq) })
	moves := map[*task]bool{} // by head
	for _, t := range tasks {
		head := keys[t]
		if _, ok := moves[head]; !ok {
			moves[head] = !in.movesMuch(t.share)
		}
		if !moves[head] {
			rest = append(rest, t)
			continue
		}
		in.move(t, in.diverted.slotOf(t.flow.work))
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
		in.diverted.waits.Store(true)
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
			in.meter.handled(t.fate, 1, -1)
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

// A spreader partitions records by their keys, and in backlog topics those with a slot within that.
type spreader struct {
	kgo.Partitioner
	backlogs func(topic string) bool
}

func (s spreader) ForTopic(topic string) kgo.TopicPartitioner {
	p := s.Partitioner.ForTopic(topic)
	if s.backlogs(topic) {
		return spreadTopic{p}
	}
	return p
}

type spreadTopic struct{ kgo.TopicPartitioner }

func (spreadTopic) RequiresConsistency(*kgo.Record) bool { return true }

// Before a record is sent to a backlog topic its partition says how it is chosen: by its key, or by a slot.
const byKey = -1

func bySlot(slot int) int32 { return int32(byKey - 1 - slot) }

func (s spreadTopic) Partition(rec *kgo.Record, n int) int {
	switch {
	case rec.Partition >= 0: // it is sent again
		return int(rec.Partition) % n
	case rec.Partition == byKey:
		return s.TopicPartitioner.Partition(rec, n)
	}
	return partOf(byKey-1-int(rec.Partition), rec.Key, n)
}

// partOf returns the partition of a key in a slot.
func partOf(slot int, key []byte, partitions int) int {
	width := (partitions + slots - 1) / slots
	return (slot*width + int(hash(string(key))%uint32(width))) % partitions
}

func hash(words ...string) uint32 {
	h := fnv.New32a()
	for _, w := range words {
		h.Write([]byte(w)) // never fails
		h.Write([]byte{0})
	}
	return h.Sum32()
}
