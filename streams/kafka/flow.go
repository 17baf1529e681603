package kafka

import (
	"math/bits"
	"time"

	"github.com/millrace/millrace/schemas"
)

// A task is one record in a Pool.
type task struct {
	letter
	share     *share
	slot      uint64 // of the share's tracker
	flow      *flow
	next      *task // of the same key
	delivery  *schemas.Delivery
	err       error // of decoding, then of the last call
	began     time.Time
	cost      int64
	seq       uint64 // of all that the scheduler was given
	tries     int    // calls in this delivery so far
	decoded   bool
	working   bool // a worker has it
	postponed bool // it waits until it is tried again
	slots     bool // it holds those of its flow
	stays     bool // it cannot be moved to a backlog topic
}

func (t *task) bytes() int64 { return weigh(t.rec) }

// begun reports whether t is at work, or was, or is postponed.
func (t *task) begun() bool { return t.working || t.postponed || t.tries > 0 }

// A queue holds the tasks of one key, in order. Its head is in its flow, or at work, or
// parked, or postponed; never two of these.
type queue struct {
	key        uint64
	head, tail *task
	n          int    // tasks
	next       *queue // of the free ones
	// While its head waits to go on: its own flow, and what is closed when it has a worker.
	home   *flow
	goesOn chan struct{}
}

// A flow is what the scheduler tells apart: the work of one class, for one account, on the
// same stores. It holds the keys whose heads are of that kind and wait to be run.
type flow struct {
	sched   *scheduler
	class   int
	resumes bool // its tasks were parked and go on: no pause holds them, and their rates are paid
	work    Work // but for its key and bytes
	turn    *turn
	heads   heads
	listed  bool // is in turn.flows
	paused  bool // by a Control
	spill   bool // although paused it is run, into the delay lanes

	slots   []*slot // that each of its tasks needs
	held    int     // of slots, for the next task; guarded by Slots.mu while waits
	cost    int64   // of the next task
	waits   bool    // for slots
	yielded bool    // its slots, and is in class.yielded
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
type heads struct {
	by     [4]fifo[*queue] // by how much is behind: less than 8 tasks, 64, 512, more
	n      int
	long   bool   // whose turn it is
	picked *queue // was looked at: it stays the next, whatever comes
}

func (h *heads) len() int { return h.n }

func (h *heads) push(q *queue) {
	h.n++
	h.by[min((bits.Len(uint(q.n))-1)/3, len(h.by)-1)].push(q)
}

// peek returns the next; there must be one.
func (h *heads) peek() *queue {
	if h.picked != nil {
		return h.picked
	}
	var from *fifo[*queue]
	for i := range h.by {
		f := &h.by[i]
		if f.len() > 0 && (from == nil || h.long || f.peek().head.seq < from.peek().head.seq) {
			from = f
		}
	}
	h.long = !h.long
	h.picked = from.pop()
	return h.picked
}

// pop takes the next out; there must be one.
func (h *heads) pop() *queue {
	q := h.peek()
	h.picked = nil
	h.n--
	return q
}

// remove takes q out, which is among them.
func (h *heads) remove(q *queue) {
	h.n--
	if h.picked == q {
		h.picked = nil
		return
	}
	for i := range h.by {
		f := &h.by[i]
		for range f.len() {
			if other := f.pop(); other != q {
				f.push(other)
			}
		}
	}
}

// all takes all out.
func (h *heads) all() (qs []*queue) {
	for h.n > 0 {
		qs = append(qs, h.pop())
	}
	return qs
}

// A turn is one account within a class.
type turn struct {
	class   *class
	flows   fifo[*flow] // that have a task which may run
	credit  int64       // bytes that it may begin before the next has its turn
	listed  bool        // is in class.turns
	idle    int         // class.idle when credit was last set
	account string
	known   int // flows of it that are known
}

// turnBytes is what a task costs beyond its bytes, and what an account may begin before the next
// has its turn: small tasks of several accounts alternate.
const turnBytes = 64 << 10

// A class holds the accounts that have work of it. They take turns by deficit round robin.
type class struct {
	turns   fifo[*turn]
	byName  map[string]*turn
	atWork  int         // tasks that workers have
	resumed int         // of those that workers were given last, how many had been parked
	waiting int         // tasks that wait to go on
	yielded fifo[*flow] // that gave back their slots, as no worker could begin their tasks
	idle    int         // how often it had no turns: debts are from the time after
}

// next returns whose turn it is, or nil. Who began more than his turn allows sits out until
// he has made up for it.
func (c *class) next() *turn {
	for passed := 0; c.turns.len() > 0; {
		t := c.turns.peek()
		switch {
		case t.flows.len() == 0:
			c.turns.pop()
			t.listed = false
			continue
		case c.turns.len() == 1:
			t.credit = max(t.credit, 1)
			return t
		case t.credit > 0:
			return t
		}
		if passed++; passed > c.turns.len() {
			c.advance()
			passed = 0
			continue
		}
		t.credit += turnBytes
		c.turns.push(c.turns.pop())
	}
	return nil
}

// advance is as many rounds at once as the first account needs to have its turn.
func (c *class) advance() {
	least := int64(0)
	for i := range c.turns.len() {
		debt := -c.turns.peek().credit
		if i == 0 || debt < least {
			least = debt
		}
		c.turns.push(c.turns.pop())
	}
	for range c.turns.len() {
		t := c.turns.pop()
		t.credit += least/turnBytes*turnBytes + turnBytes
		c.turns.push(t)
	}
}
