package schedule

import (
	"maps"
	"math/bits"
)

// A flow is the unit of scheduling: the tasks of one class, for one account, on the same stores. It holds the
// keys with a head that belongs to the flow and is ready to run.
type flow struct {
	sched   *Scheduler
	class   int
	resumes bool // its tasks were parked and resume: pauses and rate limits do not apply to them
	id      FlowID
	account *accountQueue
	tasks   int // that belong to it: queued, handed out, parked or postponed
	ready   readyKeys
	queued  bool // it is in account.flows
	paused  bool // Config.Paused says so
	shed    bool // it runs although it is paused

	slots         []*slot // that each of its tasks needs
	heldSlots     int     // held for the next task, of slots; guarded by Slots.mu while waitsForSlots
	cost          int64   // of the next task
	waitsForSlots bool
	released      bool // it gave its slots back and is in classQueue.released
}

// kind returns the kind of workers that run f's tasks.
func (f *flow) kind() Kind {
	if f.class == classLarge {
		return LargeWorker
	}
	return MainWorker
}

// readyKeys are the keys of a flow that are ready to run. It alternates between the key that arrived first
// and a key with many queued tasks. Without that, a frequent key would be left for last, when nothing else is
// to do: its tasks would then run one by one on one worker, while the window does not advance.
type readyKeys struct {
	bySize     [4]fifo[*keyQueue] // by number of queued tasks: less than 8, 64, 512, more
	n          int
	preferLong bool      // the next key is one with many queued tasks
	peeked     *keyQueue // returned by peek; it stays the next one when keys are added
}

func (r *readyKeys) len() int { return r.n }

func (r *readyKeys) push(q *keyQueue) {
	r.n++
	r.bySize[min((bits.Len(uint(q.n))-1)/3, len(r.bySize)-1)].push(q)
}

// peek returns the next key. There must be one.
func (r *readyKeys) peek() *keyQueue {
	if r.peeked != nil {
		return r.peeked
	}
	var from *fifo[*keyQueue]
	for i := range r.bySize {
		f := &r.bySize[i]
		if f.len() > 0 && (from == nil || r.preferLong || f.peek().head.seq < from.peek().head.seq) {
			from = f
		}
	}
	r.preferLong = !r.preferLong
	r.peeked = from.pop()
	return r.peeked
}

// pop removes and returns the next key. There must be one.
func (r *readyKeys) pop() *keyQueue {
	q := r.peek()
	r.peeked = nil
	r.n--
	return q
}

// removeAll removes the keys of a set that are ready, and returns them.
func (r *readyKeys) removeAll(keys map[*keyQueue]bool) (removed []*keyQueue) {
	if keys[r.peeked] {
		removed, r.peeked = append(removed, r.peeked), nil
	}
	for i := range r.bySize {
		f := &r.bySize[i]
		for range f.len() {
			if q := f.pop(); keys[q] {
				removed = append(removed, q)
			} else {
				f.push(q)
			}
		}
	}
	r.n -= len(removed)
	return removed
}

// An accountQueue is one account within a class.
type accountQueue struct {
	class     *classQueue
	flows     fifo[*flow] // flows with a task that may run
	credit    int64       // bytes of tasks that it may start before the next account is served
	queued    bool        // it is in classQueue.accounts
	idleEpoch int         // classQueue.idleEpoch when credit was last set
	flowCount int         // known flows of the account
}

// quantum is the credit of an account per round, and is added to the size of each task, so that small tasks
// of several accounts alternate.
const quantum = 64 << 10

// A classQueue holds the accounts with work of a class, and serves them by deficit round robin.
type classQueue struct {
	accounts      fifo[*accountQueue]
	byName        map[string]*accountQueue
	running       int         // tasks that have a worker
	resumedStreak int         // tasks that resumed since the last task started
	resumeWaiting int         // parked tasks that wait to resume
	released      fifo[*flow] // flows that gave their slots back because no worker could start their tasks
	idleEpoch     int         // number of times that it ran empty; debts of earlier epochs are forgotten
}

// next returns the account to serve next, or nil if there is none. An account in debt is skipped until its
// credit is positive.
func (c *classQueue) next() *accountQueue {
	for passed := 0; c.accounts.len() > 0; {
		acct := c.accounts.peek()
		switch {
		case acct.flows.len() == 0:
			c.accounts.pop()
			acct.queued = false
			continue
		case c.accounts.len() == 1:
			acct.credit = max(acct.credit, 1)
			return acct
		case acct.credit > 0:
			return acct
		}
		if passed++; passed > c.accounts.len() {
			c.skipRounds()
			passed = 0
			continue
		}
		acct.credit += quantum
		c.accounts.push(c.accounts.pop())
	}
	return nil
}

// skipRounds adds as many rounds of credit at once as the first account needs to be served.
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
		acct := c.accounts.pop()
		acct.credit += least/quantum*quantum + quantum
		c.accounts.push(acct)
	}
}

// A flowKey is the key of a flow in Scheduler.flows.
type flowKey struct {
	index int // of its class, or resumeOffset plus that
	id    FlowID
}

// flowOf returns a flow of a class, or of resumeOffset plus a class.
func (s *Scheduler) flowOf(index int, id FlowID) *flow {
	if f := s.lastFlow[index]; f != nil && f.id == id {
		return f
	}
	f := s.flows[flowKey{index, id}]
	if f == nil {
		if len(s.flows) >= s.pruneAt {
			s.prune()
		}
		f = s.newFlow(index, id)
		s.flows[flowKey{index, id}] = f
	}
	s.lastFlow[index] = f
	return f
}

func (s *Scheduler) newFlow(index int, id FlowID) *flow {
	c := &s.classes[index]
	acct := c.byName[id.Account]
	if acct == nil {
		acct = &accountQueue{class: c}
		c.byName[id.Account] = acct
	}
	acct.flowCount++
	f := &flow{sched: s, class: index % resumeOffset, resumes: index >= resumeOffset, id: id, account: acct}
	if s.slots != nil {
		f.slots = s.slots.slotsFor(id.Account, id.Stores)
	}
	if !f.resumes {
		f.paused = s.isPaused(id)
		s.anyPaused = s.anyPaused || f.paused
	}
	return f
}

// minPrune is the number of flows below which none is removed.
const minPrune = 4096

// prune removes flows without tasks, and accounts without flows, which lose their debt. It is called when there are
// twice as many flows as the last call has left.
func (s *Scheduler) prune() {
	for k, f := range s.flows {
		if f.tasks == 0 && !f.queued && !f.waitsForSlots && !f.released && f.heldSlots == 0 {
			delete(s.flows, k)
			f.account.flowCount--
		}
	}
	for i := range s.classes {
		maps.DeleteFunc(s.classes[i].byName, func(_ string, a *accountQueue) bool { return a.flowCount == 0 && !a.queued })
	}
	clear(s.lastFlow[:])
	s.pruneAt = max(minPrune, 2*len(s.flows))
}
