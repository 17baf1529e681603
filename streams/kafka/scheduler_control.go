package kafka

import "slices"

// control sets what may be run: nothing, or all but what is paused, by that many workers.
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

// settle puts f up for running or takes it down, as its gate now says, and whether it spills.
func (s *scheduler) applyPause(f *flow, spill bool) {
	if f.shed && !spill && f.queued { // without slots
		s.dequeue(f)
	}
	f.shed = spill
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

// relieve has what is paused run all the same, which takes it into the delay lanes: it holds
// up what is not paused.
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

// relieved ends what relieve began.
func (s *scheduler) stopShedding() {
	s.mu.Lock()
	defer s.unlock()
	for _, f := range s.flows {
		if f.shed {
			s.applyPause(f, false)
		}
	}
}

// room says whether a worker may begin another task of a class, or go on with one.
func (s *scheduler) hasCapacity(side int) bool {
	high, low := s.classes[classHigh].running, s.classes[classLow].running
	switch class := side % resumeOffset; {
	case side < resumeOffset && (s.barred() || s.atParkLimit(class)):
		return false
	case class == classLarge:
		return s.classes[classLarge].running < s.large
	case class == classLow && low >= max(1, s.allowed-s.reserved):
		return false
	}
	return high+low < s.allowed
}

// yield gives back the slots that flows hold for tasks which no worker may begin for now, where others wait
// for them. They are put up again when there is room. It is called now and then: what waits for less
// keeps its place.
func (s *scheduler) releaseUnused() {
	s.mu.Lock()
	defer s.unlock()
	for i := range s.classes {
		if s.hasCapacity(i) {
			continue
		}
		c := &s.classes[i]
		for _, t := range c.byName {
			for range t.flows.len() {
				f := t.flows.pop()
				if f.heldSlots == 0 || !s.slots.hasWaiters(f.slots) {
					t.flows.push(f)
					continue
				}
				f.queued = false
				s.setAside(f)
			}
		}
	}
}

// sitOut has f, which is not listed, wait without slots until there is room for its tasks.
func (s *scheduler) setAside(f *flow) {
	f.released = true
	s.releaseSlots(f)
	f.account.class.released.push(f)
}

// restore puts up again what yielded, where there is room for it.
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

// crowded reports whether no task of a class may be begun, since too many are parked. What is not of class high has
// half of the places, so that records which do not answer keep no worker from what is urgent and needs none.
func (s *scheduler) atParkLimit(class int) bool {
	return s.parked >= s.parkedLimit || class != classHigh && s.parkedOther >= s.parkedLimit/2
}

// full reports whether f waits to begin tasks of a class that is crowded.
func (s *scheduler) blockedByParked(f *flow) bool { return !f.resumes && s.atParkLimit(f.class) }

// slotless says which intakes have tasks that wait for slots.
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

// held counts, by intake, the tasks that a pause keeps back.
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

// stopping reports whether t will not be begun, as its partition moves.
func isStopping(_, t *task) bool { return t.part.stopping.Load() }

// purge takes out the tasks that were not begun and are gone, given the head of their key, and gives each to out with mu
// held: if they wait for a slot or are paused, no worker would come across them.
func (s *scheduler) removeQueued(gone func(head, t *task) bool, out func(*task)) {
	s.mu.Lock()
	defer s.unlock()
	for _, q := range s.keys { // what stands behind a head
		for t := q.head; t.next != nil; {
			if next := t.next; gone(q.head, next) {
				t.next = next.next
				next.next = nil
				out(next)
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
			continue // the goroutine of a parked task takes it out
		}
		for _, q := range f.ready.all() {
			t := q.head
			if !gone(t, t) {
				f.ready.push(q)
				continue
			}
			s.readyEstimate--
			s.popHead(q) // may come back: what follows is not gone
			out(t)
		}
		if f.ready.len() == 0 && f.queued {
			s.dequeue(f)
		}
	}
	s.prune()
	s.wake()
}

// An amount is how many tasks there are, and the bytes of their records.
type amount struct{ tasks, bytes int64 }

// waiting counts the tasks of shares that were not begun, by share and flow. What is paused, is not known to be of an
// account, or stands behind one that was begun, is left out.
func (s *scheduler) queuedAmounts(shares map[*assignment]bool) map[*assignment]map[Work]amount {
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
			if !shares[t.part] || t.unmovable || t.flow.paused || t.flow.work.Account == "" {
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

// prune forgets flows and accounts that have nothing.
func (s *scheduler) prune() {
	if len(s.flows) < 4096 {
		return
	}
	for k, f := range s.flows {
		if f.ready.len() == 0 && !f.queued && !f.waitsForSlots && !f.released && f.heldSlots == 0 && !slices.Contains(s.lastFlow[:], f) {
			delete(s.flows, k)
			f.account.flowCount--
			if t := f.account; t.flowCount == 0 && !t.queued {
				delete(t.class.byName, t.name)
			}
		}
	}
}
