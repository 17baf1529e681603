package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/kafka/schedule"
	"github.com/millrace/millrace/streams/retry"
)

// A worker runs one task at a time. When its task is parked for the first time, another worker replaces it,
// and it ends with that task.
type worker struct {
	p    *Pool
	kind schedule.Kind

	lastProgress atomic.Int64 // last call of retry.Alive by the task, in Pool.clock
	progressed   atomic.Bool  // the task has called retry.Alive

	mu          sync.Mutex // guards the fields below
	task        *task      // running or parked
	mustRecord  bool       // a commit must record task before the handler runs
	began       int64      // in Pool.clock
	deadline    int64      // in Pool.clock; while the task is parked, the time that it has left
	cancelledAt int64      // in Pool.clock; 0: not cancelled
	parked      bool       // task is parked
	replaced    bool       // another worker took its place
	ctx         context.Context
	cancel      context.CancelCauseFunc
}

func newWorker(p *Pool, kind schedule.Kind) *worker {
	w := &worker{p: p, kind: kind}
	w.newContext()
	return w
}

// newContext gives w a context for the next tasks. Tasks share one context until it is cancelled.
func (w *worker) newContext() {
	ctx, cancel := context.WithCancelCause(context.WithValue(w.p.ctx, workerKey{}, w))
	w.ctx, w.cancel = retry.Watched(ctx, w.progress), cancel
}

// progress is called by retry.Alive in the running task.
func (w *worker) progress() {
	w.lastProgress.Store(w.p.clock.Load())
	w.progressed.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.task != nil {
		w.p.metricsOf(w.task).MarkProgress()
	}
}

// loop runs tasks until the scheduler is closed or another worker has taken its place.
func (w *worker) loop() {
	var completed *schedule.Task
	for !w.replaced {
		next := w.p.sched.Take(w.kind, completed)
		completed = nil
		if next == nil {
			break
		}
		if w.p.run(w, taskOf(next)) {
			completed = next
		}
	}
	w.p.sched.Complete(completed)
	w.p.removeWorker(w)
	w.cancel(nil)
}

// begin marks t as running, and returns its context.
func (w *worker) begin(t *task, mustRecord bool) context.Context {
	now := w.p.clock.Load()
	w.lastProgress.Store(now)
	w.progressed.Store(false)
	w.p.metricsOf(t).AddBusy(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.task, w.mustRecord, w.began, w.deadline, w.cancelledAt = t, mustRecord, now, now+int64(w.p.deadline(t)), 0
	return w.ctx
}

// end marks the task as ended, and returns the cause if it was cancelled.
func (w *worker) end() (cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.p.metricsOf(w.task).AddBusy(-1)
	w.task = nil
	if w.ctx.Err() != nil {
		cause = context.Cause(w.ctx)
		w.newContext()
	}
	return cause
}

// interrupt cancels the task if it belongs to assignments and, with onlyParked, if it is parked.
func (w *worker) interrupt(assignments []*assignment, onlyParked bool, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.task != nil && w.cancelledAt == 0 && (w.parked || !onlyParked) && slices.Contains(assignments, w.task.part) {
		w.cancelledAt = max(w.p.clock.Load(), 1)
		w.cancel(cause)
	}
}

var (
	errOverdue = errors.New("the task exceeded its deadline")
	// It wraps DeadlineExceeded so that a store's breaker counts a call that hangs as a failure.
	errStalled = fmt.Errorf("the task made no progress for too long (%w)", context.DeadlineExceeded)
)

// checkProgress cancels the task if it is overdue or makes no progress. It returns an error if the task
// ignores that.
func (w *worker) checkProgress(now int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.task == nil:
	case w.cancelledAt > 0:
		if time.Duration(now-w.cancelledAt) < w.p.cancelTimeout() {
			break
		}
		t := w.task
		return fmt.Errorf("the task of %s at offset %d, key %q, has ignored its cancellation for %v (%w)",
			t.part.Partition, t.Raw.Offset, t.Raw.Key, time.Duration(now-w.cancelledAt).Round(time.Second), context.Cause(w.ctx))
	case w.parked: // it waits for other tasks, which are checked themselves
	case now > w.deadline:
		w.cancelledAt = now
		w.cancel(errOverdue)
	case time.Duration(now-w.lastProgress.Load()) > w.p.cfg.StallTimeout:
		w.cancelledAt = now
		w.cancel(errStalled)
	}
	return nil
}

// run processes a task. It reports whether the task has ended; otherwise the task is postponed.
func (p *Pool) run(w *worker, t *task) bool {
	if t.part.isCancelled() {
		p.abandon(t)
		return true
	}
	if t.Ignored() {
		p.finish(t)
		return true
	}
	if p.kafka.Controls.AnyPaused() && p.kafka.Controls.Role(p.cfg.Role) { // paused since the scheduler handed it out
		p.sched.Postpone(&t.Task, clockStep)
		return false
	}
	if err := p.admit(t); errors.Is(err, core.ErrWorkPaused) {
		p.publish(t, []*kgo.Record{p.router.PausedRecord(&t.Record, time.Now())}, -1)
		return true
	} else if err != nil {
		p.failTask(t, err)
		return true
	}
	deaths, mustRecord := t.part.crashRisk(t.Raw.Offset)
	if deaths >= maxDeaths {
		p.failTask(t, retry.Permanent(fmt.Errorf("was running in %d processes that died", deaths)))
		return true
	}
	if deaths > 1 { // run it alone: if the process dies again, it is almost certainly the cause
		if !p.suspectMu.TryLock() {
			p.sched.Postpone(&t.Task, time.Second)
			return false
		}
		defer p.suspectMu.Unlock()
	}
	return p.call(w, t, mustRecord)
}

// call calls the handler once. With mustRecord, a commit records the task before that.
func (p *Pool) call(w *worker, t *task, mustRecord bool) bool {
	d, ok := p.decode(t)
	if !ok {
		p.failTask(t, t.err)
		return true
	}
	ctx := w.begin(t, mustRecord)
	if t.part.isCancelled() { // interrupt may have run before begin
		_ = w.end()
		p.abandon(t)
		return true
	}
	if mustRecord {
		err := t.part.fetcher.awaitRecorded(ctx)
		if t.part.gate.Closed() { // nothing is begun any more
			_ = w.end()
			p.abandon(t)
			return true
		} else if err != nil {
			_ = w.end()
			p.sched.Postpone(&t.Task, time.Second)
			return false
		}
	}
	called := time.Now()
	if t.tries == 0 {
		t.began = called
	}
	t.tries++
	d.Successor = t.lastQueued()
	ctx, ended := p.router.Span(ctx, &t.Record)
	out, err := callHandler(ctx, p.handle, d)
	ended(err)
	cause := w.end()
	t.err = err
	if err != nil {
		if errors.Is(cause, errRevoked) || t.part.isCancelled() || p.ctx.Err() != nil {
			p.abandon(t)
			return true
		}
		if cause != nil && retry.ClassOf(err) == retry.Transient {
			t.err = fmt.Errorf("%w: %w", cause, err) // a cancelled task is not retried in place
		} else if wait, ok := p.retryInPlace(t); ok {
			p.metricsOf(t).CountHandled(metrics.DispositionRetried, 1, time.Since(called))
			p.sched.Postpone(&t.Task, wait)
			return false
		}
	}
	took := time.Since(called)
	p.publish(t, p.router.OutputsFor(&t.Record, out, t.err), took)
	return true
}
