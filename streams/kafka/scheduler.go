package kafka

import (
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
)

// The classes, as the scheduler counts them.
const (
	classHigh = iota
	classLow
	classLarge
	classes
)

// resumed is what is added to a class for those of its tasks that were parked and go on.
const resumed = classes

func rank(c schemas.Class) int {
	switch c {
	case schemas.Low:
		return classLow
	case schemas.Large:
		return classLarge
	}
	return classHigh
}

// A scheduler gives out tasks: those of one key one after the other and in order, those of
// different keys side by side; by class, and within a class by account. A task that is
// given out has its slots.
type scheduler struct {
	dropped func(*task) // is told of tasks that are not begun, with mu held
	slots   *Slots
	weight  int // tasks of class high for one of class low

	mu      sync.Mutex
	work    [2]sync.Cond // there is work: for workers of high and low, and of large
	idle    [2]int       // who waits for it
	workers map[*worker]bool
	staff   int // of workers, those of high and low whose task, if they have one, was never parked
	allowed int // tasks of high and low at work at a time
	kept    int // of allowed, those that low must leave
	large   int // tasks of large at work at a time
	parked  int // tasks that were begun and have no worker
	others  int // of parked, those that are not of class high
	most    int // of parked: then no other task is begun; from half of it in others on, none but of class high
	classes [2 * classes]class
	added   uint64 // tasks
	streak  int    // of class high, while low had work
	keys    map[uint64]*queue
	flows   map[Work]*flow
	last    [2 * classes]*flow // looked up last
	free    *queue
	ready   int // heads in flows that are not paused; an estimate of what may be given out
	halted  bool
	aside   bool // Beside is about to be called, or is
	fresh   int  // assignments since Prepare was called
	pausing bool // anything is paused
	closed  bool
	pending []*flow // to be announced when mu is free
}

// defaultWeight is how many tasks of class high are begun for one of class low.
const defaultWeight = 8

func newScheduler(slots *Slots, dropped func(*task)) *scheduler {
	s := &scheduler{
		keys: map[uint64]*queue{}, flows: map[Work]*flow{}, dropped: dropped, slots: slots,
		weight: defaultWeight, allowed: 1, most: maxParked, workers: map[*worker]bool{},
	}
	for i := range s.work {
		s.work[i].L = &s.mu
	}
	for i := range s.classes {
		s.classes[i].byName = map[string]*turn{}
	}
	return s
}

// flowOf returns the flow of work of a class, or of resumed plus a class. w's key and bytes do not count.
func (s *scheduler) flowOf(side int, w Work, paused func(Work) bool) *flow {
	w = flowName(w)
	if f := s.last[side]; f != nil && f.work == w {
		return f
	}
	w.Bytes = int64(side) // of the map's key alone
	f := s.flows[w]
	if f == nil {
		of := w
		of.Bytes = 0
		c := &s.classes[side]
		tn := c.byName[w.Account]
		if tn == nil {
			tn = &turn{class: c, account: w.Account}
			c.byName[w.Account] = tn
		}
		tn.known++
		f = &flow{sched: s, class: side % resumed, resumes: side >= resumed, work: of, turn: tn,
			slots: s.slots.of(w.Account, w.Stores), paused: paused(of)}
		s.pausing = s.pausing || f.paused
		s.flows[w] = f
	}
	s.last[side] = f
	return f
}

// An item is a task that is handed out, with the queue whose head it is.
type item struct {
	task *task
	q    *queue
	// next is the message of the last task that stood behind it then, nil for none, and share that of that task.
	next  schemas.Body
	share *share
}

// handOut returns q's head as an item. A message that came back from a lane is older than its place says, and has fewer
// deliveries left; one of another group can be given back without the head. Neither counts as behind. mu is held.
func handOut(q *queue) item {
	it, t := item{task: q.head, q: q}, q.tail
	if t != q.head && t.delivery != nil && (t.past == nil || t.share.backlog && t.past.attempts+t.past.waits == 0) && t.share.in == q.head.share.in {
		it.next, it.share = t.delivery.Body, t.share
	}
	return it
}

