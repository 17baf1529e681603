package kafka

import (
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
)

// Indexes of the classes.
const (
	classHigh = iota
	classLow
	classLarge
	numClasses
)

// resumeOffset plus the index of a class is the index of its parked tasks that are ready to resume.
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

// A scheduler hands out tasks to workers. Tasks of one key are handed out one after the other and in order,
// tasks of different keys concurrently. It chooses by class, and within a class by account. A task that is
// handed out holds its slots.
type scheduler struct {
	onDrop func(*task) // called with mu held for each task that is dropped before it starts
	slots  *Slots
	weight int // tasks of class high started for each of class low

	mu            sync.Mutex   // guards the fields below
	workReady     [2]sync.Cond // by kind of worker
	idleWorkers   [2]int       // workers that wait on workReady
	workers       map[*worker]bool
	mainWorkers   int // workers of classes high and low, without those that were replaced when their task parked
	allowed       int // tasks of classes high and low that may run at a time
	reserved      int // of allowed, not available to class low
	large         int // tasks of class large that may run at a time
	parked        int // tasks that have started and have no worker
	parkedOther   int // of parked, those not of class high
	parkedLimit   int // at this many parked tasks none starts; at half of it in parkedOther, only class high starts
	classes       [2 * numClasses]classQueue
	added         uint64 // tasks added so far
	highStreak    int    // tasks of class high started in a row while class low had work
	keys          map[uint64]*keyQueue
	flows         map[Work]*flow
	lastFlow      [2 * numClasses]*flow // of the last call of flowOf, by class
	freeQueues    *keyQueue
	readyEstimate int // keys that are ready in flows; an estimate of the work to hand out
	halted        bool
	quiesced      bool // no task starts, because Maintain runs or is about to run
	unprepared    int  // assignments since the last call of Prepare
	anyPaused     bool
	closed        bool
	toAnnounce    []*flow // flows to announce when mu is released
}

// defaultWeight is the default of PoolConfig.HighWeight.
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

// flowOf returns the flow of w in a class, or in resumeOffset plus a class. It ignores w.Key and w.Bytes.
func (s *scheduler) flowOf(index int, w Work, paused func(Work) bool) *flow {
	w = flowName(w)
	if f := s.lastFlow[index]; f != nil && f.work == w {
		return f
	}
	w.Bytes = int64(index) // part of the map key only
	f := s.flows[w]
	if f == nil {
		of := w
		of.Bytes = 0
		c := &s.classes[index]
		acct := c.byName[w.Account]
		if acct == nil {
			acct = &accountQueue{class: c, name: w.Account}
			c.byName[w.Account] = acct
		}
		acct.flowCount++
		f = &flow{sched: s, class: index % resumeOffset, resumes: index >= resumeOffset, work: of, account: acct,
			slots: s.slots.slotsFor(w.Account, w.Stores), paused: paused(of)}
		s.anyPaused = s.anyPaused || f.paused
		s.flows[w] = f
	}
	s.lastFlow[index] = f
	return f
}

// A workItem is a task that is handed out, with its key queue.
type workItem struct {
	task *task
	q    *keyQueue
	// lastBody is the message of the last task that was queued behind it, or nil, and part the assignment of
	// that task.
	lastBody schemas.Body
	part     *assignment
}

// newWorkItem returns the head of q. lastBody is not set in two cases: a message from a delay lane is older
// than its position says and has fewer deliveries left, and a task of another fetcher can be revoked while
// the head is not. The caller holds mu.
func newWorkItem(q *keyQueue) workItem {
	it, t := workItem{task: q.head, q: q}, q.tail
	if t != q.head && t.delivery != nil && t.part.fetcher == q.head.part.fetcher &&
		(t.retryHeaders == nil || t.part.backlog && t.retryHeaders.attempts+t.retryHeaders.waits == 0) {
		it.lastBody, it.part = t.delivery.Body, t.part
	}
	return it
}

// add queues tasks. keys[i] is the key of tasks[i].
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

// lastQueued returns the message of the last task that was queued behind the task, or nil if there is none or
// its partition is about to be revoked.
func (it workItem) lastQueued() schemas.Body {
	if it.part == nil || it.part.stopping.Load() {
		return nil
	}
	return it.lastBody
}

// unlock releases mu, then announces slots that other flows got meanwhile.
func (s *scheduler) unlock() {
	pending := s.toAnnounce
	s.toAnnounce = nil
	s.mu.Unlock()
	announceGranted(pending)
}

// push makes the head of q ready to run.
func (s *scheduler) push(q *keyQueue) {
	f := q.head.flow
	f.ready.push(q)
	s.readyEstimate++
	s.tryEnqueue(f)
}

