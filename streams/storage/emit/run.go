package emit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// maxProbes bounds concurrent publishes while degraded. It is more than one because the Changes of a single
// item may be the ones that fail.
const maxProbes = 8

// Run publishes pending Changes, oldest first, and resolves mutations of unknown outcome, until ctx ends;
// then it returns nil, and the next Run continues. An error means that the outbox has failed: every later
// mutation is refused. Without Run, calls publish their own Changes, and Flush publishes those that remain.
func (s *Store) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("emit: Run is already running")
	}
	defer s.running.Store(false)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.dispatch(ctx) })
	g.Go(func() error { return s.maintain(ctx) })
	return g.Wait()
}

// dispatch starts publishes, at most Config.Publishers at a time.
func (s *Store) dispatch(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(s.cfg.Publishers)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		m, c, wait := s.pick()
		if m != nil {
			g.Go(func() error {
				_ = s.publish(ctx, m, c) // the queue schedules the retry
				s.mu.Lock()
				s.inFlight--
				s.mu.Unlock()
				s.wake()
				return nil
			})
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-s.wakeup:
		case <-timer.C:
		}
	}
	return g.Wait()
}

// pick returns the next mutation to publish and its Change, or how long to wait for one.
func (s *Store) pick() (*mutation, *pb.Change, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	q, wait := s.oldest(now)
	if q == nil {
		return nil, nil, wait
	}
	if s.degraded {
		if s.inFlight >= maxProbes {
			return nil, nil, maxRetry
		}
		if wait := s.probeAt.Sub(now); wait > 0 {
			return nil, nil, wait
		}
		s.probeAt = now.Add(s.cfg.Retry)
	}
	m := q.next()
	s.inFlight++
	return m, s.take(m), 0
}

// oldest returns the due queue with the oldest Change, or how long until one is due.
func (s *Store) oldest(now time.Time) (*itemQueue, time.Duration) {
	var q *itemQueue
	wait := maxRetry
	if s.retrying.Len() > 0 {
		if wait = s.retrying.queues[0].retryAt.Sub(now); wait <= 0 {
			q = s.retrying.queues[0]
		}
	}
	if s.ready.Len() > 0 && (q == nil || s.ready.queues[0].first < q.first) {
		q = s.ready.queues[0]
	}
	if q == nil && s.degraded && s.retrying.Len() > 0 { // probe whether the publisher is back
		q = s.retrying.queues[0]
	}
	return q, wait
}

// maintain resolves orphans and retries Done calls that the outbox failed to record.
func (s *Store) maintain(ctx context.Context) error {
	var lookFailures, recordFailures streak
	for ctx.Err() == nil {
		failed := append(s.resolveOrphans(ctx), nil)
		recordErr := s.retryDone()
		if err := s.cfg.Outbox.Stats().Err; err != nil {
			return fmt.Errorf("emit to %s/%s: %w", s.cfg.Account, s.cfg.Store, err)
		}
		if lookFailures.add(ctx, failed[0]) {
			s.log.Warn("retry resolving mutations later",
				"items", len(failed)-1, "failures", lookFailures, "err", failed[0])
		}
		if recordFailures.add(ctx, recordErr) {
			s.log.Warn("retry outbox deletion later", "failures", recordFailures, "err", recordErr)
		}
		wait := s.cfg.Retry
		if lookFailures > 0 {
			wait = s.backoff(int(lookFailures))
		}
		_ = retry.Sleep(ctx, wait) // the loop checks ctx
	}
	return nil
}

// A streak counts consecutive failures.
type streak int

// add counts an attempt, unless ctx has ended, and reports whether its error is to be logged.
func (n *streak) add(ctx context.Context, err error) bool {
	switch {
	case ctx.Err() != nil:
		return false
	case err == nil:
		*n = 0
		return false
	}
	*n++
	return worthLogging(int(*n))
}
