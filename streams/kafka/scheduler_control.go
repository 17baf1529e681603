package kafka

import "slices"

// setControls sets what may run: nothing if halted, else all work that is not paused, in at most allowed
// tasks at a time.
func (s *scheduler) setControls(halted bool, allowed int, paused func(Work) bool) {
	s.mu.Lock()
	defer s.unlock()
	s.halted, s.allowed, s.anyPaused = halted, allowed, halted
	for _, f := range s.flows {
		if f.resumes {
			continue
		}
		f.paused = paused(f.work)
		s.anyPaused = s.anyPaused || f.paused
		s.applyPause(f, f.shed && f.paused)
	}
	for i := range s.workReady {
		s.workReady[i].Broadcast()
	}
}

// applyPause queues f or removes it from its queue according to f.paused, and sets f.shed.
func (s *scheduler) applyPause(f *flow, shed bool) {
	if f.shed && !shed && f.queued { // it holds no slots
		s.dequeue(f)
	}
	f.shed = shed
	switch {
	case f.paused && !f.shed && f.queued:
		s.dequeue(f)
	case f.paused && !f.shed && !f.waitsForSlots:
		s.releaseSlots(f)
	default:
		s.tryEnqueue(f)
	}
}

func (s *scheduler) dequeue(f *flow) {
	for range f.account.flows.len() {
		if other := f.account.flows.pop(); other != f {
			f.account.flows.push(other)
		}
	}
	f.queued = false
	s.releaseSlots(f)
}

// startShedding lets paused tasks run, which sends them to the delay lanes, because they block tasks that are
// not paused.
func (s *scheduler) startShedding() {
	s.mu.Lock()
	defer s.unlock()
	if s.halted {
		return
	}
	for _, f := range s.flows {
		if f.paused && !f.shed && f.ready.len() > 0 {
			f.shed = true
			s.tryEnqueue(f)
		}
	}
	s.wake()
}

// stopShedding ends what startShedding began.
func (s *scheduler) stopShedding() {
	s.mu.Lock()
	defer s.unlock()
	for _, f := range s.flows {
		if f.shed {
			s.applyPause(f, false)
		}
	}
}

// hasCapacity reports whether a worker may start another task of a class, or resume one.
func (s *scheduler) hasCapacity(index int) bool {
	high, low := s.classes[classHigh].running, s.classes[classLow].running
	switch class := index % resumeOffset; {
	case index < resumeOffset && (s.blocked() || s.atParkLimit(class)):
		return false
	case class == classLarge:
		return s.classes[classLarge].running < s.large
	case class == classLow && low >= max(1, s.allowed-s.reserved):
		return false
	}
	return high+low < s.allowed
}

// releaseUnused releases the slots that flows hold for tasks which no worker may start now, if other flows
// wait for them. The flows are queued again when there is capacity. It is called periodically, so that a flow
// that waits only briefly keeps its place.
func (s *scheduler) releaseUnused() {
	s.mu.Lock()
	defer s.unlock()
	for i := range s.classes {
		if s.hasCapacity(i) {
			continue
		}
		c := &s.classes[i]
		for _, acct := range c.byName {
			for range acct.flows.len() {
				f := acct.flows.pop()
				if f.heldSlots == 0 || !s.slots.hasWaiters(f.slots) {
					acct.flows.push(f)
					continue
				}
				f.queued = false
				s.setAside(f)
			}
		}
	}
}

// setAside makes f, which is not queued, wait without slots until there is capacity for its tasks.
func (s *scheduler) setAside(f *flow) {
	f.released = true
	s.releaseSlots(f)
	f.account.class.released.push(f)
}

// restoreReleased queues the flows that were set aside and have capacity now.
func (s *scheduler) restoreReleased() {
	for i := range s.classes {
		c := &s.classes[i]
		for c.released.len() > 0 && s.hasCapacity(i) {
			f := c.released.pop()
			f.released = false
			s.tryEnqueue(f)
		}
	}
}

