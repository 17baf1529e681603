package emit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// publish tells of the next Change of a lane, whose busy it has set. An error that is not
// permanent leaves it where it is.
func (s *Store) publish(ctx context.Context, l *itemQueue, e *queuedChange, c *pb.Change) (err error) {
	err = errPanic // unless send returns
	defer func() { s.finishPublish(ctx, l, e, err) }()
	err = s.send(ctx, e, c)
	return err
}

var errPanic = errors.New("publish panicked")

// published notes how the publish of a Change ended.
func (s *Store) finishPublish(ctx context.Context, l *itemQueue, e *queuedChange, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.busy = false
	defer s.reschedule(l)
	if err != nil && !retry.IsPermanent(err) {
		s.publishFailed(ctx, l, err)
		return
	}
	s.completed, l.fails = s.completed+1, 0
	if s.degraded {
		s.resume()
	}
	e.finished, e.err = true, err
	if e.done != nil {
		close(e.done)
	}
	l.remove(e)
}

// send publishes c and has the outbox forget it, or puts it aside.
func (s *Store) send(ctx context.Context, e *queuedChange, c *pb.Change) error {
	if c == nil { // nobody waits for it, so it was left on disk
		p, err := s.cfg.Outbox.Read(e.ticket)
		if err != nil {
			return fmt.Errorf("read what is to be told: %w", err)
		}
		c = p.Change
	}
	s.mu.Lock()
	unnoted := e.unrecorded
	s.mu.Unlock()
	if unnoted {
		if err := s.recordOutcome(ctx, e); err != nil {
			return err
		}
	}
	err := s.out.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: c})
	switch {
	case err == nil:
		s.counters.countPublished()
	case retry.IsPermanent(err):
		// It is in nobody's way.
		report := Report{Rejected: true, Ticket: e.ticket, Pending: Pending{Change: c}, Err: err}
		if rerr := s.cfg.Outbox.Report(report); rerr != nil {
			return retry.Unavailable(fmt.Errorf("put aside what is refused (%w): %w", err, rerr))
		}
		s.counters.countRejected()
		s.log.Error("a change is refused for good and lies aside", "id", c.GetId(), "op", c.GetOp().String(),
			"space", c.GetSpace(), "item", c.GetItem(), "err", err)
	default:
		return err
	}
	if derr := s.cfg.Outbox.Done(e.ticket); derr != nil {
		// If the process ends now it will be told again, which is telling it once.
		s.deferDone(e.ticket)
	}
	return err
}

// failed notes that a lane could not be told of; s.mu is held.
func (s *Store) publishFailed(ctx context.Context, l *itemQueue, err error) {
	if ctx.Err() != nil { // of the caller's doing
		return
	}
	l.fails++
	l.retryAt = time.Now().Add(s.backoff(l.fails))
	s.degraded = true
	s.failures++
	if worthLogging(s.failures) {
		s.log.Warn("changes are not acknowledged; they wait", "key", l.key, "failures", s.failures, "err", err)
	}
	s.counters.countFailed()
}

// worthLogging reports whether something that is tried for as long as it fails is logged at its nth failure: at the first,
// and each time that it has failed twice as often.
func worthLogging(n int) bool { return n&(n-1) == 0 }

// resume has lanes that failed tried again at once, now that others work; s.mu is held.
func (s *Store) resume() {
	s.degraded, s.failures = false, 0
	now := time.Now()
	if now.Sub(s.resumedAt) < maxRetry/6 { // some work, and some do not
		return
	}
	s.resumedAt = now
	for _, l := range s.retrying.queues {
		l.retryAt = now
	}
	s.log.Info("changes are acknowledged again", "items", len(s.queues))
}

const maxRetry = 30 * time.Second

func (s *Store) backoff(fails int) time.Duration {
	return retry.Policy{Wait: s.cfg.Retry, MaxWait: maxRetry}.Backoff(min(fails, 16))
}

