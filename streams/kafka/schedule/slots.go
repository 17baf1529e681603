package schedule

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
)

// A Limit bounds the work of one process on one store, or for one account. Zero means no limit.
type Limit struct {
	Tasks          int     // running at a time
	TasksPerSecond float64 // started per second
	BytesPerSecond float64 // bytes of started tasks per second, as estimated by Entry.Bytes
}

// Slots holds the limits of a process. Its schedulers share one Slots. A task acquires its slots before it gets a
// worker, so tasks that wait for a busy store occupy no worker. Slots are acquired in a fixed order, and
// waiters for a slot are served in turn, so there is no deadlock and no starvation.
type Slots struct {
	limit func(account, store string) Limit
	mu    sync.Mutex // guards slots and their fields; acquired after Scheduler.mu
	slots map[string]*slot
}

// NewSlots returns Slots with the limits that limit returns. An empty store means the limit of the account as
// a whole. limit is called once for each account and store, and again by Refresh.
func NewSlots(limit func(account, store string) Limit) *Slots {
	return &Slots{limit: limit, slots: map[string]*slot{}}
}

// A slot is the state of the limit of one store or account. Slots.mu guards it.
type slot struct {
	name       string
	limit      Limit
	used       int
	waiting    [numClasses]fifo[*flow]
	highStreak int // consecutive grants to class high while another class waited
	// Tokens of the rate limits. A started task is deducted in full, so they may become negative.
	tasks, bytes float64
	refilled     time.Time
	timer        *time.Timer // set while a waiter waits for tokens
}

// slotsFor returns the slots that work on stores of an account needs, in the order in which they are
// acquired. Those without a limit are counted too, since a limit may be set later.
func (s *Slots) slotsFor(account string, stores [2]string) (need []*slot) {
	names := []string{""}
	for _, store := range stores {
		if store != "" && !slices.Contains(names, store) {
			names = append(names, store)
		}
	}
	slices.Sort(names)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, store := range names {
		key := schemas.Key(account, store)
		sl, ok := s.slots[key]
		if !ok {
			l := s.limit(account, store)
			sl = &slot{name: key, limit: l, tasks: max(l.TasksPerSecond, 1), bytes: l.BytesPerSecond, refilled: time.Now()}
			s.slots[key] = sl
		}
		need = append(need, sl)
	}
	return need
}

// Refresh applies the present limits of an account and of stores of it. Running tasks keep their slots, and tasks that
// wait start if the new limits allow it.
func (s *Slots) Refresh(account string, stores ...string) {
	var granted []*flow
	s.mu.Lock()
	for _, store := range append([]string{""}, stores...) {
		sl := s.slots[schemas.Key(account, store)]
		if sl == nil {
			continue
		}
		if l := s.limit(account, store); l != sl.limit {
			sl.limit = l
			if sl.timer != nil { // it has the time of the former limit
				sl.timer.Stop()
				sl.timer = nil
			}
			sl.tasks, sl.bytes = min(sl.tasks, max(l.TasksPerSecond, 1)), min(sl.bytes, l.BytesPerSecond)
			granted = s.grant(sl, granted)
		}
	}
	s.mu.Unlock()
	announceGranted(granted)
}

// acquire acquires the slots that f still needs, and reports whether f has all of them. If not, f waits for
// the next one, and f's scheduler is called when it has all.
func (s *Slots) acquire(f *flow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acquireRest(f)
}

func (s *Slots) acquireRest(f *flow) bool {
	for f.heldSlots < len(f.slots) {
		sl := f.slots[f.heldSlots]
		if sl.mustQueue() || !f.resumes && !sl.ratesAllow(s) {
			sl.waiting[f.class].push(f)
			return false
		}
		sl.take(f)
		f.heldSlots++
	}
	return true
}

// mustQueue reports whether the slot is fully used or others wait for it already.
func (sl *slot) mustQueue() bool {
	if sl.limit.Tasks > 0 && sl.used >= sl.limit.Tasks {
		return true
	}
	for i := range sl.waiting {
		if sl.waiting[i].len() > 0 {
			return true
		}
	}
	return false
}

