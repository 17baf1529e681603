package kafka

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/streams/kafka/client"

	"github.com/millrace/millrace/streams/kafka/schedule"
)

// A diversion holds the flows of a fetcher that are moved to its backlog topic.
type diversion struct {
	active       atomic.Bool  // there are flows to move
	unacked      atomic.Int64 // messages sent to the backlog topic and not acknowledged
	unackedBytes atomic.Int64 // their size
	unpaced      int64        // bytes moved since pace has waited last; guarded by fetcher.queueLock
	acked        atomic.Int64 // messages acknowledged so far
	stalled      atomic.Bool  // for a second the brokers have acknowledged none, or too few to move more of a partition
	refused      atomic.Bool  // the brokers have permanently rejected a message
	denied       atomic.Bool  // the brokers deny write access

	mu         sync.Mutex // guards the fields below
	flows      map[schedule.FlowID]*route
	nextExpiry time.Time // when to expire flows with few arrivals
}

// A route says where the messages of a flow are moved to.
type route struct {
	slot    int
	open    bool // messages that arrive are moved too
	arrived int  // messages since the last expiry, and those that were moved out of the queue
}

// routeOf returns the slot to which a message of a flow must be moved, if the flow is being moved.
func (d *diversion) routeOf(id schedule.FlowID) (slot int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.flows[id]
	if r == nil || !r.open {
		return 0, false
	}
	r.arrived++
	return r.slot, !d.stalled.Load()
}

// slotOf returns the slot to which a message that waits is moved. A new flow gets the slot with the fewest flows.
func (d *diversion) slotOf(id schedule.FlowID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.flows[id]; r != nil {
		r.arrived++
		return r.slot
	}
	var used [client.BacklogSlots]int
	for _, r := range d.flows {
		used[r.slot]++
	}
	first, slot := int(client.HashWords(id.Account, id.Stores[0], id.Stores[1])%client.BacklogSlots), 0
	for i := range client.BacklogSlots {
		if at := (first + i) % client.BacklogSlots; i == 0 || used[at] < used[slot] {
			slot = at
		}
	}
	d.flows[id] = &route{slot: slot, arrived: 1}
	return slot
}

// open starts to move arriving messages of a flow. It reports whether they were not moved before.
func (d *diversion) open(id schedule.FlowID) (fresh bool) {
	d.slotOf(id)
	d.mu.Lock()
	defer d.mu.Unlock()
	fresh = !d.flows[id].open
	d.flows[id].open = true
	d.active.Store(true)
	return fresh
}

// expire removes the flows with less than few arrivals.
func (d *diversion) expire(now time.Time, few int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Before(d.nextExpiry) {
		return
	}
	d.nextExpiry = now.Add(divertWindow)
	maps.DeleteFunc(d.flows, func(_ schedule.FlowID, r *route) bool { return r.arrived < few })
	for _, r := range d.flows {
		r.arrived = 0
	}
	d.active.Store(len(d.flows) > 0)
}

// An accountWeight is an account with its flows, heaviest first.
type accountWeight struct {
	account string
	sum     int64
	flows   []schedule.FlowID
}

// accountHeap is a heap with the heaviest account on top.
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

// heaviest returns the flows to move. It repeatedly takes the heaviest flow of the heaviest account, or all
// its flows if that one is less than half of the account, until at most keep is left in total. Accounts with
// less than least stay.
func heaviest(weights map[schedule.FlowID]int64, keep, least int64) (flows []schedule.FlowID) {
	by := map[string]*accountWeight{}
	var all accountHeap
	var sum int64
	for id, n := range weights {
		o := by[id.Account]
		if o == nil {
			o = &accountWeight{account: id.Account}
			by[id.Account], all = o, append(all, o)
		}
		o.sum += n
		sum += n
		o.flows = append(o.flows, id)
	}
	all = slices.DeleteFunc(all, func(o *accountWeight) bool { return o.sum < least })
	for _, o := range all {
		slices.SortFunc(o.flows, func(a, b schedule.FlowID) int {
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
