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
	numClasses
)

// resumed is what is added to a class for those of its tasks that were parked and go on.
const resumeOffset = numClasses

func classIndex(c schemas.Class) int {
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
	onDrop func(*task) // is told of tasks that are not begun, with mu held
	slots  *Slots
	weight int // tasks of class high for one of class low

	mu            sync.Mutex
	workReady     [2]sync.Cond // there is work: for workers of high and low, and of large
	idleWorkers   [2]int       // who waits for it
	workers       map[*worker]bool
	mainWorkers   int // of workers, those of high and low whose task, if they have one, was never parked
	allowed       int // tasks of high and low at work at a time
	reserved      int // of allowed, those that low must leave
	large         int // tasks of large at work at a time
	parked        int // tasks that were begun and have no worker
	parkedOther   int // of parked, those that are not of class high
	parkedLimit   int // of parked: then no other task is begun; from half of it in others on, none but of class high
	classes       [2 * numClasses]classQueue
	added         uint64 // tasks
	highStreak    int    // of class high, while low had work
	keys          map[uint64]*keyQueue
	flows         map[Work]*flow
	lastFlow      [2 * numClasses]*flow // looked up last
	freeQueues    *keyQueue
	readyEstimate int // heads in flows that are not paused; an estimate of what may be given out
	halted        bool
	quiesced      bool // Beside is about to be called, or is
	unprepared    int  // assignments since Prepare was called
	anyPaused     bool // anything is paused
	closed        bool
	toAnnounce    []*flow // to be announced when mu is free
}

// defaultWeight is how many tasks of class high are begun for one of class low.
const defaultWeight = 8

func newScheduler(slots *Slots, dropped func(*task)) *scheduler {
	s := &scheduler{
		keys: map[uint64]*keyQueue{}, flows: map[Work]*flow{}, onDrop: dropped, slots: slots,
		weight: defaultWeight, allowed: 1, parkedLimit: maxParked, workers: map[*worker]bool{},
	}
	for i := range s.workReady {
		s.workReady[i].L = &s.mu
	}
	for i := range s.classes {
		s.classes[i].byName = map[string]*accountQueue{}
	}
	return s
}

// flowOf returns the flow of work of a class, or of resumed plus a class. w's key and bytes do not count.
func (s *scheduler) flowOf(side int, w Work, paused func(Work) bool) *flow {
	w = flowName(w)
	if f := s.lastFlow[side]; f != nil && f.work == w {
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
			tn = &accountQueue{class: c, name: w.Account}
			c.byName[w.Account] = tn
		}
		tn.flowCount++
		f = &flow{sched: s, class: side % resumeOffset, resumes: side >= resumeOffset, work: of, account: tn,
			slots: s.slots.slotsFor(w.Account, w.Stores), paused: paused(of)}
		s.anyPaused = s.anyPaused || f.paused
		s.flows[w] = f
	}
	s.lastFlow[side] = f
	return f
}

// An item is a task that is handed out, with the queue whose head it is.
type workItem struct {
	task *task
	q    *keyQueue
	// next is the message of the last task that stood behind it then, nil for none, and share that of that task.
	lastBody schemas.Body
	part     *assignment
}

// handOut returns q's head as an item. A message that came back from a lane is older than its place says, and has fewer
// deliveries left; one of another group can be given back without the head. Neither counts as behind. mu is held.
func newWorkItem(q *keyQueue) workItem {
	it, t := workItem{task: q.head, q: q}, q.tail
	if t != q.head && t.delivery != nil && (t.retryHeaders == nil || t.part.backlog && t.retryHeaders.attempts+t.retryHeaders.waits == 0) && t.part.fetcher == q.head.part.fetcher {
		it.lastBody, it.part = t.delivery.Body, t.part
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
		q := s.freeQueues
		if q == nil {
			q = new(keyQueue)
		} else {
			s.freeQueues = q.next
		}
		*q = keyQueue{key: keys[i], head: t, tail: t, n: 1}
		s.keys[keys[i]] = q
		s.push(q)
	}
	s.wake()
	s.unlock()
}

// behind returns the message of the last task that is known to stand behind the task, unless it is about to be given
// back; nil if there is none.
func (it workItem) lastQueued() schemas.Body {
	if it.part == nil || it.part.stopping.Load() {
		return nil
	}
	return it.lastBody
}

