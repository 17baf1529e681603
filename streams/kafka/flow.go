package kafka

import (
	"math/bits"
	"time"

	"github.com/millrace/millrace/schemas"
)

// A task is one record in a Pool.
type task struct {
	inflightRecord
	part       *assignment
	slot       uint64 // of the share's tracker
	flow       *flow
	next       *task // of the same key
	delivery   *schemas.Delivery
	err        error // of decoding, then of the last call
	began      time.Time
	cost       int64
	seq        uint64 // of all that the scheduler was given
	tries      int    // calls in this delivery so far
	decoded    bool
	running    bool // a worker has it
	postponed  bool // it waits until it is tried again
	holdsSlots bool // it holds those of its flow
	unmovable  bool // it cannot be moved to a backlog topic
}

func (t *task) bytes() int64 { return recordBytes(t.rec) }

// begun reports whether t is at work, or was, or is postponed.
func (t *task) started() bool { return t.running || t.postponed || t.tries > 0 }

// A queue holds the tasks of one key, in order. Its head is in its flow, or at work, or
// parked, or postponed; never two of these.
type keyQueue struct {
	key        uint64
	head, tail *task
	n          int       // tasks
	next       *keyQueue // of the free ones
	// While its head waits to go on: its own flow, and what is closed when it has a worker.
	homeFlow      *flow
	workerGranted chan struct{}
}

// A flow is what the scheduler tells apart: the work of one class, for one account, on the
// same stores. It holds the keys whose heads are of that kind and wait to be run.
type flow struct {
	sched   *scheduler
	class   int
	resumes bool // its tasks were parked and go on: no pause holds them, and their rates are paid
	work    Work // but for its key and bytes
	account *accountQueue
	ready   readyKeys
	queued  bool // is in turn.flows
	paused  bool // by a Control
	shed    bool // although paused it is run, into the delay lanes

	slots         []*slot // that each of its tasks needs
	heldSlots     int     // of slots, for the next task; guarded by Slots.mu while waits
	cost          int64   // of the next task
	waitsForSlots bool    // for slots
	released      bool    // its slots, and is in class.yielded
}

// kind returns the kind of workers that run f's tasks.
func (f *flow) kind() int {
	if f.class == classLarge {
		return 1
	}
	return 0
}

// heads are those of a flow's keys that wait. In turns the one that came first is next, and one with very
// much behind it: tasks of one key take turns, and what of a frequent key is not begun until all others are
// done is done when nothing else is, on one worker, with a window that does not move.
type readyKeys struct {
	bySize     [4]fifo[*keyQueue] // by how much is behind: less than 8 tasks, 64, 512, more
	n          int
	preferLong bool      // whose turn it is
	peeked     *keyQueue // was looked at: it stays the next, whatever comes
}

func (h *readyKeys) len() int { return h.n }

func (h *readyKeys) push(q *keyQueue) {
	h.n++
	h.bySize[min((bits.Len(uint(q.n))-1)/3, len(h.bySize)-1)].push(q)
}

// peek returns the next; there must be one.
func (h *readyKeys) peek() *keyQueue {
	if h.peeked != nil {
		return h.peeked
	}
	var from *fifo[*keyQueue]
	for i := range h.bySize {
		f := &h.bySize[i]
		if f.len() > 0 && (from == nil || h.preferLong || f.peek().head.seq < from.peek().head.seq) {
			from = f
		}
	}
	h.preferLong = !h.preferLong
	h.peeked = from.pop()
	return h.peeked
}

// pop takes the next out; there must be one.
func (h *readyKeys) pop() *keyQueue {
	q := h.peek()
	h.peeked = nil
	h.n--
	return q
}

// remove takes q out, which is among them.
func (h *readyKeys) remove(q *keyQueue) {
	h.n--
	if h.peeked == q {
		h.peeked = nil
		return
	}
	for i := range h.bySize {
		f := &h.bySize[i]
		for range f.len() {
			if other := f.pop(); other != q {
				f.push(other)
			}
		}
	}
}

// all takes all out.
func (h *readyKeys) all() (qs []*keyQueue) {
	for h.n > 0 {
		qs = append(qs, h.pop())
	}
	return qs
}

// A turn is one account within a class.
type accountQueue struct {
	class     *classQueue
	flows     fifo[*flow] // that have a task which may run
	credit    int64       // bytes that it may begin before the next has its turn
	queued    bool        // is in class.turns
	idleEpoch int         // class.idle when credit was last set
	name      string
	flowCount int // flows of it that are known
}

// turnBytes is what a task costs beyond its bytes, and what an account may begin before the next
// has its turn: small tasks of several accounts alternate.
const quantum = 64 << 10

// A class holds the accounts that have work of it. They take turns by deficit round robin.
type classQueue struct {
	accounts      fifo[*accountQueue]
	byName        map[string]*accountQueue
	running       int         // tasks that workers have
	resumedStreak int         // of those that workers were given last, how many had been parked
	resumeWaiting int         // tasks that wait to go on
	released      fifo[*flow] // that gave back their slots, as no worker could begin their tasks
	idleEpoch     int         // how often it had no turns: debts are from the time after
}

// next returns whose turn it is, or nil. Who began more than his turn allows sits out until
// he has made up for it.
func (c *classQueue) next() *accountQueue {
	for passed := 0; c.accounts.len() > 0; {
		t := c.accounts.peek()
		switch {
		case t.flows.len() == 0:
			c.accounts.pop()
			t.queued = false
			continue
		case c.accounts.len() == 1:
			t.credit = max(t.credit, 1)
			return t
		case t.credit > 0:
			return t
		}
		if passed++; passed > c.accounts.len() {
			c.skipRounds()
			passed = 0
			continue
		}
		t.credit += quantum
		c.accounts.push(c.accounts.pop())
	}
	return nil
}

// advance is as many rounds at once as the first account needs to have its turn.
func (c *classQueue) skipRounds() {
	least := int64(0)
	for i := range c.accounts.len() {
		debt := -c.accounts.peek().credit
		if i == 0 || debt < least {
			least = debt
		}
		c.accounts.push(c.accounts.pop())
	}
	for range c.accounts.len() {
		t := c.accounts.pop()
		t.credit += least/quantum*quantum + quantum
		c.accounts.push(t)
	}
}
