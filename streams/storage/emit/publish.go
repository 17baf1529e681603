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
	"github.com/millrace/millrace/streams/storage/outbox"
)

// publish publishes the Change of m, the next of a queue that the caller has marked busy (take). After an error
// that is not permanent the mutation stays queued.
func (s *Store) publish(ctx context.Context, m *mutation, c *pb.Change) (err error) {
	err = errPanic // replaced when send returns
	defer func() { s.finishPublish(ctx, m, err) }()
	err = s.send(ctx, m, c)
	return err
}

var errPanic = errors.New("publish panicked")

// finishPublish updates the queue after a publish.
func (s *Store) finishPublish(ctx context.Context, m *mutation, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := m.queue
	q.busy = false
	defer s.reschedule(q)
	if err != nil && !retry.IsPermanent(err) {
		s.publishFailed(ctx, q, err)
		return
	}
	s.completed, q.fails = s.completed+1, 0
	if s.degraded {
		s.resume()
	}
	m.finished, m.err = true, err
	if m.done != nil {
		close(m.done)
	}
	q.remove(m)
}

// send publishes c, the Change of m, and deletes its record from the outbox. A Change that the publisher rejects
// permanently is kept as a report.
func (s *Store) send(ctx context.Context, m *mutation, c *pb.Change) error {
	if c == nil { // releaseChange dropped it from memory
		held, err := s.cfg.Outbox.Read(m.ticket)
		if err != nil {
			return fmt.Errorf("read pending change: %w", err)
		}
		c = held.Change
	}
	s.mu.Lock()
	unrecorded := m.unrecorded
	s.mu.Unlock()
	if unrecorded {
		if err := s.recordOutcome(ctx, m); err != nil {
			return err
		}
	}
	err := s.out.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: c})
	switch {
	case err == nil:
		s.counters.countPublished()
	case retry.IsPermanent(err):
		// A rejected Change does not block those after it.
		if rerr := s.cfg.Outbox.Report(outbox.Mutation{Ticket: m.ticket, Change: c}, err); rerr != nil {
			return retry.Unavailable(fmt.Errorf("report rejected change (%w): %w", err, rerr))
		}
		s.counters.countRejected()
		s.log.Error("reject change", "id", c.GetId(), "op", c.GetOp().String(),
			"space", c.GetSpace(), "item", c.GetItem(), "err", err)
	default:
		return err
	}
	if derr := s.cfg.Outbox.Done(m.ticket); derr != nil {
		// If the process ends now the Change is published again, with the same id.
		s.deferDone(m.ticket)
	}
	return err
}

// publishFailed schedules a retry after a failed publish; s.mu is held.
func (s *Store) publishFailed(ctx context.Context, q *itemQueue, err error) {
	if ctx.Err() != nil { // the caller gave up, which says nothing about the publisher
		return
	}
	q.fails++
	q.retryAt = time.Now().Add(s.backoff(q.fails))
	s.degraded = true
	s.failures++
	if worthLogging(s.failures) {
		s.log.Warn("retry publish later", "key", q.key, "failures", s.failures, "err", err)
	}
	s.counters.countFailed()
}

// worthLogging reports whether the nth consecutive failure of a retried operation is logged: the 1st, 2nd,
// 4th, 8th and so on.
func worthLogging(n int) bool { return n&(n-1) == 0 }

// resume ends the degraded state and makes all retrying queues due, at most once in maxRetry/6; s.mu is
// held.
func (s *Store) resume() {
	s.degraded, s.failures = false, 0
	now := time.Now()
	if now.Sub(s.resumedAt) < maxRetry/6 { // some items are acknowledged and others keep failing
		return
	}
	s.resumedAt = now
	for _, q := range s.retrying.queues {
		q.retryAt = now
	}
	s.log.Info("resume publishing", "items", len(s.queues))
}

const maxRetry = 30 * time.Second

func (s *Store) backoff(fails int) time.Duration {
	return retry.Policy{Wait: s.cfg.Retry, MaxWait: maxRetry}.Backoff(min(fails, 16))
}

