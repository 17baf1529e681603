// Package schedule decides which task of a Pool starts next. Tasks of one key are handed out one after the other and
// in order, tasks of different keys concurrently. The choice is by class, and within a class by account, so that no
// class and no account starves another. A task that is handed out holds its slots, which are the limits on stores and
// accounts of the whole process.
package schedule

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

// A Kind is a kind of workers.
type Kind int

// The kinds of workers.
const (
	MainWorker  Kind = iota // runs tasks of classes high and low
	LargeWorker             // runs tasks of class large
	numKinds
)

// Config configures a Scheduler. The functions are called with the lock of the Scheduler held: they must not call it.
type Config struct {
	// Workers is the number of tasks of classes high and low that run at a time. Reserved of these never are of class
	// low. Large is the number of tasks of class large that run at a time.
	Workers, Reserved, Large int
	// HighWeight is the number of tasks of class high that are started for each task of class low while both
	// classes have work [8].
	HighWeight int
	// Slots limits the work on stores and accounts [no limits].
	Slots *Slots
	// Paused reports whether a flow is paused [none is].
	Paused func(FlowID) bool
	// OnStart, if set, is called for each task that is about to start, with the last task of its key, which may be
	// the same.
	OnStart func(t, last *Task)
	// OnDrop, if set, is called for each task that does not start because its Gate is closed.
	OnDrop func(t *Task)
}

// A Scheduler hands out tasks to workers.
type Scheduler struct {
	slots    *Slots
	weight   int // tasks of class high started for each of class low
	isPaused func(FlowID) bool
	onStart  func(t, last *Task)
	onDrop   func(*Task)

	mu            sync.Mutex          // guards the fields below
	workReady     [numKinds]sync.Cond // by kind of worker
	idleWorkers   [numKinds]int       // workers that wait on workReady
	allowed       int                 // tasks of classes high and low that may run at a time
	reserved      int                 // of allowed, not available to class low
	large         int                 // tasks of class large that may run at a time
	parked        int                 // tasks that have started and have no worker
	parkedOther   int                 // of parked, those not of class high
	parkedLimit   int                 // at this many parked none starts; with half of it in parkedOther, only class high
	classes       [2 * numClasses]classQueue
	added         uint64 // tasks added so far
	highStreak    int    // tasks of class high started in a row while class low had work
	keys          map[uint64]*keyQueue
	flows         map[flowKey]*flow
	lastFlow      [2 * numClasses]*flow // of the last call of flowOf, by class
	pruneAt       int                   // number of flows at which those without tasks are removed
	freeQueues    *keyQueue
	readyEstimate int // keys that are ready in flows; an estimate of the work to hand out
	halted        bool
	anyPaused     bool
	closed        bool
	toAnnounce    []*flow // flows to announce when mu is released
}

// defaultWeight is the default of Config.HighWeight.
const defaultWeight = 8

// New returns a Scheduler.
func New(c Config) *Scheduler {
	s := &Scheduler{
		keys: map[uint64]*keyQueue{}, flows: map[flowKey]*flow{}, slots: c.Slots, weight: c.HighWeight,
		isPaused: c.Paused, onStart: c.OnStart, onDrop: c.OnDrop, allowed: c.Workers, reserved: c.Reserved, large: c.Large,
		parkedLimit: maxParked, pruneAt: minPrune,
	}
	if s.weight <= 0 {
		s.weight = defaultWeight
	}
	if s.isPaused == nil {
		s.isPaused = func(FlowID) bool { return false }
	}
	if s.onStart == nil {
		s.onStart = func(_, _ *Task) {}
	}
	if s.onDrop == nil {
		s.onDrop = func(*Task) {}
	}
	for i := range s.workReady {
		s.workReady[i].L = &s.mu
	}
	for i := range s.classes {
		s.classes[i].byName = map[string]*accountQueue{}
	}
	return s
}