// take gives the slot to f. Rate limits apply to started tasks, not to resumed ones.
func (sl *slot) take(f *flow) {
	sl.used++
	if f.resumes {
		return
	}
	if sl.limit.TasksPerSecond > 0 {
		sl.tasks--
	}
	if sl.limit.BytesPerSecond > 0 {
		sl.bytes -= float64(f.cost)
	}
}

// ratesAllow reports whether the rate limits allow another task to start. If not, a timer serves the waiters
// when they do.
func (sl *slot) ratesAllow(s *Slots) bool {
	l := sl.limit
	if l.TasksPerSecond <= 0 && l.BytesPerSecond <= 0 {
		return true
	}
	now := time.Now()
	passed := now.Sub(sl.refilled).Seconds()
	sl.refilled = now
	sl.tasks = min(sl.tasks+passed*l.TasksPerSecond, max(l.TasksPerSecond, 1))
	sl.bytes = min(sl.bytes+passed*l.BytesPerSecond, l.BytesPerSecond)
	var wait float64
	if l.TasksPerSecond > 0 && sl.tasks < 1 {
		wait = (1 - sl.tasks) / l.TasksPerSecond
	}
	if l.BytesPerSecond > 0 && sl.bytes <= 0 {
		wait = max(wait, (1-sl.bytes)/l.BytesPerSecond)
	}
	if wait <= 0 {
		return true
	}
	if sl.timer == nil {
		sl.timer = time.AfterFunc(time.Duration(wait*float64(time.Second))+time.Microsecond, func() {
			s.mu.Lock()
			sl.timer = nil
			granted := s.grant(sl, nil)
			s.mu.Unlock()
			announceGranted(granted)
		})
	}
	return false
}

// release releases slots, and returns the flows that now have all their slots. The caller announces them when
// it holds no lock.
func (s *Slots) release(held []*slot) (granted []*flow) {
	if len(held) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range held {
		sl.used--
	}
	for _, sl := range held {
		granted = s.grant(sl, granted)
	}
	return granted
}

// hasWaiters reports whether a flow waits for one of the slots.
func (s *Slots) hasWaiters(held []*slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(held, func(sl *slot) bool {
		return slices.ContainsFunc(sl.waiting[:], func(w fifo[*flow]) bool { return w.len() > 0 })
	})
}

// refund releases slots that f acquired for a task that does not start, and returns the task's tokens.
func (s *Slots) refund(held []*slot, f *flow) (granted []*flow) {
	if f.resumes {
		return s.release(held)
	}
	s.mu.Lock()
	for _, sl := range held {
		if sl.limit.TasksPerSecond > 0 {
			sl.tasks++
		}
		if sl.limit.BytesPerSecond > 0 {
			sl.bytes += float64(f.cost)
		}
	}
	s.mu.Unlock()
	return s.release(held)
}

// grant serves the waiters of sl while the limits allow it.
func (s *Slots) grant(sl *slot, granted []*flow) []*flow {
	for sl.limit.Tasks == 0 || sl.used < sl.limit.Tasks {
		class := sl.nextClass()
		if class < 0 || !sl.waiting[class].peek().resumes && !sl.ratesAllow(s) {
			break
		}
		f := sl.waiting[class].pop()
		sl.take(f)
		f.heldSlots++
		if s.acquireRest(f) {
			granted = append(granted, f)
		}
	}
	return granted
}

// nextClass returns the class to serve next: class high first, but others are not starved.
func (sl *slot) nextClass() int {
	high, other := sl.waiting[classHigh].len() > 0, -1
	for c := range sl.waiting {
		if c != classHigh && sl.waiting[c].len() > 0 {
			other = c
		}
	}
	switch {
	case high && (other < 0 || sl.highStreak < maxHighStreak):
		if other >= 0 {
			sl.highStreak++
		}
		return classHigh
	case other >= 0:
		sl.highStreak = 0
	}
	return other
}

// maxHighStreak is the number of flows of class high that are served before one of another class.
const maxHighStreak = 8

// announceGranted calls the schedulers of flows that have all their slots.
func announceGranted(granted []*flow) {
	for _, f := range granted {
		f.sched.granted(f)
	}
}
