package schedule

import (
	"cmp"
	"slices"
)

// EachWaiting calls f for each flow with tasks that wait for slots, with the next of them. f must not call the
// scheduler.
func (s *Scheduler) EachWaiting(f func(*Task)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fl := range s.flows {
		if (fl.waitsForSlots || fl.released) && fl.ready.len() > 0 {
			f(fl.ready.peek().head)
		}
	}
}

// EachPaused calls f for each task that a pause holds back. f must not call the scheduler.
func (s *Scheduler) EachPaused(f func(*Task)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.anyPaused {
		return
	}
	for _, q := range s.keys {
		for t := q.head; t != nil; t = t.next {
			if s.halted || t.flow.paused {
				f(t)
			}
		}
	}
}

// EachQueued calls f for each task that is not paused and queues behind no busy one, with the first task of its key. f
// must not call the scheduler. Tasks that are added or start meanwhile may be left out.
func (s *Scheduler) EachQueued(f func(first, t *Task)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, q := range s.keys {
		for t := q.head; t != nil && !s.halted && !q.head.Busy(); t = t.next {
			if !t.flow.paused {
				f(q.head, t)
			}
		}
		if n++; n%yieldKeys == 0 { // workers wait for mu, and may end q
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
}

// yieldKeys is the number of keys after which EachQueued lets others take the lock.
const yieldKeys = 64

// A Removed is a task that was removed before it started. First was the first task of its key.
type Removed struct{ Task, First *Task }

// RemoveQueued removes the tasks that have not started and for which match returns true, and returns them in the order
// in which they were added. match is called with a task and the first task of its key, for all tasks of a key in a row,
// and must not call the scheduler. If stop is true, it is not called again. Without RemoveQueued, tasks of a closed
// Gate that wait for a slot or are paused would stay until a worker got them.
func (s *Scheduler) RemoveQueued(match func(first, t *Task) (remove, stop bool)) (removed []Removed) {
	s.mu.Lock()
	flows := map[*flow]map[*keyQueue]bool{} // with the keys whose head is to be removed
	for _, q := range s.keys {
		remove, stop := match(q.head, q.head)
		if f := q.head.flow; remove && !f.resumes { // the goroutine of a parked task removes it
			if flows[f] == nil {
				flows[f] = map[*keyQueue]bool{}
			}
			flows[f][q] = true
		}
		for t := q.head; t.next != nil && !stop; {
			next := t.next
			if remove, stop = match(q.head, next); !remove {
				t = next
				continue
			}
			t.next, next.next = next.next, nil
			if t.next == nil {
				q.tail = t
			}
			next.flow.tasks--
			q.n--
			removed = append(removed, Removed{next, q.head})
		}
		if stop {
			break
		}
	}
	for f, keys := range flows {
		for _, q := range f.ready.removeAll(keys) { // the other heads are running, parked or postponed
			t := q.head
			s.readyEstimate--
			s.popHead(q) // may make the next task ready, which is not removed
			removed = append(removed, Removed{t, t})
		}
		if f.ready.len() == 0 && f.queued {
			s.dequeue(f)
		}
	}
	s.wake()
	s.unlock()
	slices.SortFunc(removed, func(a, b Removed) int { return cmp.Compare(a.Task.seq, b.Task.seq) })
	return removed
}