// publishNow publishes the Change of a mutation and those queued before it, in the caller's goroutine: Run
// may not be running.
func (s *Store) publishNow(ctx context.Context, m *mutation) error {
	q := m.queue
	for {
		s.mu.Lock()
		if m.finished {
			s.mu.Unlock()
			return m.err
		}
		n := q.next()
		if n == nil {
			changed := q.changed()
			s.mu.Unlock()
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return storage.ContextErr(ctx)
			}
		}
		c := s.take(n)
		s.mu.Unlock()
		if err := s.publish(ctx, n, c); err != nil && !retry.IsPermanent(err) {
			return err
		}
	}
}

// take marks the queue of m busy, so that the caller alone publishes its Change; s.mu is held.
func (s *Store) take(m *mutation) *pb.Change {
	m.queue.busy = true
	s.reschedule(m.queue)
	return m.change
}

// awaitPublish waits until the Change of a mutation is finished, at most Config.Wait: the outbox holds it.
func (s *Store) awaitPublish(ctx context.Context, m *mutation) (finished bool, err error) {
	if !s.running.Load() {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Wait)
		defer cancel()
		_ = s.publishNow(ctx, m) // the result is in m
		return s.releaseChange(m)
	}
	s.mu.Lock()
	before := s.completed
	if m.finished || s.degraded {
		s.mu.Unlock()
		return s.releaseChange(m)
	}
	m.done = make(chan struct{})
	s.mu.Unlock()
	timeout := time.NewTimer(s.cfg.Wait)
	defer timeout.Stop()
	select {
	case <-m.done:
	case <-ctx.Done():
	case <-timeout.C:
		s.mu.Lock()
		if held := !m.queue.busy && m.queue.next() == nil; !held && s.completed == before && !s.degraded {
			s.degraded = true // and this Change did not merely wait for another of its item
			s.log.Warn("stop waiting for acknowledgements", "key", m.queue.key, "waited", s.cfg.Wait)
		}
		s.mu.Unlock()
	}
	return s.releaseChange(m)
}

// releaseChange drops the Change of a mutation from memory unless it is finished: the outbox has it.
func (s *Store) releaseChange(m *mutation) (finished bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.finished && m.err != nil {
		return true, notPublished(m.change, m.err)
	}
	if !m.finished {
		m.change = nil
	}
	return m.finished, nil
}

// Flush resolves mutations of unknown outcome and publishes the pending Changes. It continues after a
// failure and returns all errors. Mutations with an active call are left to that call.
func (s *Store) Flush(ctx context.Context) error {
	failed := s.resolveOrphans(ctx)
	s.mu.Lock()
	queues := slices.Concat(s.ready.queues, s.retrying.queues)
	slices.SortFunc(queues, func(a, b *itemQueue) int { return int(int64(a.first) - int64(b.first)) })
	s.mu.Unlock()
	for _, q := range queues {
		if ctx.Err() != nil {
			return errors.Join(append(failed, storage.ContextErr(ctx))...)
		}
		failed = append(failed, s.drain(ctx, q))
	}
	_ = s.retryDone() // a Change that stays recorded is published again, with the same id
	return errors.Join(failed...)
}

// drain publishes the Changes of a queue until none is ready or one fails.
func (s *Store) drain(ctx context.Context, q *itemQueue) error {
	var failed error
	for {
		s.mu.Lock()
		m := q.next()
		if m == nil {
			s.mu.Unlock()
			return failed
		}
		c := s.take(m)
		s.mu.Unlock()
		err := s.publish(ctx, m, c)
		failed = errors.Join(failed, err)
		if err != nil && !retry.IsPermanent(err) {
			return failed
		}
	}
}

// deferDone schedules another Outbox.Done after the outbox failed to record the end of a mutation.
func (s *Store) deferDone(t outbox.Ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unrecordedDone = append(s.unrecordedDone, t)
}

// retryDone repeats the Outbox.Done calls that failed, and returns the last error.
func (s *Store) retryDone() (failed error) {
	s.mu.Lock()
	tickets := s.unrecordedDone
	s.unrecordedDone = nil
	s.mu.Unlock()
	if len(tickets) == 0 {
		return nil
	}
	tickets = slices.DeleteFunc(tickets, func(t outbox.Ticket) bool {
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
