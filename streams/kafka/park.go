package kafka

import (
	"context"
)

// maxParked bounds the parked tasks of a Pool: each keeps a goroutine. Those that are not of class high are half of it
// at most.
const maxParked = 4096

type workerKey struct{}

// Park calls wait, for what a task waits for without doing anything: a fresh read, and nothing that takes a processor,
// a disk or a network of its own. Meanwhile the task holds no worker of its Pool, and no slots of its account and
// stores. When wait has returned it gets both again, in its turn, before Park returns the error of wait.
//
// A parked task keeps its key, so those behind it stay in order, and its place in the window and the bytes in flight,
// which bound how many are parked. The time does not count for the watchdog. When its partition moves or the Pool
// stops, a parked task is cancelled at once, since it can be done again elsewhere: then Park returns an error without
// that, and the handler is to return too.
//
// ctx is that of a Handler; outside a Pool, and within another Park, Park just calls wait.
func Park(ctx context.Context, wait func(context.Context) error) (err error) {
	w, _ := ctx.Value(workerKey{}).(*worker)
	if w == nil || !w.park() {
		return wait(ctx)
	}
	defer func() {
		if cause := w.unpark(); err == nil {
			err = cause
		}
	}()
	return wait(ctx)
}

// park lets go of the task's worker and slots, unless that is done, or the task is cancelled.
func (w *worker) park() bool {
	w.mu.Lock()
	if w.task == nil || w.parked || w.ctx.Err() != nil {
		w.mu.Unlock()
		return false
	}
	t, first := w.task, !w.replaced
	w.parked, w.replaced = true, true
	w.deadline -= w.p.clock.Load()
	w.mu.Unlock()
	w.p.metricsOf(t).working(-1)
	w.p.metricsOf(t).parking(1)
	w.p.sched.park(t)
	if first {
		w.p.sched.mu.Lock()
		w.p.startWorker(w.kind)
		w.p.sched.mu.Unlock()
	}
	if t.part.stopping.Load() { // whoever drains it may not have seen it parked
		w.interrupt([]*assignment{t.part}, true, errRevoked)
	}
	return true
}

// unpark returns when the task has a worker and its slots again, or why it was cancelled.
func (w *worker) unpark() (cause error) {
	w.mu.Lock()
	t, q, ctx := w.task, w.q, w.ctx
	w.mu.Unlock()
	select {
	case <-w.p.sched.resumeTask(q):
	case <-ctx.Done():
		if w.p.sched.cancelResume(q) {
			cause = context.Cause(ctx)
		}
	}
	now := w.p.clock.Load()
	w.lastProgress.Store(now)
	w.p.metricsOf(t).parking(-1)
	w.p.metricsOf(t).working(1)
	w.mu.Lock()
	w.parked = false
	w.deadline += now
	careful := w.mustRecord
	w.mu.Unlock()
	if cause == nil && careful { // it was not on record while it was parked
		cause = t.part.fetcher.awaitRecorded(ctx, true)
	}
	return cause
}

// park takes note that t, which is at work, goes on without a worker and slots.
func (s *scheduler) park(t *task) {
	s.mu.Lock()
	s.detach(t)
	s.countParked(t.flow.class, 1)
	s.wake()
	s.unlock()
}

// resume has the head of q, which is parked, wait for a worker and its slots. The channel is closed when it has them.
func (s *scheduler) resumeTask(q *keyQueue) <-chan struct{} {
	s.mu.Lock()
	t := q.head
	turn := make(chan struct{})
	q.homeFlow, q.workerGranted = t.flow, turn
	t.flow = s.flowOf(resumeOffset+t.flow.class, t.flow.work, func(Work) bool { return false })
	s.classes[resumeOffset+q.homeFlow.class].resumeWaiting++
	s.push(q)
	s.wake()
	s.unlock()
	return turn
}

// goOn has the head of q go on, which a worker is free for. mu is held.
func (s *scheduler) grantWorker(q *keyQueue) {
	close(q.workerGranted)
	s.restoreFlow(q)
}

// count takes note of n more parked tasks of a class. mu is held.
func (s *scheduler) countParked(class, n int) {
	s.parked += n
	if class != classHigh {
		s.parkedOther += n
	}
}

// home returns the head of q to its own flow. mu is held.
func (s *scheduler) restoreFlow(q *keyQueue) {
	s.countParked(q.homeFlow.class, -1)
	s.classes[resumeOffset+q.homeFlow.class].resumeWaiting--
	q.head.flow, q.homeFlow, q.workerGranted = q.homeFlow, nil, nil
}

// withdraw takes the head of q from those that wait to go on, unless it has a worker by now.
func (s *scheduler) cancelResume(q *keyQueue) bool {
	s.mu.Lock()
	defer s.unlock()
	if q.head.running {
		return false
	}
	f := q.head.flow
	f.ready.remove(q)
	if s.readyEstimate--; f.ready.len() == 0 && f.queued {
		s.dequeue(f)
	}
	s.restoreFlow(q)
	return true
}

// dismiss forgets w, and ends its task, if it has completed one.
func (s *scheduler) removeWorker(w *worker, completed workItem) {
	s.mu.Lock()
	s.complete(completed)
	delete(s.workers, w)
	s.wake()
	s.unlock()
}
