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

	alive atomic.Int64 // when the task last said that it gets on, in the Pool's time
	moved atomic.Bool  // it has said so

	mu       sync.Mutex // guards the rest
	task     *task      // at work, or parked
	q        *queue     // whose head task is
	careful  bool       // task is on record before it is at work
	since    int64      // in the Pool's time
	limit    int64      // when it is overdue; while it is parked, how long it may be at work yet
	warned   int64      // when it was cancelled; 0: it was not
	parked   bool       // task is
	replaced bool       // another took its place
	ctx      context.Context
	cancel   context.CancelCauseFunc
}

func newWorker(p *Pool, kind int) *worker {
	w := &worker{p: p, kind: kind}
	w.renew()
	return w
}

// renew gives w a context for the tasks to come: one is for many tasks, until it is cancelled.
func (w *worker) renew() {
	ctx, cancel := context.WithCancelCause(context.WithValue(w.p.ctx, workerKey{}, w))
	w.ctx, w.cancel = retry.Watched(ctx, w.progress), cancel
}

// progress is retry.Alive of the task at work.
func (w *worker) progress() {
	w.alive.Store(w.p.clock.Load())
	w.moved.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.task != nil {
		w.p.meter(w.task).markProgress()
	}
}

// loop runs tasks until the scheduler is closed, or another worker has taken its place.
func (w *worker) loop() {
	var completed item
	for !w.replaced {
		it, ok := w.p.sched.take(w.kind, completed)
		completed = item{}
		if !ok {
			break
		}
		if w.p.run(w, it) {
			completed = it
		}
	}
	w.p.sched.dismiss(w, completed)
	w.cancel(nil)
}

// begin takes note that the task of it is at work, and returns its context.
func (w *worker) begin(it item, careful bool) context.Context {
	now, t := w.p.clock.Load(), it.task
	w.alive.Store(now)
	w.moved.Store(false)
	w.p.meter(t).addBusy(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.task, w.q, w.careful, w.since, w.limit, w.warned = t, it.q, careful, now, now+int64(w.p.deadline(t)), 0
	return w.ctx
}

// end takes note that the task at work is at its end, and returns why it was cancelled, if it was.
func (w *worker) end() (cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.p.meter(w.task).addBusy(-1)
	w.task = nil
	if w.ctx.Err() != nil {
		cause = context.Cause(w.ctx)
		w.renew()
	}
	return cause
}

// interrupt cancels the task at work, or only one that is parked, if it is of shares.
func (w *worker) interrupt(shares []*share, onlyParked bool, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.task != nil && w.warned == 0 && (w.parked || !onlyParked) && slices.Contains(shares, w.task.share) {
		w.warned = max(w.p.clock.Load(), 1)
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
func (w *worker) check(now int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.task == nil:
	case w.warned > 0:
		if time.Duration(now-w.warned) < w.p.grace() {
			break
		}
		t := w.task
		return fmt.Errorf("the task of %s at offset %d, key %q, has ignored for %v that it was cancelled (%w)",
			t.share.partition, t.rec.Offset, t.rec.Key, time.Duration(now-w.warned).Round(time.Second), context.Cause(w.ctx))
	case w.parked: // it waits for others, who are watched
	case now > w.limit:
		w.warned = now
		w.cancel(errOverdue)
	case time.Duration(now-w.alive.Load()) > w.p.cfg.Stall:
		w.warned = now
		w.cancel(errStalled)
	}
	return nil
}

// run brings a task further, and reports whether it is at its end; if not, it is postponed.
func (p *Pool) run(w *worker, it item) bool {
	t := it.task
	if t.share.dead() {
		p.abandon(t)
		return true
	}
	if p.router.gone(t.rec) {
		p.finish(t)
		return true
	}
	if p.kafka.Controls.active() && p.kafka.Controls.Role(p.cfg.Role) { // since it was given out
		p.sched.postpone(it.q, poolClock)
		return false
	}
	if err := p.gate(t); errors.Is(err, errPartPaused) {
		p.publish(t, []*kgo.Record{p.router.aside(&t.letter, time.Now())}, -1)
		return true
	} else if err != nil {
		p.refuse(t, err)
		return true
	}
	deaths, careful, far := t.share.suspect(t.rec.Offset)
	if deaths >= killed {
		p.refuse(t, retry.Permanent(fmt.Errorf("was at work in %d processes that died", deaths)))
		return true
	}
	if deaths > 1 { // alone: who dies then is the cause, or next to nobody else
		if !p.alone.TryLock() {
			p.sched.postpone(it.q, time.Second)
			return false
		}
		defer p.alone.Unlock()
	}
	return p.call(w, it, careful, far)
}

// call calls the handler once, after the task is on record: if it is careful, or far and that is possible.
func (p *Pool) call(w *worker, it item, careful, far bool) bool {
	t := it.task
	d, ok := p.decode(t)
	if !ok {
		p.refuse(t, t.err)
		return true
	}
	ctx := w.begin(it, careful)
	if t.share.dead() { // whoever interrupted those at work may not have seen it
		_ = w.end()
		p.abandon(t)
		return true
	}
	if careful || far {
		err := t.share.in.record(ctx, careful)
		if gone := t.share.dead() || errors.Is(err, errStopped); err != nil && (careful || gone) {
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
	d.Behind = it.behind()
	ctx, ended := p.router.span(ctx, &t.letter)
	out, err := call(ctx, p.handle, d)
	ended(err)
	cause := w.end()
	t.err = err
	if err != nil {
		if errors.Is(cause, errRevoked) || t.share.dead() || p.ctx.Err() != nil {
			p.abandon(t)
			return true
		}
		if cause != nil && retry.ClassOf(err) == retry.Transient {
			t.err = fmt.Errorf("%w: %w", cause, err) // tried again later, and not at once
		} else if wait, ok := p.again(t); ok {
			p.meter(t).countHandled(dispositionRetried, 1, time.Since(called))
			p.sched.postpone(it.q, wait)
			return false
		}
	}
	took := time.Since(called)
	p.publish(t, p.router.outcome(&t.letter, out, t.err), took)
	return true
}