// unlock lets go of mu, and tells others of the slots that became theirs meanwhile.
func (s *scheduler) unlock() {
	pending := s.toAnnounce
	s.toAnnounce = nil
	s.mu.Unlock()
	announceGranted(pending)
}

// push has the head of q wait to be run.
func (s *scheduler) push(q *keyQueue) {
	f := q.head.flow
	f.ready.push(q)
	s.readyEstimate++
	s.tryEnqueue(f)
}

// list puts f up for running, if anything of it may run.
func (s *scheduler) tryEnqueue(f *flow) {
	if f.queued || f.waitsForSlots || f.released || f.ready.len() == 0 || f.paused && !f.shed {
		return
	}
	if len(f.slots) > 0 && !f.shed {
		if s.blockedByParked(f) {
			s.setAside(f)
			return
		}
		f.cost = f.ready.peek().head.cost
		if !s.slots.acquire(f) {
			f.waitsForSlots = true
			return
		}
	}
	s.enqueue(f)
}

// enlist puts f up. An account that comes back owes what it owed, unless its class had no work meanwhile.
func (s *scheduler) enqueue(f *flow) {
	f.queued = true
	t := f.account
	t.flows.push(f)
	if t.queued {
		return
	}
	c := t.class
	if c.accounts.len() == 0 {
		c.idleEpoch++
	}
	if t.idleEpoch != c.idleEpoch {
		t.idleEpoch, t.credit = c.idleEpoch, 0
	}
	t.queued, t.credit = true, min(t.credit, 0)+quantum
	c.accounts.push(t)
}

// granted is told that f has all its slots.
func (s *scheduler) granted(f *flow) {
	s.mu.Lock()
	f.waitsForSlots = false
	switch {
	case f.ready.len() == 0 || f.paused: // what spills needs none
		s.releaseSlots(f)
		s.tryEnqueue(f)
	case s.blockedByParked(f):
		s.setAside(f)
	default:
		s.enqueue(f)
	}
	s.wake()
	s.unlock()
}

// letGo gives back the slots that f holds for its next task.
func (s *scheduler) releaseSlots(f *flow) {
	if f.heldSlots > 0 {
		held := f.slots[:f.heldSlots]
		f.heldSlots = 0
		s.toAnnounce = append(s.toAnnounce, s.slots.refund(held, f)...)
	}
}

// wake has somebody look for work; who finds some wakes the next.
func (s *scheduler) wake() {
	for kind := range s.workReady {
		if s.idleWorkers[kind] > 0 {
			s.workReady[kind].Signal()
		}
	}
}

// pick returns the next task that a worker of a kind is to begin, or none. Parked tasks whose turn it is before that
// go on.
func (s *scheduler) pick(kind int) (workItem, bool) {
	for {
		c := s.chooseClass(kind)
		if c == nil {
			break
		}
		t := c.next()
		f := t.flows.pop()
		f.queued = false
		q := f.ready.pop()
		s.readyEstimate--
		head := q.head
		if !f.resumes && !head.part.beginTask() {
			s.onDrop(head) // it is delivered again, to whoever owns the partition then
			s.popHead(q)
			if f.ready.len() == 0 {
				s.releaseSlots(f)
			}
			s.requeue(f)
			continue
		}
		if f.heldSlots > 0 {
			head.holdsSlots, f.heldSlots = true, 0
		}
		t.credit -= head.cost
		head.running = true
		s.classes[f.class].running++
		if s.classes[f.class].resumedStreak++; !f.resumes {
			s.classes[f.class].resumedStreak = 0
		}
		s.tryEnqueue(f)
		if !f.resumes {
			return newWorkItem(q), true
		}
		s.grantWorker(q)
		s.restoreReleased() // one less is parked
	}
	return workItem{}, false
}

// relist is list for a flow that may still hold slots.
func (s *scheduler) requeue(f *flow) {
	if f.heldSlots == 0 {
		s.tryEnqueue(f)
		return
	}
	if !f.queued && f.ready.len() > 0 {
		s.enqueue(f)
	}
}

