package kafka

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A diversion is which flows of an intake are moved to its backlog topic.
type diversion struct {
	active       atomic.Bool  // there are some
	unacked      atomic.Int64 // messages that were sent there, and not acknowledged
	unackedBytes atomic.Int64 // the size of those
	acked        atomic.Int64 // messages that were acknowledged
	stalled      atomic.Bool  // for a second the brokers have acknowledged none, or too few to move more of a partition
	refused      atomic.Bool  // they have refused one for good
	denied       atomic.Bool  // they do not allow it

	mu         sync.Mutex // guards the rest
	flows      map[Work]*route
	nextExpiry time.Time // when it is looked how many have arrived
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
func (d *diversion) routeOf(w Work) (slot int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.flows[flowName(w)]
	if r == nil || !r.open {
		return 0, false
	}
	r.arrived++
	return r.slot, !d.stalled.Load()
}

// slotOf returns the slot of a flow: if it has none yet, the one that the fewest others have.
func (d *diversion) slotOf(f Work) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.flows[f]; r != nil {
		return r.slot
	}
	var used [backlogSlots]int
	for _, r := range d.flows {
		used[r.slot]++
	}
	first, slot := int(hashWords(f.Account, f.Stores[0], f.Stores[1])%backlogSlots), 0
	for i := range backlogSlots {
		if at := (first + i) % backlogSlots; i == 0 || used[at] < used[slot] {
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
	d.active.Store(true)
	return fresh
}

// expire forgets the flows of which few messages arrive.
func (d *diversion) expire(now time.Time, few int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Before(d.nextExpiry) {
		return
	}
	d.nextExpiry = now.Add(divertWindow)
	maps.DeleteFunc(d.flows, func(_ Work, r *route) bool { return r.arrived < few })
	for _, r := range d.flows {
		r.arrived = 0
	}
	d.active.Store(len(d.flows) > 0)
}

// An owner is an account with its flows, the heaviest first.
type accountWeight struct {
	account string
	sum     int64
	flows   []Work
}

// owners is a heap with the heaviest account on top.
type accountHeap []*accountWeight

func (o accountHeap) Len() int { return len(o) }
func (o accountHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(o[j].sum, o[i].sum), cmp.Compare(o[i].account, o[j].account)) < 0
}
func (o accountHeap) Swap(i, j int) { o[i], o[j] = o[j], o[i] }
func (o *accountHeap) Push(x any)   { *o = append(*o, x.(*accountWeight)) }
func (o *accountHeap) Pop() any {
	last := (*o)[len(*o)-1]
	*o = (*o)[:len(*o)-1]
	return last
}

// heaviest returns the flows to move: of the account that has most left its heaviest one, or all if that is less than half
// of them, until no more than keep is left in all. An account that has less than least stays as it is.
func heaviest(weights map[Work]int64, keep, least int64) (flows []Work) {
	by := map[string]*accountWeight{}
	var all accountHeap
	var sum int64
	for f, n := range weights {
		o := by[f.Account]
		if o == nil {
			o = &accountWeight{account: f.Account}
			by[f.Account], all = o, append(all, o)
		}
		o.sum += n
		sum += n
		o.flows = append(o.flows, f)
	}
	all = slices.DeleteFunc(all, func(o *accountWeight) bool { return o.sum < least })
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
