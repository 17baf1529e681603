package kafka

import (
	"cmp"
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

// heaviest returns the flows to move. It repeatedly takes the heaviest flow of the heaviest account, or all
// its flows if that one is less than half of the account, until at most keep is left in total. Accounts with
// less than least stay.
func heaviest(weights map[schedule.FlowID]int64, keep, least int64) (flows []schedule.FlowID) {
	by := map[string]*accountWeight{}
	var sum int64
	for id, n := range weights {
		o := by[id.Account]
		if o == nil {
			o = &accountWeight{account: id.Account}
			by[id.Account] = o
		}
		o.sum += n
		sum += n
		o.flows = append(o.flows, id)
	}
	light := func(_ string, o *accountWeight) bool { return o.sum < least }
	maps.DeleteFunc(by, light)
	for _, o := range by {
		slices.SortFunc(o.flows, func(a, b schedule.FlowID) int {
			return cmp.Or(cmp.Compare(weights[b], weights[a]), slices.Compare(a.Stores[:], b.Stores[:]))
		})
	}
	for sum > keep && len(by) > 0 { // at most sum/least accounts
		o := slices.MaxFunc(slices.Collect(maps.Values(by)), func(a, b *accountWeight) int {
			return cmp.Or(cmp.Compare(a.sum, b.sum), cmp.Compare(b.account, a.account))
		})
		taken := 1
		if n := weights[o.flows[0]]; n < o.sum-n {
			taken = len(o.flows)
		}
		for _, id := range o.flows[:taken] {
			o.sum -= weights[id]
			sum -= weights[id]
		}
		flows, o.flows = append(flows, o.flows[:taken]...), o.flows[taken:]
		maps.DeleteFunc(by, light)
	}
	return flows
}
