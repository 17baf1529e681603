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

	"github.com/millrace/millrace/streams/retry"
)

// A worker runs one task at a time. The first time that its task is parked another worker takes its place, and it
// ends with that task.
type worker struct {
	p    *Pool
	kind int

	lastProgress atomic.Int64 // when the task last said that it gets on, in the Pool's time
	progressed   atomic.Bool  // it has said so

	mu          sync.Mutex // guards the rest
	task        *task      // at work, or parked
	q           *keyQueue  // whose head task is
	mustRecord  bool       // task is on record before it is at work
	began       int64      // in the Pool's time
	deadline    int64      // when it is overdue; while it is parked, how long it may be at work yet
	cancelledAt int64      // when it was cancelled; 0: it was not
	parked      bool       // task is
	replaced    bool       // another took its place
	ctx         context.Context
	cancel      context.CancelCauseFunc
}

func newWorker(p *Pool, kind int) *worker {
	w := &worker{p: p, kind: kind}
	w.newContext()
	return w
}

// renew gives w a context for the tasks to come: one is for many tasks, until it is cancelled.
func (w *worker) newContext() {
	ctx, cancel := context.WithCancelCause(context.WithValue(w.p.ctx, workerKey{}, w))
	w.ctx, w.cancel = retry.Watched(ctx, w.progress), cancel
}

// progress is retry.Alive of the task at work.
func (w *worker) progress() {
	w.lastProgress.Store(w.p.clock.Load())
	w.progressed.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.task != nil {
		w.p.metricsOf(w.task).progressed()
	}
}

// loop runs tasks until the scheduler is closed, or another worker has taken its place.
func (w *worker) loop() {
	var completed workItem
	for !w.replaced {
		it, ok := w.p.sched.take(w.kind, completed)
		completed = workItem{}
		if !ok {
			break
		}
		if w.p.run(w, it) {
			completed = it
		}
	}
	w.p.sched.removeWorker(w, completed)
	w.cancel(nil)
}

// begin takes note that the task of it is at work, and returns its context.
func (w *worker) begin(it workItem, careful bool) context.Context {
	now, t := w.p.clock.Load(), it.task
	w.lastProgress.Store(now)
	w.progressed.Store(false)
	w.p.metricsOf(t).working(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.task, w.q, w.mustRecord, w.began, w.deadline, w.cancelledAt = t, it.q, careful, now, now+int64(w.p.deadline(t)), 0
	return w.ctx
}

// end takes note that the task at work is at its end, and returns why it was cancelled, if it was.
func (w *worker) end() (cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.p.metricsOf(w.task).working(-1)
	w.task = nil
	if w.ctx.Err() != nil {
		cause = context.Cause(w.ctx)
		w.newContext()
	}
	return cause
}

// interrupt cancels the task at work, or only one that is parked, if it is of shares.
func (w *worker) interrupt(assignments []*assignment, onlyParked bool, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.task != nil && w.cancelledAt == 0 && (w.parked || !onlyParked) && slices.Contains(assignments, w.task.part) {
		w.cancelledAt = max(w.p.clock.Load(), 1)
		w.cancel(cause)
	}
}

var (
	errOverdue = errors.New("the task took longer than it may")
	// A store that hangs must not look well: whoever judges it by the context sees that time was up.
	errStalled = fmt.Errorf("the task made no progress for longer than it may (%w)", context.DeadlineExceeded)
)

// check cancels the task at work if it is overdue or does not get on, and returns an error
// if it ignores that.
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
		return fmt.Errorf("the task of %s at offset %d, key %q, has ignored for %v that it was cancelled (%w)",
			t.part.partition, t.rec.Offset, t.rec.Key, time.Duration(now-w.cancelledAt).Round(time.Second), context.Cause(w.ctx))
	case w.parked: // it waits for others, who are watched
	case now > w.deadline:
		w.cancelledAt = now
		w.cancel(errOverdue)
	case time.Duration(now-w.lastProgress.Load()) > w.p.cfg.Stall:
		w.cancelledAt = now
		w.cancel(errStalled)
	}
	return nil
}

// run brings a task further, and reports whether it is at its end; if not, it is postponed.
func (p *Pool) run(w *worker, it workItem) bool {
	t := it.task
	if t.part.isCancelled() {
		p.abandon(t)
		return true
	}
	if p.router.ignores(t.rec) {
		p.finish(t)
		return true
	}
	if p.kafka.Controls.anyPaused() && p.kafka.Controls.Role(p.cfg.Role) { // since it was given out
		p.sched.postpone(it.q, clockStep)
		return false
	}
	if err := p.admit(t); errors.Is(err, errWorkPaused) {
		p.publish(t, []*kgo.Record{p.router.pausedRecord(&t.inflightRecord, time.Now())}, -1)
		return true
	} else if err != nil {
		p.failTask(t, err)
		return true
	}
	deaths, careful, far := t.part.crashRisk(t.rec.Offset)
	if deaths >= maxDeaths {
		p.failTask(t, retry.Permanent(fmt.Errorf("was at work in %d processes that died", deaths)))
		return true
	}
	if deaths > 1 { // alone: who dies then is the cause, or next to nobody else
		if !p.suspectMu.TryLock() {
			p.sched.postpone(it.q, time.Second)
			return false
		}
		defer p.suspectMu.Unlock()
	}
	return p.call(w, it, careful, far)
}

// call calls the handler once, after the task is on record: if it is careful, or far and that is possible.
func (p *Pool) call(w *worker, it workItem, careful, far bool) bool {
	t := it.task
	d, ok := p.decode(t)
	if !ok {
		p.failTask(t, t.err)
		return true
	}
	ctx := w.begin(it, careful)
	if t.part.isCancelled() { // whoever interrupted those at work may not have seen it
		_ = w.end()
		p.abandon(t)
		return true
	}
	if careful || far {
		err := t.part.fetcher.awaitRecorded(ctx, careful)
		if gone := t.part.isCancelled() || errors.Is(err, errStopped); err != nil && (careful || gone) {
			_ = w.end() // what the record says is what counts
			if gone {
				p.abandon(t)
				return true
			}
			p.sched.postpone(it.q, time.Second)
			return false
		}
	}
	called := time.Now()
	if t.tries == 0 {
		t.began = called
	}
	t.tries++
	d.Behind = it.lastQueued()
	ctx, ended := p.router.span(ctx, &t.inflightRecord)
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
			t.err = fmt.Errorf("%w: %w", cause, err) // tried again later, and not at once
		} else if wait, ok := p.retryInPlace(t); ok {
			p.metricsOf(t).handled(fateRetried, 1, time.Since(called))
			p.sched.postpone(it.q, wait)
			return false
		}
	}
	took := time.Since(called)
	p.publish(t, p.router.outcome(&t.inflightRecord, out, t.err), took)
	return true
}
