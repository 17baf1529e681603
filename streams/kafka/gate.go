package kafka

// control sets what may be run: nothing, or all but what is paused, by that many workers.
func (s *scheduler) control(halted bool, allowed int, paused func(Work) bool) {
	s.mu.Lock()
	defer s.unlock()
	s.halted, s.allowed, s.pausing = halted, allowed, halted
	for _, f := range s.flows {
		f.paused = paused(f.work)
		s.pausing = s.pausing || f.paused
		s.settle(f)
	}
	for i := range s.work {
		s.work[i].Broadcast()
	}
}

// settle puts f up for running or takes it down, as its gate now says.
func (s *scheduler) settle(f *flow) {
	f.spill = f.spill && f.paused
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
			f.spill = false
			s.settle(f)
		}
	}
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

// purge drops the tasks of shares that are stopping and are not at work: where they wait
// for a slot or are paused, nobody would come across them.
func (s *scheduler) purge() {
	s.mu.Lock()
	defer s.unlock()
	for _, q := range s.keys { // what stands behind a head
		for t := q.head; t.next != nil; {
			if next := t.next; next.share.stopping.Load() {
				s.dropped(next)
				t.next = next.next
			} else {
				t = next
			}
		}
		for q.tail = q.head; q.tail.next != nil; {
			q.tail = q.tail.next
		}
	}
	for _, f := range s.flows {
		for range f.heads.len() {
			q := f.heads.pop()
			if !q.head.share.stopping.Load() {
				f.heads.push(q)
				continue
			}
			s.ready--
			s.dropped(q.head)
			s.shift(q) // may come back to the end of this flow: what follows is not stopping
		}
		if f.heads.len() == 0 && f.listed {
			s.unlist(f)
		}
	}
	s.prune()
	s.wake()
}

// prune forgets flows and accounts that have nothing.
func (s *scheduler) prune() {
	if len(s.flows) < 4096 {
		return
	}
	for k, f := range s.flows {
		if f.heads.len() == 0 && !f.listed && !f.waits && f.held == 0 && s.last[f.class] != f {
			delete(s.flows, k)
			f.turn.known--
			if t := f.turn; t.known == 0 && !t.listed {
				delete(t.class.byName, t.account)
			}
		}
	}
}