// Add queues tasks.
func (s *Scheduler) Add(entries []Entry) {
	s.mu.Lock()
	for i := range entries {
		e := &entries[i]
		t := e.Task
		s.added++
		t.seq, t.cost = s.added, min(max(e.Bytes, 0), maxBytes)+quantum
		t.flow = s.flowOf(classIndex(e.Class), e.Flow)
		t.flow.tasks++
		if q := s.keys[e.Key]; q != nil {
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
		*q = keyQueue{key: e.Key, head: t, tail: t, n: 1}
		s.keys[e.Key] = q
		s.push(q)
	}
	s.wake()
	s.unlock()
}

// unlock releases mu, then announces slots that other flows got meanwhile.
func (s *Scheduler) unlock() {
	pending := s.toAnnounce
	s.toAnnounce = nil
	s.mu.Unlock()
	announceGranted(pending)
}

// push makes the head of q ready to run.
func (s *Scheduler) push(q *keyQueue) {
	f := q.head.flow
	f.ready.push(q)
	s.readyEstimate++
	s.tryEnqueue(f)
}

// tryEnqueue queues f for the workers if one of its tasks may run now.
func (s *Scheduler) tryEnqueue(f *flow) {
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
func (s *Scheduler) enqueue(f *flow) {
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
func (s *Scheduler) granted(f *flow) {
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
func (s *Scheduler) releaseSlots(f *flow) {
	if f.heldSlots > 0 {
		held := f.slots[:f.heldSlots]
		f.heldSlots = 0
		s.toAnnounce = append(s.toAnnounce, s.slots.refund(held, f)...)
	}
}

// wake wakes one idle worker of each kind. A worker that finds work wakes the next one.
func (s *Scheduler) wake() {
	for kind := range s.workReady {
		if s.idleWorkers[kind] > 0 {
			s.workReady[kind].Signal()
		}
	}
}

// wakeAll wakes all idle workers.
func (s *Scheduler) wakeAll() {
	for i := range s.workReady {
		s.workReady[i].Broadcast()
	}
}

// pick returns the next task for a worker of a kind, or nil if there is none. Parked tasks that come first
// resume.
func (s *Scheduler) pick(kind Kind) *Task {
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
		if !f.resumes && !head.Gate.Begin() {
			s.onDrop(head)
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
			head.queue = q
			s.onStart(head, q.tail)
			return head
		}
		s.grantWorker(q)
		s.restoreReleased() // one task less is parked
	}
	return nil
}

// requeue is tryEnqueue for a flow that may hold slots.
func (s *Scheduler) requeue(f *flow) {
	if f.heldSlots == 0 {
		s.tryEnqueue(f)
		return
	}
	if !f.queued && f.ready.len() > 0 {
		s.enqueue(f)
	}
}

// chooseClass returns the class to serve next, or nil if none has work.
func (s *Scheduler) chooseClass(kind Kind) *classQueue {
	if kind == LargeWorker {
		if s.classes[classLarge].running >= s.large {
			return nil
		}
		return s.beginOrResume(classLarge)
	}
	running := s.classes[classLow].running
	if s.classes[classHigh].running+running >= s.allowed {
		return nil
	}
	high := s.beginOrResume(classHigh)
	var low *classQueue
	if running < max(1, s.allowed-s.reserved) {
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
func (s *Scheduler) beginOrResume(of int) *classQueue {
	begins, resumes := &s.classes[of], &s.classes[resumeOffset+of]
	begin := begins.accounts.len() > 0 && !s.halted && !s.atParkLimit(of) && begins.next() != nil
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
func (s *Scheduler) maxRunning(class int) int {
	if class == classLarge {
		return s.large
	}
	return s.allowed
}

// Take ends the task that a worker has completed, unless it is nil, and waits for the next one for workers of a kind.
// It returns nil when the scheduler is closed.
func (s *Scheduler) Take(kind Kind, completed *Task) *Task {
	s.mu.Lock()
	defer s.unlock()
	s.complete(completed)
	for {
		s.restoreReleased()
		if next := s.pick(kind); next != nil {
			if s.idleWorkers[kind] > 0 && s.readyEstimate > 0 {
				s.workReady[kind].Signal()
			}
			return next
		}
		if s.closed {
			return nil
		}
		s.idleWorkers[kind]++
		s.waitForWork(kind)
		s.idleWorkers[kind]--
	}
}

// waitForWork waits for work. If slots of other flows must be announced, it does that instead and returns.
func (s *Scheduler) waitForWork(kind Kind) {
	if len(s.toAnnounce) > 0 {
		s.unlock()
		s.mu.Lock()
		return // look again: one of these flows may now have work for this worker
	}
	s.workReady[kind].Wait()
}

// Complete ends the task that a worker has completed, unless it is nil, for a worker that takes no other one.
func (s *Scheduler) Complete(t *Task) {
	s.mu.Lock()
	s.complete(t)
	s.wake()
	s.unlock()
}

func (s *Scheduler) complete(t *Task) {
	if t != nil {
		s.detach(t)
		s.popHead(t.queue)
	}
}

// detach records that t has no worker any more, and releases its slots.
func (s *Scheduler) detach(t *Task) {
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
func (s *Scheduler) popHead(q *keyQueue) {
	done := q.head
	done.flow.tasks--
	q.n--
	if q.head, done.next, done.queue = done.next, nil, nil; q.head != nil { // done must not keep others in memory
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

// Postpone ends a task that has failed or must wait, and queues it again after d. Its key waits meanwhile.
func (s *Scheduler) Postpone(t *Task, d time.Duration) {
	s.mu.Lock()
	s.detach(t)
	t.postponed = true
	t.Gate.End()
	s.unlock()
	time.AfterFunc(d, func() {
		s.mu.Lock()
		t.postponed = false
		s.push(t.queue)
		s.wake()
		s.unlock()
	})
}

// Close makes Take return nil while there is no task to hand out.
func (s *Scheduler) Close() {
	s.mu.Lock()
	defer s.unlock()
	s.closed = true
	s.wakeAll()
}