// tryEnqueue queues f for the workers if one of its tasks may run now.
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

// enqueue queues f. An account that becomes ready again keeps its debt, unless its class had no work
// meanwhile.
func (s *scheduler) enqueue(f *flow) {
	f.queued = true
	acct := f.account
	acct.flows.push(f)
	if acct.queued {
		return
	}
	c := acct.class
	if c.accounts.len() == 0 {
		c.idleEpoch++
	}
	if acct.idleEpoch != c.idleEpoch {
		acct.idleEpoch, acct.credit = c.idleEpoch, 0
	}
	acct.queued, acct.credit = true, min(acct.credit, 0)+quantum
	c.accounts.push(acct)
}

// granted is called when f has all its slots.
func (s *scheduler) granted(f *flow) {
	s.mu.Lock()
	f.waitsForSlots = false
	switch {
	case f.ready.len() == 0 || f.paused: // shedding needs no slots
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

// releaseSlots returns the slots that f holds for its next task.
func (s *scheduler) releaseSlots(f *flow) {
	if f.heldSlots > 0 {
		held := f.slots[:f.heldSlots]
		f.heldSlots = 0
		s.toAnnounce = append(s.toAnnounce, s.slots.refund(held, f)...)
	}
}

// wake wakes one idle worker of each kind. A worker that finds work wakes the next one.
func (s *scheduler) wake() {
	for kind := range s.workReady {
		if s.idleWorkers[kind] > 0 {
			s.workReady[kind].Signal()
		}
	}
}

// pick returns the next task for a worker of a kind, or false if there is none. Parked tasks that come first
// resume.
func (s *scheduler) pick(kind int) (workItem, bool) {
	for {
		c := s.chooseClass(kind)
		if c == nil {
			break
		}
		acct := c.next()
		f := acct.flows.pop()
		f.queued = false
		q := f.ready.pop()
		s.readyEstimate--
		head := q.head
		if !f.resumes && !head.part.beginTask() {
			s.onDrop(head) // the next owner of its partition gets it again
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
		acct.credit -= head.cost
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
		s.restoreReleased() // one task less is parked
	}
	return workItem{}, false
}

// requeue is tryEnqueue for a flow that may hold slots.
func (s *scheduler) requeue(f *flow) {
	if f.heldSlots == 0 {
		s.tryEnqueue(f)
		return
	}
	if !f.queued && f.ready.len() > 0 {
		s.enqueue(f)
	}
}

// chooseClass returns the class to serve next, or nil if none has work.
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

// beginOrResume returns the queue of a class to serve next, or nil if it has no work: it alternates between
// tasks to start and parked tasks to resume. While more tasks wait to resume than may run, it starts one for
// each weight that resume, so that the data they waited for stays fresh. While too many tasks are parked it
// starts none.
func (s *scheduler) beginOrResume(of int) *classQueue {
	begins, resumes := &s.classes[of], &s.classes[resumeOffset+of]
	begin := begins.accounts.len() > 0 && !s.blocked() && !s.atParkLimit(of) && begins.next() != nil
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

// maxRunning returns how many tasks of a class may run at a time.
func (s *scheduler) maxRunning(class int) int {
	if class == classLarge {
		return s.large
	}
	return s.allowed
}

// take ends the task that a worker has completed, if any, and waits for the next one for workers of a kind.
// It returns false when the scheduler is closed.
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

// waitForWork waits for work. If slots of other flows must be announced, it does that instead and returns.
func (s *scheduler) waitForWork(kind int) {
	if len(s.toAnnounce) > 0 {
		s.unlock()
		s.mu.Lock()
		return // look again: one of these flows may now have work for this worker
	}
	s.workReady[kind].Wait()
}

// complete ends a completed task. A zero it has none.
func (s *scheduler) complete(it workItem) {
	if it.task != nil {
		s.detach(it.task)
		s.popHead(it.q)
	}
}

// detach records that t has no worker any more, and releases its slots.
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

// popHead removes the head of q and makes the next task ready. The calling worker looks for work of its own
// kind, so popHead wakes a worker if the next task is of the other kind.
func (s *scheduler) popHead(q *keyQueue) {
	done := q.head
	q.n--
	if q.head, done.next = done.next, nil; q.head != nil { // done must not keep its successors in memory
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

// postpone makes q ready again after d. Its head has failed or must wait.
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

// close wakes all waiting workers, which then return.
func (s *scheduler) close() {
	s.mu.Lock()
	defer s.unlock()
	s.closed = true
	for i := range s.workReady {
		s.workReady[i].Broadcast()
	}
}
