package sweep

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/millrace/millrace/streams/retry"
)

// An active split has a round under way.
type active struct {
	split  Split
	run    *run // nil: the round has not begun
	result Result
	waited bool // since its last page
	ended  func(Result, error)
	base   context.Context // of the engine
	// release gives back the slot for the page, unless that is done. The engine calls it when the split has its turn,
	// so that no other split takes the slot before.
	release func()
}

// turns holds the active splits that wait for their turn: accounts take turns, and so do the splits of an account.
type turns struct {
	accounts []string // with waiting splits, in the order of their turns
	waiting  map[string][]*active
}

func (t *turns) add(a *active) {
	account := a.split.Account
	if len(t.waiting[account]) == 0 {
		t.accounts = append(t.accounts, account)
	}
	t.waiting[account] = append(t.waiting[account], a)
}

// next takes the next split. There is one.
func (t *turns) next() *active {
	account := t.accounts[0]
	t.accounts = t.accounts[1:]
	splits := t.waiting[account]
	a := splits[0]
	if splits = splits[1:]; len(splits) > 0 {
		t.accounts = append(t.accounts, account)
		t.waiting[account] = splits
	} else {
		delete(t.waiting, account)
	}
	return a
}

// A slot is the right to work on a page.
type slot struct {
	slots   chan struct{}
	looking func(int)
}

func (s *slot) acquire() {
	s.slots <- struct{}{}
	s.looking(1)
}

func (s *slot) release() {
	s.looking(-1)
	<-s.slots
}

// An engine works on the pages of active splits.
type engine struct {
	*Sweeper
	slots chan struct{}
	turns turns
	back  chan *active // those that go on after a page
	ended chan func()
}

func newEngine(s *Sweeper) *engine {
	return &engine{Sweeper: s, slots: make(chan struct{}, s.config.Workers), back: make(chan *active),
		ended: make(chan func()), turns: turns{waiting: map[string][]*active{}}}
}

// run works on the splits that it receives from due until that is closed and all have ended, or ctx is done. It calls
// active.ended of each, one call at a time.
func (e *engine) run(ctx context.Context, due <-chan []*active) {
	stop := ctx.Done()
	for out := 0; due != nil || out > 0 || len(e.turns.accounts) > 0; {
		var acquire chan<- struct{}
		if len(e.turns.accounts) > 0 {
			acquire = e.slots
		}
		select {
		case acquire <- struct{}{}:
			out++
			go e.work(ctx, e.turns.next())
		case more, ok := <-due:
			if !ok {
				due = nil
			}
			for _, a := range more {
				e.turns.add(a)
			}
		case a := <-e.back:
			out--
			e.turns.add(a)
			a.release()
		case end := <-e.ended:
			out--
			end()
		case <-stop: // those at work end soon
			for stop, due = nil, nil; len(e.turns.accounts) > 0; {
				a := e.turns.next()
				if a.run != nil {
					a.run.stopAhead()
				}
				a.ended(Result{}, context.Cause(ctx))
			}
		}
	}
}

// work works on a page of a split, for which it has a slot.
func (e *engine) work(ctx context.Context, a *active) {
	s := &slot{e.slots, e.deps.Looking}
	s.looking(1)
	a.base = ctx
	done, wait, err := e.watched(context.WithValue(ctx, slotKey{}, s), a)
	if err != nil && ctx.Err() == nil && !isNoFailure(err) {
		e.deps.Metrics.failed(a.split.Sweep, err)
	}
	if err != nil && a.run != nil && !isNoFailure(err) {
		err = a.run.failed(ctx, err)
	}
	a.release = sync.OnceFunc(s.release)
	if err == nil && !done && wait > 0 {
		a.release()
		err = retry.Sleep(ctx, wait)
	}
	if err == nil && !done {
		err = context.Cause(ctx)
	}
	if err == nil && !done {
		select {
		case e.back <- a:
			return
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	a.release()
	if a.run != nil {
		a.run.stopAhead()
		a.result = a.run.summary
	}
	e.ended <- func() { a.ended(a.result, err) }
}

// isNoFailure reports whether err ends the work on a split without a failure.
func isNoFailure(err error) bool {
	return errors.Is(err, errLost) || errors.Is(err, ErrNotNow) || errors.Is(err, ErrPaused)
}

// watched works on a page, and cancels it if it makes no progress. A panic is an error of the round.
func (e *engine) watched(ctx context.Context, a *active) (done bool, wait time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	page, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(e.config.Stall, func() { cancel(errStalled) })
	defer timer.Stop()
	done, wait, err = e.page(retry.Watched(page, func() {
		timer.Reset(e.config.Stall)
		retry.Alive(ctx)
	}), a)
	if cause := context.Cause(page); err != nil && ctx.Err() == nil && errors.Is(cause, errStalled) {
		err = errors.Join(cause, err)
	}
	return done, wait, err
}
