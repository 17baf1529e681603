package kafka

import "slices"

// control sets what may be run: nothing, or all but what is paused, by that many workers.
func (s *scheduler) control(halted bool, allowed int, paused func(Work) bool) {
	s.mu.Lock()
	defer s.unlock()
	s.halted, s.allowed, s.pausing = halted, allowed, halted
	for _, f := range s.flows {
		if f.resumes {
			continue
		}
		f.paused = paused(f.work)
		s.pausing = s.pausing || f.paused
		s.settle(f, f.spill && f.paused)
	}
	for i := range s.work {
		s.work[i].Broadcast()
	}
}

// settle puts f up for running or takes it down, as its gate now says, and whether it spills.
func (s *scheduler) settle(f *flow, spill bool) {
	if f.spill && !spill && f.listed { // without slots
		s.unlist(f)
	}
	f.spill = spill
	switch {
	case f.paused && !f.spill && f.listed:
		s.unlist(f)
	case f.paused && !f.spill && !f.waits:
		s.letGo(f)
	default:
		s.list(f)
	}
}

func (s *scheduler) unlist(f *flow) {
	for range f.turn.flows.len() {
		if other := f.turn.flows.pop(); other != f {
			f.turn.flows.push(other)
		}
	}
	f.listed = false
	s.letGo(f)
}

// relieve has what is paused run all the same, which takes it into the delay lanes: it holds
// up what is not paused.
func (s *scheduler) relieve() {
	s.mu.Lock()
	defer s.unlock()
	if s.halted {
		return
	}
	for _, f := range s.flows {
		if f.paused && !f.spill && f.heads.len() > 0 {
			f.spill = true
			s.list(f)
		}
	}
	s.wake()
}

// relieved ends what relieve began.
func (s *scheduler) relieved() {
	s.mu.Lock()
	defer s.unlock()
	for _, f := range s.flows {
		if f.spill {
			s.settle(f, false)
		}
	}
}

// room says whether a worker may begin another task of a class, or go on with one.
func (s *scheduler) room(side int) bool {
	high, low := s.classes[classHigh].atWork, s.classes[classLow].atWork
	switch class := side % resumed; {
	case side < resumed && (s.blocked() || s.crowded(class)):
		return false
	case class == classLarge:
		return s.classes[classLarge].atWork < s.large
	case class == classLow && low >= max(1, s.allowed-s.kept):
		return false
	}
	return high+low < s.allowed
}

// yield gives back the slots that flows hold for tasks which no worker may begin for now, where others wait
// for them. They are put up again when there is room. It is called now and then: what waits for less
// keeps its place.
func (s *scheduler) yield() {
	s.mu.Lock()
	defer s.unlock()
	for i := range s.classes {
		if s.room(i) {
			continue
		}
		c := &s.classes[i]
		for _, t := range c.byName {
			for range t.flows.len() {
				f := t.flows.pop()
				if f.held == 0 || !s.slots.wanted(f.slots) {
					t.flows.push(f)
					continue
				}
				f.listed = false
				s.sitOut(f)
			}
		}
	}
}

// sitOut has f, which is not listed, wait without slots until there is room for its tasks.
func (s *scheduler) sitOut(f *flow) {
	f.yielded = true
	s.letGo(f)
	f.turn.class.yielded.push(f)
}

// restore puts up again what yielded, where there is room for it.
func (s *scheduler) restore() {
	for i := range s.classes {
		c := &s.classes[i]
		for c.yielded.len() > 0 && s.room(i) {
			f := c.yielded.pop()
			f.yielded = false
			s.list(f)
		}
	}
}

// crowded reports whether no task of a class may be begun, since too many are parked. What is not of class high has
// half of the places, so that records which do not answer keep no worker from what is urgent and needs none.
func (s *scheduler) crowded(class int) bool {
	return s.parked >= s.most || class != classHigh && s.others >= s.most/2
}

// full reports whether f waits to begin tasks of a class that is crowded.
func (s *scheduler) full(f *flow) bool { return !f.resumes && s.crowded(f.class) }

// slotless says which intakes have tasks that wait for slots.
func (s *scheduler) slotless() map[*intake]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var in map[*intake]bool
	for _, f := range s.flows {
		if (f.waits || f.yielded) && f.heads.len() > 0 {
			if in == nil {
				in = map[*intake]bool{}
			}
			in[f.heads.peek().head.share.in] = true
		}
	}
	return in
}

// held counts, by intake, the tasks that a pause keeps back.
func (s *scheduler) held() map[*intake]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.pausing {
		return nil
	}
	n := map[*intake]int{}
	for _, q := range s.keys {
		for t := q.head; t != nil; t = t.next {
			if s.halted || t.flow.paused {
				n[t.share.in]++
			}
		}
	}
	return n
}

// stopping reports whether t will not be begun, as its partition moves.
func stopping(_, t *task) bool { return t.share.stopping.Load() }

// purge takes out the tasks that were not begun and are gone, given the head of their key, and gives each to out with mu
// held: if they wait for a slot or are paused, no worker would come across them.
func (s *scheduler) purge(gone func(head, t *task) bool, out func(*task)) {
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
		for _, q := range f.heads.all() {
			t := q.head
			if !gone(t, t) {
				f.heads.push(q)
				continue
			}
			s.ready--
			s.shift(q) // may come back: what follows is not gone
			out(t)
		}
		if f.heads.len() == 0 && f.listed {
			s.unlist(f)
		}
	}
	s.prune()
	s.wake()
}

// An amount is how many tasks there are, and the bytes of their records.
type amount struct{ tasks, bytes int64 }

// waiting counts the tasks of shares that were not begun, by share and flow. What is paused, is not known to be of an
// account, or stands behind one that was begun, is left out.
func (s *scheduler) waiting(shares map[*share]bool) map[*share]map[Work]amount {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := map[*share]map[Work]amount{}
	if s.halted {
		return by
	}
	for _, q := range s.keys {
		if q.head.begun() {
			continue
		}
		for t := q.head; t != nil; t = t.next {
			if !shares[t.share] || t.stays || t.flow.paused || t.flow.work.Account == "" {
				continue
			}
			if by[t.share] == nil {
				by[t.share] = map[Work]amount{}
			}
			n := by[t.share][t.flow.work]
			by[t.share][t.flow.work] = amount{n.tasks + 1, n.bytes + t.bytes()}
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
		if f.heads.len() == 0 && !f.listed && !f.waits && !f.yielded && f.held == 0 && !slices.Contains(s.last[:], f) {
			delete(s.flows, k)
			f.turn.known--
			if t := f.turn; t.known == 0 && !t.listed {
				delete(t.class.byName, t.account)
			}
		}
	}
}