// add queues tasks, keys[i] being that of tasks[i].
func (s *scheduler) add(tasks []*task, keys []uint64) {
	s.mu.Lock()
	for i, t := range tasks {
		s.added++
		t.seq = s.added
		if q := s.keys[keys[i]]; q != nil {
			q.tail.next = t
			q.tail = t
			q.n++
			continue
		}
		q := s.free
		if q == nil {
			q = new(queue)
		} else {
			s.free = q.next
		}
		*q = queue{key: keys[i], head: t, tail: t, n: 1}
		s.keys[keys[i]] = q
		s.push(q)
	}
	s.wake()
	s.unlock()
}

// behind returns the message of the last task that is known to stand behind the task, unless it is about to be given
// back; nil if there is none.
func (it item) behind() schemas.Body {
	if it.share == nil || it.share.stopping.Load() {
		return nil
	}
	return it.next
}

// unlock lets go of mu, and tells others of the slots that became theirs meanwhile.
func (s *scheduler) unlock() {
	pending := s.pending
	s.pending = nil
	s.mu.Unlock()
	announce(pending)
}

// push has the head of q wait to be run.
func (s *scheduler) push(q *queue) {
	f := q.head.flow
	f.heads.push(q)
	s.ready++
	s.list(f)
}

// list puts f up for running, if anything of it may run.
func (s *scheduler) list(f *flow) {
	if f.listed || f.waits || f.yielded || f.heads.len() == 0 || f.paused && !f.spill {
		return
	}
	if len(f.slots) > 0 && !f.spill {
		if s.full(f) {
			s.sitOut(f)
			return
		}
		f.cost = f.heads.peek().head.cost
		if !s.slots.acquire(f) {
			f.waits = true
			return
		}
	}
	s.enlist(f)
}

// enlist puts f up. An account that comes back owes what it owed, unless its class had no work meanwhile.
func (s *scheduler) enlist(f *flow) {
	f.listed = true
	t := f.turn
	t.flows.push(f)
	if t.listed {
		return
	}
	c := t.class
	if c.turns.len() == 0 {
		c.idle++
	}
	if t.idle != c.idle {
		t.idle, t.credit = c.idle, 0
	}
	t.listed, t.credit = true, min(t.credit, 0)+turnBytes
	c.turns.push(t)
}

// granted is told that f has all its slots.
func (s *scheduler) granted(f *flow) {
	s.mu.Lock()
	f.waits = false
	switch {
	case f.heads.len() == 0 || f.paused: // what spills needs none
		s.letGo(f)
		s.list(f)
	case s.full(f):
		s.sitOut(f)
	default:
		s.enlist(f)
	}
	s.wake()
	s.unlock()
}

// letGo gives back the slots that f holds for its next task.
func (s *scheduler) letGo(f *flow) {
	if f.held > 0 {
		held := f.slots[:f.held]
		f.held = 0
		s.pending = append(s.pending, s.slots.refund(held, f)...)
	}
}

// wake has somebody look for work; who finds some wakes the next.
func (s *scheduler) wake() {
	for kind := range s.work {
		if s.idle[kind] > 0 {
			s.work[kind].Signal()
		}
	}
}

// pick returns the next task that a worker of a kind is to begin, or none. Parked tasks whose turn it is before that
// go on.
func (s *scheduler) pick(kind int) (item, bool) {
	for {
		c := s.choose(kind)
		if c == nil {
			break
		}
		t := c.next()
		f := t.flows.pop()
		f.listed = false
		q := f.heads.pop()
		s.ready--
		head := q.head
		if !f.resumes && !head.share.begin() {
			s.dropped(head) // it is delivered again, to whoever owns the partition then
			s.shift(q)
			if f.heads.len() == 0 {
				s.letGo(f)
			}
			s.relist(f)
			continue
		}
		if f.held > 0 {
			head.slots, f.held = true, 0
		}
		t.credit -= head.cost
		head.working = true
		s.classes[f.class].atWork++
		if s.classes[f.class].resumed++; !f.resumes {
			s.classes[f.class].resumed = 0
		}
		s.list(f)
		if !f.resumes {
			return handOut(q), true
		}
		s.goOn(q)
		s.restore() // one less is parked
	}
	return item{}, false
}

// relist is list for a flow that may still hold slots.
func (s *scheduler) relist(f *flow) {
	if f.held == 0 {
		s.list(f)
		return
	}
	if !f.listed && f.heads.len() > 0 {
		s.enlist(f)
	}
}