// tell has the Change of a mutation told, and those that come before it. It publishes
// itself: nobody else may be there who would.
func (s *Store) publishNow(ctx context.Context, m *mutation) error {
	l, e := m.queue, m.queued
	for {
		s.mu.Lock()
		if e.finished {
			s.mu.Unlock()
			return e.err
		}
		n := l.next()
		if n == nil {
			changed := l.changed()
			s.mu.Unlock()
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return storage.Ended(ctx)
			}
		}
		c := s.take(l, n)
		s.mu.Unlock()
		if err := s.publish(ctx, l, n, c); err != nil && !retry.IsPermanent(err) {
			return err
		}
	}
}

// take makes the caller the one who publishes an entry; s.mu is held.
func (s *Store) take(l *itemQueue, e *queuedChange) *pb.Change {
	l.busy = true
	s.reschedule(l)
	return e.change
}

// tellSoon waits until the Change of a mutation is told, but not long: the outbox has it.
func (s *Store) awaitPublish(ctx context.Context, m *mutation) (told bool, err error) {
	e := m.queued
	if !s.running.Load() {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Wait)
		defer cancel()
		_ = s.publishNow(ctx, m) // e says how it went
		return s.releaseChange(e)
	}
	s.mu.Lock()
	before := s.completed
	if e.finished || s.degraded {
		s.mu.Unlock()
		return s.releaseChange(e)
	}
	e.done = make(chan struct{})
	s.mu.Unlock()
	patience := time.NewTimer(s.cfg.Wait)
	defer patience.Stop()
	select {
	case <-e.done:
	case <-ctx.Done():
	case <-patience.C:
		s.mu.Lock()
		if held := !m.queue.busy && m.queue.next() == nil; !held && s.completed == before && !s.degraded {
			s.degraded = true // and not only this one waits for others of its item
			s.log.Warn("changes are not acknowledged in time; they wait", "key", m.queue.key, "waited", s.cfg.Wait)
		}
		s.mu.Unlock()
	}
	return s.releaseChange(e)
}

// unload leaves a Change to the outbox, unless it is over.
func (s *Store) releaseChange(e *queuedChange) (over bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.finished && e.err != nil {
		return true, &NotPublishedError{e.change, e.err}
	}
	if !e.finished {
		e.change = nil
	}
	return e.finished, nil
}

// Flush looks into mutations of which nobody knows what came of them, and publishes
// what waits. It goes on after a failure, and returns all. Mutations whose callers
// wait are left to them.
func (s *Store) Flush(ctx context.Context) error {
	failed := s.resolveOrphans(ctx)
	s.mu.Lock()
	lanes := slices.Concat(s.ready.queues, s.retrying.queues)
	slices.SortFunc(lanes, func(a, b *itemQueue) int { return int(int64(a.first) - int64(b.first)) })
	s.mu.Unlock()
	for _, l := range lanes {
		if ctx.Err() != nil {
			return errors.Join(append(failed, storage.Ended(ctx))...)
		}
		failed = append(failed, s.drain(ctx, l))
	}
	_ = s.retryDone() // if the process ends now they are told again, which is telling them once
	return errors.Join(failed...)
}

// drain tells of all that can be told of in a lane.
func (s *Store) drain(ctx context.Context, l *itemQueue) error {
	var failed error
	for {
		s.mu.Lock()
		e := l.next()
		if e == nil {
			s.mu.Unlock()
			return failed
		}
		c := s.take(l, e)
		s.mu.Unlock()
		err := s.publish(ctx, l, e, c)
		failed = errors.Join(failed, err)
		if err != nil && !retry.IsPermanent(err) {
			return failed
		}
	}
}

// unnoted remembers that the outbox could not forget a mutation.
func (s *Store) deferDone(t Ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unrecordedDone = append(s.unrecordedDone, t)
}

// finish has the outbox note what it could not note when it was told, and returns why it still cannot.
func (s *Store) retryDone() (failed error) {
	s.mu.Lock()
	tickets := s.unrecordedDone
	s.unrecordedDone = nil
	s.mu.Unlock()
	if len(tickets) == 0 {
		return nil
	}
	tickets = slices.DeleteFunc(tickets, func(t Ticket) bool {
		err := s.cfg.Outbox.Done(t)
		if err != nil {
			failed = err
		}
		return err == nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unrecordedDone = append(tickets, s.unrecordedDone...)
	return failed
}