// choose returns the class whose turn it is, or nil if none has work.
func (s *scheduler) chooseClass(kind int) *classQueue {
	if kind == 1 {
		if s.classes[classLarge].running >= s.large {
			return nil
		}
		return s.beginOrResume(classLarge)
	}
	atWork := s.classes[classLow].running
	if s.classes[classHigh].running+atWork >= s.allowed {
		return nil
	}
	high := s.beginOrResume(classHigh)
	var low *classQueue
	if atWork < max(1, s.allowed-s.reserved) {
		low = s.beginOrResume(classLow)
	}
	switch {
	case high != nil && low != nil && s.highStreak >= s.weight:
		s.highStreak = 0
		return low
	case high != nil:
		if low != nil {
			s.highStreak++
		}
		return high
	case low != nil:
		s.highStreak = 0
	}
	return low
}

// side returns what is next in a class, or nil if it has no work: a task to begin and one that goes on take turns. While
// more wait to go on than may be at work, one is begun for weight that go on, so that what they read does not get old.
// While too many are parked none is begun.
func (s *scheduler) beginOrResume(of int) *classQueue {
	begins, resumes := &s.classes[of], &s.classes[resumeOffset+of]
	begin := begins.accounts.len() > 0 && !s.barred() && !s.atParkLimit(of) && begins.next() != nil
	resume := resumes.accounts.len() > 0 && resumes.next() != nil
	lead := 1
	if resumes.resumeWaiting > s.maxRunning(of) {
		lead = s.weight
	}
	switch {
	case resume && !(begin && begins.resumedStreak >= lead):
		return resumes
	case begin:
		return begins
	}
	return nil
}

// workersOf returns how many tasks of a class may be at work.
func (s *scheduler) maxRunning(class int) int {
	if class == classLarge {
		return s.large
	}
	return s.allowed
}

// take ends a task that a worker has completed, if any, and returns the next one for workers of a kind, once there
// is one. It returns false when the scheduler is closed.
func (s *scheduler) take(kind int, completed workItem) (next workItem, ok bool) {
	s.mu.Lock()
	defer s.unlock()
	s.complete(completed)
	for {
		s.restoreReleased()
		if next, ok = s.pick(kind); ok {
			if s.idleWorkers[kind] > 0 && s.readyEstimate > 0 {
				s.workReady[kind].Signal()
			}
			return next, true
		}
		if s.closed {
			return workItem{}, false
		}
		s.idleWorkers[kind]++
		s.waitForWork(kind)
		s.idleWorkers[kind]--
	}
}

// waitFree waits for work, after telling others of the slots that became theirs.
func (s *scheduler) waitForWork(kind int) {
	if len(s.toAnnounce) > 0 {
		s.unlock()
		s.mu.Lock()
		return // look again: some of it may be ours
	}
	s.workReady[kind].Wait()
}

// complete ends a task that is done, if it is one.
func (s *scheduler) complete(it workItem) {
	if it.task != nil {
		s.detach(it.task)
		s.popHead(it.q)
	}
}

// ended takes note that t has no worker any more.
func (s *scheduler) detach(t *task) {
	if !t.running {
		return
	}
	t.running = false
	s.classes[t.flow.class].running--
	if t.holdsSlots {
		t.holdsSlots = false
		s.toAnnounce = append(s.toAnnounce, s.slots.release(t.flow.slots)...)
	}
}

// shift takes the head off q, and has what follows wait to be run. The worker that calls it looks for work of its
// own kind; if what follows is of the other kind, shift wakes a worker of that one.
func (s *scheduler) popHead(q *keyQueue) {
	done := q.head
	q.n--
	if q.head, done.next = done.next, nil; q.head != nil { // or it would keep those after it in memory
		s.push(q)
		if kind := q.head.flow.kind(); kind != done.flow.kind() && s.idleWorkers[kind] > 0 {
			s.workReady[kind].Signal()
		}
		return
	}
	delete(s.keys, q.key)
	*q = keyQueue{next: s.freeQueues}
	s.freeQueues = q
}

// postpone keeps q, whose head failed, from being run for d.
func (s *scheduler) postpone(q *keyQueue, d time.Duration) {
	s.mu.Lock()
	s.detach(q.head)
	q.head.postponed = true
	q.head.part.endTask()
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
	for i := range s.workReady {
		s.workReady[i].Broadcast()
	}
}