// choose returns the class whose turn it is, or nil if none has work.
func (s *scheduler) choose(kind int) *class {
	if kind == 1 {
		if s.classes[classLarge].atWork >= s.large {
			return nil
		}
		return s.side(classLarge)
	}
	atWork := s.classes[classLow].atWork
	if s.classes[classHigh].atWork+atWork >= s.allowed {
		return nil
	}
	high := s.side(classHigh)
	var low *class
	if atWork < max(1, s.allowed-s.kept) {
		low = s.side(classLow)
	}
	switch {
	case high != nil && low != nil && s.streak >= s.weight:
		s.streak = 0
		return low
	case high != nil:
		if low != nil {
			s.streak++
		}
		return high
	case low != nil:
		s.streak = 0
	}
	return low
}

// side returns what is next in a class, or nil if it has no work: a task to begin and one that goes on take turns. While
// more wait to go on than may be at work, one is begun for weight that go on, so that what they read does not get old.
// While too many are parked none is begun.
func (s *scheduler) side(of int) *class {
	begins, resumes := &s.classes[of], &s.classes[resumed+of]
	begin := begins.turns.len() > 0 && !s.blocked() && !s.crowded(of) && begins.next() != nil
	resume := resumes.turns.len() > 0 && resumes.next() != nil
	lead := 1
	if resumes.waiting > s.workersOf(of) {
		lead = s.weight
	}
	switch {
	case resume && !(begin && begins.resumed >= lead):
		return resumes
	case begin:
		return begins
	}
	return nil
}

// workersOf returns how many tasks of a class may be at work.
func (s *scheduler) workersOf(class int) int {
	if class == classLarge {
		return s.large
	}
	return s.allowed
}

// take ends a task that a worker has completed, if any, and returns the next one for workers of a kind, once there
// is one. It returns false when the scheduler is closed.
func (s *scheduler) take(kind int, completed item) (next item, ok bool) {
	s.mu.Lock()
	defer s.unlock()
	s.complete(completed)
	for {
		s.restore()
		if next, ok = s.pick(kind); ok {
			if s.idle[kind] > 0 && s.ready > 0 {
				s.work[kind].Signal()
			}
			return next, true
		}
		if s.closed {
			return item{}, false
		}
		s.idle[kind]++
		s.waitFree(kind)
		s.idle[kind]--
	}
}

// waitFree waits for work, after telling others of the slots that became theirs.
func (s *scheduler) waitFree(kind int) {
	if len(s.pending) > 0 {
		s.unlock()
		s.mu.Lock()
		return // look again: some of it may be ours
	}
	s.work[kind].Wait()
}

// complete ends a task that is done, if it is one.
func (s *scheduler) complete(it item) {
	if it.task != nil {
		s.ended(it.task)
		s.shift(it.q)
	}
}

// ended takes note that t has no worker any more.
func (s *scheduler) ended(t *task) {
	if !t.working {
		return
	}
	t.working = false
	s.classes[t.flow.class].atWork--
	if t.slots {
		t.slots = false
		s.pending = append(s.pending, s.slots.release(t.flow.slots)...)
	}
}

// shift takes the head off q, and has what follows wait to be run. The worker that calls it looks for work of its
// own kind; if what follows is of the other kind, shift wakes a worker of that one.
func (s *scheduler) shift(q *queue) {
	done := q.head
	q.n--
	if q.head, done.next = done.next, nil; q.head != nil { // or it would keep those after it in memory
		s.push(q)
		if kind := q.head.flow.kind(); kind != done.flow.kind() && s.idle[kind] > 0 {
			s.work[kind].Signal()
		}
		return
	}
	delete(s.keys, q.key)
	*q = queue{next: s.free}
	s.free = q
}

// postpone keeps q, whose head failed, from being run for d.
func (s *scheduler) postpone(q *queue, d time.Duration) {
	s.mu.Lock()
	s.ended(q.head)
	q.head.postponed = true
	q.head.share.leave()
	s.unlock()
	time.AfterFunc(d, func() {
		s.mu.Lock()
		q.head.postponed = false
		s.push(q)
		s.wake()
		s.unlock()
	})
}

// close ends all waiting.
func (s *scheduler) close() {
	s.mu.Lock()
	defer s.unlock()
	s.closed = true
	for i := range s.work {
		s.work[i].Broadcast()
	}
}
