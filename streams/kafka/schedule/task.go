package schedule

import (
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/schemas"
)

// A Task is one task of a Scheduler. The owner embeds it in a type of its own, and sets Gate and Owner before
// it adds it.
type Task struct {
	Gate  *Gate
	Owner any // what embeds the task

	// Scheduler.mu guards the fields below.
	flow       *flow
	queue      *keyQueue // of its key, while it is handed out
	next       *Task     // of the same key
	cost       int64
	seq        uint64 // position among all tasks added to the scheduler
	running    bool   // it has a worker
	postponed  bool   // it waits for its retry in place
	holdsSlots bool   // it holds the slots of its flow
}

// Flow returns the flow of t, which is handed out or was passed to a callback.
func (t *Task) Flow() FlowID { return t.flow.id }

// WorkBytes returns Entry.Bytes, within bounds.
func (t *Task) WorkBytes() int64 { return t.cost - quantum }

// Busy reports whether t is running or postponed. Only callbacks of the scheduler may call it.
func (t *Task) Busy() bool { return t.running || t.postponed }

// A FlowID names a flow: the account of its tasks, and the stores of the account that they use. Empty stores
// are ignored.
type FlowID struct {
	Account string
	Stores  [2]string
}

// An Entry describes a task that is added.
type Entry struct {
	Task  *Task
	Key   uint64 // tasks with the same one are handed out one after the other, in the order in which they were added
	Class schemas.Class
	Flow  FlowID
	Bytes int64 // estimate of the bytes that the task will move
}

// maxBytes bounds Entry.Bytes, so that sums do not overflow.
const maxBytes = 1 << 50

// A Gate counts the tasks of one origin, such as an assigned partition, that have started and not ended. When it is
// closed, no more of them start.
type Gate struct {
	closed    atomic.Bool
	running   atomic.Int64 // tasks that have started and not ended
	idle      chan struct{}
	closeIdle sync.Once // closes idle when closed and running is 0
}

// NewGate returns a Gate that is open.
func NewGate() *Gate { return &Gate{idle: make(chan struct{})} }

// Begin counts a task that is about to start. It reports false if the Gate is closed. The scheduler calls it before it
// hands out a task.
func (g *Gate) Begin() bool {
	g.running.Add(1)
	if g.closed.Load() {
		g.End()
		return false
	}
	return true
}

// End ends a task that has started.
func (g *Gate) End() {
	if g.running.Add(-1) == 0 && g.closed.Load() {
		g.closeIdle.Do(func() { close(g.idle) })
	}
}

// Close prevents the start of tasks.
func (g *Gate) Close() {
	g.closed.Store(true)
	if g.running.Load() == 0 {
		g.closeIdle.Do(func() { close(g.idle) })
	}
}

// Closed reports whether Close was called.
func (g *Gate) Closed() bool { return g.closed.Load() }

// Running returns the number of tasks that have started and not ended.
func (g *Gate) Running() int { return int(g.running.Load()) }

// Idle returns a channel that is closed when the Gate is closed and all tasks that have started have ended.
func (g *Gate) Idle() <-chan struct{} { return g.idle }

// A keyQueue holds the tasks of one key, in order. Its head is either ready in its flow, running, parked or
// postponed.
type keyQueue struct {
	key        uint64
	head, tail *Task
	n          int       // number of tasks
	next       *keyQueue // in the free list
	// Set while a parked head waits to resume: its original flow, and a channel that is closed when it has a
	// worker.
	homeFlow      *flow
	workerGranted chan struct{}
}
