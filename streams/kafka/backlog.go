package kafka

import (
	"cmp"
	"context"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A backlog is more messages of one account, or for one store, than a window holds, whose tasks take long. If it stayed in
// front, the messages of others behind it would not be read for hours. So what fills a window for a second is moved to a
// topic of the class, the backlog topic, which is read beside the others, with windows of its own. There the messages of
// each flow have a third of the partitions, chosen by a hash of the flow.
const (
	stuckAfter   = time.Second     // that a window is full
	divertedFor  = 2 * time.Minute // at least, what more arrives of a flow is moved too
	fewestPart   = 256             // a flow with less than this part of a window is not moved
	backlogPart  = 2               // of Bytes, what the messages of a backlog topic may weigh
	backlogWidth = 3               // a flow has one of so many partitions
)

// A diversion is which flows of an intake are moved to its backlog topic.
type diversion struct {
	any   atomic.Bool  // there are some
	mu    sync.Mutex   // guards the rest
	flows map[Work]int // by flow: how many messages have arrived since
	since time.Time
}

// flowName is w without what differs between messages of one flow.
func flowName(w Work) Work {
	w.Key, w.Bytes = "", 0
	return w
}

// takes reports whether the task of w is to be moved, as its flow is.
func (d *diversion) takes(w Work) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	w = flowName(w)
	_, moved := d.flows[w]
	if moved {
		d.flows[w]++
	}
	return moved
}

// add has flows moved, and returns those that were not before.
func (d *diversion) add(flows []Work) (fresh []Work) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range flows {
		if _, moved := d.flows[f]; !moved {
			fresh = append(fresh, f)
			d.flows[f] = 0
		}
	}
	d.any.Store(true)
	return fresh
}

// expire forgets the flows of which few messages have arrived in the last time.
func (d *diversion) expire(now time.Time, few int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Sub(d.since) < divertedFor {
		return
	}
	maps.DeleteFunc(d.flows, func(_ Work, n int) bool { return n < few })
	for f := range d.flows {
		d.flows[f] = 0
	}
	d.any.Store(len(d.flows) > 0)
	d.since = now
}

// heaviest returns the flows to move: the heaviest ones, until no more than keep is left. What is lighter than least stays.
func heaviest(weights map[Work]int64, keep, least int64) (flows []Work) {
	var sum int64
	for _, n := range weights {
		sum += n
	}
	all := slices.SortedFunc(maps.Keys(weights), func(a, b Work) int {
		return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(a.Account, b.Account),
			slices.Compare(a.Stores[:], b.Stores[:]))
	})
	for _, f := range all {
		if sum <= keep || weights[f] < least {
			break
		}
		sum -= weights[f]
		flows = append(flows, f)
	}
	return flows
}

// divert moves backlogs out of the way until ctx is done.
func (in *intake) divert(ctx context.Context) {
	t := time.NewTicker(stuckAfter / 4)
	defer t.Stop()
	var heavy time.Time // since when the records in flight weigh as much as they may; zero: they do not
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		in.diverted.expire(now, in.p.window)
		in.restrain()
		switch {
		case !in.weight.full(in.room()):
			heavy = time.Time{}
		case heavy.IsZero():
			heavy = now
		}
		in.clear(!heavy.IsZero() && now.Sub(heavy) >= stuckAfter)
	}
}

// clear moves what keeps partitions from being read: what fills their windows or, if the intake is too heavy to read on,
// what weighs most of all.
func (in *intake) clear(heavy bool) {
	stuck := map[*share]bool{}
	for _, sh := range in.owned(nil) {
		if !sh.backlog && !sh.stopping.Load() && (heavy || sh.stuck(stuckAfter)) {
			stuck[sh] = true
		}
	}
	if len(stuck) == 0 {
		return
	}
	var flows []Work
	if heavy {
		all := map[Work]int64{}
		for _, tasks := range in.p.sched.waiting(stuck) {
			for f, n := range tasks {
				all[f] += n.bytes
			}
		}
		flows = heaviest(all, in.p.cfg.Bytes/4, in.p.cfg.Bytes/fewestPart)
	} else {
		for sh, tasks := range in.p.sched.waiting(stuck) {
			of := map[Work]int64{}
			for f, n := range tasks {
				of[f] = n.tasks
			}
			flows = append(flows, heaviest(of, int64(sh.window()/4), max(2, int64(in.p.window/fewestPart)))...)
		}
	}
	if len(flows) > 0 {
		in.moveAside(stuck, flows)
	}
}

// moveAside moves the tasks of shares and flows that were not begun, and those that will be read.
func (in *intake) moveAside(shares map[*share]bool, flows []Work) {
	in.moving.Lock() // those of one key keep their order: what is read meanwhile comes after
	defer in.moving.Unlock()
	for _, f := range in.diverted.add(flows) {
		in.p.router.log.Info("move a backlog out of the way", "account", f.Account, "stores", f.Stores, "to", in.backlog)
	}
	var tasks []*task
	in.p.sched.purge(func(t *task) bool {
		return shares[t.share] && t.tries == 0 && slices.Contains(flows, t.flow.work)
	}, func(t *task) { tasks = append(tasks, t) })
	slices.SortFunc(tasks, func(a, b *task) int { return cmp.Compare(a.seq, b.seq) })
	for _, t := range tasks {
		in.move(t, t.flow.work)
	}
}

// without moves the tasks whose flows are moved, and returns the others.
func (in *intake) without(tasks []*task, keys []uint64, work []Work) ([]*task, []uint64, []Work) {
	if in.backlog == "" || !in.diverted.any.Load() {
		return tasks, keys, work
	}
	n := 0
	for i, t := range tasks {
		if !t.share.backlog && in.diverted.takes(work[i]) {
			in.move(t, work[i])
			continue
		}
		tasks[n], keys[n], work[n] = t, keys[i], work[i]
		n++
	}
	return tasks[:n], keys[:n], work[:n]
}

// move publishes the message of t, which was not begun, to the backlog topic.
func (in *intake) move(t *task, w Work) {
	if !t.share.begin() {
		in.p.forget(t)
		return
	}
	rec := in.p.router.onward(&t.letter, in.backlog)
	if !in.p.cfg.CoPartitioned { // else its partition is that of its key, as in the other topics
		rec.Context = context.WithValue(in.p.out.ctx, partOf{}, hash(w.Account, w.Stores[0], w.Stores[1]))
	}
	in.p.publish(t, []*kgo.Record{rec}, -1)
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

// partOf is the key of the hash of a flow in a record's context.
type partOf struct{}

// A spreader partitions records by their keys, and in backlog topics those with a flow within its third.
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

func (s spreadTopic) Partition(rec *kgo.Record, n int) int {
	if flow, ok := flowOf(rec); ok {
		return partFor(flow, rec.Key, n)
	}
	return s.TopicPartitioner.Partition(rec, n)
}

// flowOf returns the hash of the flow of a record that is to be in a third of the partitions.
func flowOf(rec *kgo.Record) (flow uint32, ok bool) {
	if rec.Context == nil {
		return 0, false
	}
	flow, ok = rec.Context.Value(partOf{}).(uint32)
	return flow, ok
}

// partFor returns the partition of a key of a flow.
func partFor(flow uint32, key []byte, partitions int) int {
	width := uint32(partitions+backlogWidth-1) / backlogWidth
	return int((flow + hash(string(key))%width) % uint32(partitions))
}

func hash(words ...string) uint32 {
	h := fnv.New32a()
	for _, w := range words {
		io.WriteString(h, w) // never fails
		h.Write([]byte{0})
	}
	return h.Sum32()
}
