package kafka

import (
	"context"
)

// maxParked bounds the parked tasks of a Pool, because each has a goroutine. Classes other than high may use
// half of it.
const maxParked = 4096

type workerKey struct{}

// Park calls wait without a worker: during the call the task occupies no worker of its Pool and no slots of
// its account and stores. After wait has returned, Park waits for both in turn and returns the error of wait.
// Use it for waits that need no processor, disk or network of their own, such as a wait for a fresh read.
//
// A parked task keeps its key, so tasks of the key stay in order. It also keeps its place in the window and
// its bytes in flight, which bounds the number of parked tasks. The time does not count for the deadline and
// the progress check. When its partition is revoked or the Pool stops, a parked task is cancelled at once,
// because it can be repeated elsewhere. Park then returns an error without waiting for a worker, and the
// handler must return.
//
// ctx is the context of a Handler. Outside a Pool, and inside another Park, Park only calls wait.
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

// park releases the worker and the slots of the task. It reports false if the task is parked already or
// cancelled.
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
	w.p.metricsOf(t).AddBusy(-1)
	w.p.metricsOf(t).AddParked(1)
	w.p.sched.park(t)
	if first {
		w.p.sched.mu.Lock()
		w.p.startWorker(w.kind)
		w.p.sched.mu.Unlock()
	}
	if t.part.stopping.Load() { // drain may have looked before the task was parked
		w.interrupt([]*assignment{t.part}, true, errRevoked)
	}
	return true
}

// unpark waits for a worker and the slots of the task. It returns the cause if the task was cancelled.
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
	w.p.metricsOf(t).AddParked(-1)
	w.p.metricsOf(t).AddBusy(1)
	w.mu.Lock()
	w.parked = false
	w.deadline += now
	mustRecord := w.mustRecord
	w.mu.Unlock()
	if cause == nil && mustRecord { // commits did not record it while it was parked
		cause = t.part.fetcher.awaitRecorded(ctx, true)
	}
	return cause
}

// park records that t, which is running, continues without a worker and slots.
func (s *scheduler) park(t *task) {
	s.mu.Lock()
	s.detach(t)
	s.countParked(t.flow.class, 1)
	s.wake()
	s.unlock()
}

// resumeTask queues the head of q, which is parked, for a worker and its slots. The channel is closed when it
// has them.
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

// grantWorker lets the head of q resume: a worker is free for it. The caller holds mu.
func (s *scheduler) grantWorker(q *keyQueue) {
	close(q.workerGranted)
	s.restoreFlow(q)
}

// countParked adds n to the number of parked tasks of a class. The caller holds mu.
func (s *scheduler) countParked(class, n int) {
	s.parked += n
	if class != classHigh {
		s.parkedOther += n
	}
}

// restoreFlow returns the head of q to its own flow. The caller holds mu.
func (s *scheduler) restoreFlow(q *keyQueue) {
	s.countParked(q.homeFlow.class, -1)
	s.classes[resumeOffset+q.homeFlow.class].resumeWaiting--
	q.head.flow, q.homeFlow, q.workerGranted = q.homeFlow, nil, nil
}

// cancelResume removes the head of q from the tasks that wait to resume. It reports false if the task has a
// worker already.
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

// removeWorker removes w, and ends its task if it has completed one.
func (s *scheduler) removeWorker(w *worker, completed workItem) {
	s.mu.Lock()
	s.complete(completed)
	delete(s.workers, w)
	s.wake()
	s.unlock()
}
