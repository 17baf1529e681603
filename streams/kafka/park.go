package kafka

import "context"

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
	w.p.sched.Park(&t.Task)
	if first {
		w.p.startWorker(w.kind)
	}
	if t.part.gate.Closed() { // drain may have looked before the task was parked
		w.interrupt([]*assignment{t.part}, true, errRevoked)
	}
	return true
}

// unpark waits for a worker and the slots of the task. It returns the cause if the task was cancelled.
func (w *worker) unpark() (cause error) {
	w.mu.Lock()
	t, ctx := w.task, w.ctx
	w.mu.Unlock()
	select {
	case <-w.p.sched.Resume(&t.Task):
	case <-ctx.Done():
		if w.p.sched.CancelResume(&t.Task) {
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
		cause = t.part.fetcher.awaitRecorded(ctx)
	}
	return cause
}
