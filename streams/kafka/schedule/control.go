package schedule

// SetControls sets what may start: nothing if halted, else all tasks of flows that are not paused. At most workers
// tasks of classes high and low run at a time. It calls Config.Paused for each flow, so it must be called when that
// function may have another answer.
func (s *Scheduler) SetControls(halted bool, workers int) {
	s.mu.Lock()
	defer s.unlock()
	s.halted, s.allowed, s.anyPaused = halted, workers, halted
	for _, f := range s.flows {
		if f.resumes {
			continue
		}
		f.paused = s.isPaused(f.id)
		s.anyPaused = s.anyPaused || f.paused
		s.applyPause(f, f.shed && f.paused)
	}
	s.wakeAll()
}

// applyPause queues f or removes it from its queue according to f.paused, and sets f.shed.
func (s *Scheduler) applyPause(f *flow, shed bool) {
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

func (s *Scheduler) dequeue(f *flow) {
	for range f.account.flows.len() {
		if other := f.account.flows.pop(); other != f {
			f.account.flows.push(other)
		}
	}
	f.queued = false
	s.releaseSlots(f)
}

// StartShedding hands out paused tasks, without slots, unless all tasks are halted. The owner moves them out of the
// way of tasks that are not paused.
func (s *Scheduler) StartShedding() {
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

// StopShedding ends what StartShedding began.
func (s *Scheduler) StopShedding() {
	s.mu.Lock()
	defer s.unlock()
	for _, f := range s.flows {
		if f.shed {
			s.applyPause(f, false)
		}
	}
}

// hasCapacity reports whether a worker may start another task of a class, or resume one.
func (s *Scheduler) hasCapacity(index int) bool {
	high, low := s.classes[classHigh].running, s.classes[classLow].running
	switch class := index % resumeOffset; {
	case index < resumeOffset && (s.halted || s.atParkLimit(class)):
		return false
	case class == classLarge:
		return s.classes[classLarge].running < s.large
	case class == classLow && low >= max(1, s.allowed-s.reserved):
		return false
	}
	return high+low < s.allowed
}

// ReleaseUnused releases the slots that flows hold for tasks which no worker may start now, if other flows
// wait for them. The flows are queued again when there is capacity. Call it periodically, so that a flow
// that waits only briefly keeps its place.
func (s *Scheduler) ReleaseUnused() {
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
func (s *Scheduler) setAside(f *flow) {
	f.released = true
	s.releaseSlots(f)
	f.account.class.released.push(f)
}

// restoreReleased queues the flows that were set aside and have capacity now.
func (s *Scheduler) restoreReleased() {
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
func (s *Scheduler) atParkLimit(class int) bool {
	return s.parked >= s.parkedLimit || class != classHigh && s.parkedOther >= s.parkedLimit/2
}

// blockedByParked reports whether the tasks of f cannot start because their class is at its limit of parked
// tasks.
func (s *Scheduler) blockedByParked(f *flow) bool { return !f.resumes && s.atParkLimit(f.class) }
