package schedule

// maxParked bounds the parked tasks of a Scheduler, because each has a goroutine. Classes other than high may use
// half of it.
const maxParked = 4096

// Park records that t, which is running, continues without a worker and slots.
func (s *Scheduler) Park(t *Task) {
	s.mu.Lock()
	s.detach(t)
	s.countParked(t.flow.class, 1)
	s.wake()
	s.unlock()
}

// Resume queues t, which is parked, for a worker and its slots. The channel is closed when it has them.
func (s *Scheduler) Resume(t *Task) <-chan struct{} {
	s.mu.Lock()
	q, turn := t.queue, make(chan struct{})
	q.homeFlow, q.workerGranted = t.flow, turn
	t.flow = s.flowOf(resumeOffset+t.flow.class, t.flow.id)
	t.flow.tasks++
	s.classes[resumeOffset+q.homeFlow.class].resumeWaiting++
	s.push(q)
	s.wake()
	s.unlock()
	return turn
}

// grantWorker lets the head of q resume: a worker is free for it. The caller holds mu.
func (s *Scheduler) grantWorker(q *keyQueue) {
	granted := q.workerGranted
	s.restoreFlow(q)
	close(granted)
}

// countParked adds n to the number of parked tasks of a class. The caller holds mu.
func (s *Scheduler) countParked(class, n int) {
	s.parked += n
	if class != classHigh {
		s.parkedOther += n
	}
}

// restoreFlow returns the head of q to its own flow. The caller holds mu.
func (s *Scheduler) restoreFlow(q *keyQueue) {
	s.countParked(q.homeFlow.class, -1)
	s.classes[resumeOffset+q.homeFlow.class].resumeWaiting--
	q.head.flow.tasks--
	q.head.flow, q.homeFlow, q.workerGranted = q.homeFlow, nil, nil
}

// CancelResume removes t from the tasks that wait to resume. It reports false if t has a worker already.
func (s *Scheduler) CancelResume(t *Task) bool {
	s.mu.Lock()
	defer s.unlock()
	if t.running {
		return false
	}
	q, f := t.queue, t.flow
	f.ready.removeAll(map[*keyQueue]bool{q: true})
	if s.readyEstimate--; f.ready.len() == 0 && f.queued {
		s.dequeue(f)
	}
	s.restoreFlow(q)
	return true
}