// atParkLimit reports whether no task of a class may start because too many are parked. Classes other than
// high may use half of the limit, so that stores which do not answer keep no worker from urgent tasks.
func (s *scheduler) atParkLimit(class int) bool {
	return s.parked >= s.parkedLimit || class != classHigh && s.parkedOther >= s.parkedLimit/2
}

// blockedByParked reports whether the tasks of f cannot start because their class is at its limit of parked
// tasks.
func (s *scheduler) blockedByParked(f *flow) bool { return !f.resumes && s.atParkLimit(f.class) }

// waitingForSlots returns the fetchers with tasks that wait for slots.
func (s *scheduler) waitingForSlots() map[*fetcher]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var in map[*fetcher]bool
	for _, f := range s.flows {
		if (f.waitsForSlots || f.released) && f.ready.len() > 0 {
			if in == nil {
				in = map[*fetcher]bool{}
			}
			in[f.ready.peek().head.part.fetcher] = true
		}
	}
	return in
}

// pausedCounts returns the number of tasks held back by a pause, by fetcher.
func (s *scheduler) pausedCounts() map[*fetcher]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.anyPaused {
		return nil
	}
	n := map[*fetcher]int{}
	for _, q := range s.keys {
		for t := q.head; t != nil; t = t.next {
			if s.halted || t.flow.paused {
				n[t.part.fetcher]++
			}
		}
	}
	return n
}

// isStopping reports whether t will not start because its partition is revoked.
func isStopping(_, t *task) bool { return t.part.stopping.Load() }

// removeQueued removes the tasks that have not started and for which match, called with the head of their key,
// returns true. It calls removed with each, with mu held. Without it, tasks that wait for a slot or are paused
// would stay until a worker got them.
func (s *scheduler) removeQueued(match func(head, t *task) bool, removed func(*task)) {
	s.mu.Lock()
	defer s.unlock()
	for _, q := range s.keys { // tasks behind the head of their key
		for t := q.head; t.next != nil; {
			if next := t.next; match(q.head, next) {
				t.next = next.next
				next.next = nil
				removed(next)
				q.n--
			} else {
				t = next
			}
		}
		for q.tail = q.head; q.tail.next != nil; {
			q.tail = q.tail.next
		}
	}
	for _, f := range s.flows {
		if f.resumes {
			continue // the goroutine of a parked task removes it
		}
		for _, q := range f.ready.all() {
			t := q.head
			if !match(t, t) {
				f.ready.push(q)
				continue
			}
			s.readyEstimate--
			s.popHead(q) // may push the queue again: the next task is not gone
			removed(t)
		}
		if f.ready.len() == 0 && f.queued {
			s.dequeue(f)
		}
	}
	s.prune()
	s.wake()
}

// An amount is a number of tasks and the size of their records.
type amount struct{ tasks, bytes int64 }

// queuedAmounts counts the tasks of assignments that have not started, by assignment and flow. It leaves out
// tasks that are paused, that belong to no known account, or that queue behind a started task.
func (s *scheduler) queuedAmounts(assignments map[*assignment]bool) map[*assignment]map[Work]amount {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := map[*assignment]map[Work]amount{}
	if s.halted {
		return by
	}
	for _, q := range s.keys {
		if q.head.started() {
			continue
		}
		for t := q.head; t != nil; t = t.next {
			if !assignments[t.part] || t.unmovable || t.flow.paused || t.flow.work.Account == "" {
				continue
			}
			if by[t.part] == nil {
				by[t.part] = map[Work]amount{}
			}
			n := by[t.part][t.flow.work]
			by[t.part][t.flow.work] = amount{n.tasks + 1, n.bytes + t.bytes()}
		}
	}
	return by
}

// prune removes flows and accounts without tasks.
func (s *scheduler) prune() {
	if len(s.flows) < 4096 {
		return
	}
	for k, f := range s.flows {
		if f.ready.len() == 0 && !f.queued && !f.waitsForSlots && !f.released && f.heldSlots == 0 &&
			!slices.Contains(s.lastFlow[:], f) {
			delete(s.flows, k)
			f.account.flowCount--
			if acct := f.account; acct.flowCount == 0 && !acct.queued {
				delete(acct.class.byName, acct.name)
			}
		}
	}
}
