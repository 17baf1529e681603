package kafka

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
)

// A Limit bounds what the tasks of one process do to one store, or for one account. Zero
// is no limit.
type Limit struct {
	Tasks          int     // at work at a time
	TasksPerSecond float64 // begun
	BytesPerSecond float64 // of the tasks begun, as Work.Bytes estimates them
}

// Slots holds the limits of a process; its Pools share one. A task has its slots before it
// has a worker, so tasks that wait for a busy store keep no worker from others. Slots are
// taken in one order, and whoever waits for one is served in turn: no deadlock, and
// nobody starves.
type Slots struct {
	limit func(account, store string) Limit
	mu    sync.Mutex // guards slots and what is in them; taken after scheduler.mu
	slots map[string]*slot
}

// NewSlots returns slots with the limits that limit tells; with an empty store it tells that
// of the account as a whole. It is asked once for each name.
func NewSlots(limit func(account, store string) Limit) *Slots {
	return &Slots{limit: limit, slots: map[string]*slot{}}
}

// A slot is the limit of one store or account. Guarded by Slots.mu.
type slot struct {
	name       string
	limit      Limit
	used       int
	waiting    [numClasses]fifo[*flow]
	highStreak int // of grants to class high while another waited
	// What may be begun, if positive; what was begun is taken off, so it may be in debt.
	tasks, bytes float64
	refilled     time.Time
	timer        *time.Timer // set while it waits for the debt to be over
}

// of returns the slots that work of an account needs, in the order in which they are taken; none
// if nothing is limited.
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
			if l := s.limit(account, store); l != (Limit{}) {
				sl = &slot{name: key, limit: l, tasks: max(l.TasksPerSecond, 1), bytes: l.BytesPerSecond, refilled: time.Now()}
			}
			s.slots[key] = sl // nil: no limit
		}
		if sl != nil {
			need = append(need, sl)
		}
	}
	return need
}

// acquire takes the slots that f still needs, and reports whether it has them all. If not, f
// waits for the next one, and its scheduler is told when it has them.
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

// busy says whether f must queue: all is in use, or others are before it.
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

// take gives f the slot. The rates are those of tasks that are begun.
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

// filledUp says whether the rates allow another task to begin. If not, whoever waits is
// served when they do.
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

// release gives slots back, and returns the flows that now have all that they need: the
// caller announces them when it holds no lock.
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

// wanted says whether anybody waits for one of them.
func (s *Slots) hasWaiters(held []*slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(held, func(sl *slot) bool {
		return slices.ContainsFunc(sl.waiting[:], func(w fifo[*flow]) bool { return w.len() > 0 })
	})
}

// refund gives back slots that f took for a task which is not begun, with what it cost.
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

// grant serves those who wait for sl, as far as it goes.
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

// turn says which class is served next: high before the others, but not for ever.
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

// slotStreak is how many flows of class high are served before one of another.
const maxHighStreak = 8

// announce tells flows' schedulers that they have their slots.
func announceGranted(granted []*flow) {
	for _, f := range granted {
		f.sched.granted(f)
	}
}
