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

// probes bounds how many are tried at once while nothing is acknowledged: several, since one
// item's Changes may be the ones that cannot be.
const maxProbes = 8

// Run publishes what waits, oldest first, and looks into mutations of which nobody knows what came of
// them, until ctx ends; then it returns nil, and what waits is told by the next Run. An
// error says that the outbox is of no use any more: every mutation is refused from then on.
// Without Run, calls publish for themselves, and what they leave is told by Flush.
func (s *Store) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("emit runs already")
	}
	defer s.running.Store(false)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.dispatch(ctx) })
	g.Go(func() error { return s.maintain(ctx) })
	return g.Wait()
}

// dispatch has Changes published.
func (s *Store) dispatch(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(s.cfg.Publishers)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		l, e, c, wait := s.pick()
		if e != nil {
			g.Go(func() error {
				_ = s.publish(ctx, l, e, c) // the lane knows, and it is tried again
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

// pick returns what is to be published now, or how long there is nothing.
func (s *Store) pick() (*itemQueue, *queuedChange, *pb.Change, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	l, wait := s.oldest(now)
	if l == nil {
		return nil, nil, nil, wait
	}
	if s.degraded {
		if s.inFlight >= maxProbes {
			return nil, nil, nil, maxRetry
		}
		if wait := s.probeAt.Sub(now); wait > 0 {
			return nil, nil, nil, wait
		}
		s.probeAt = now.Add(s.cfg.Retry)
	}
	e := l.next()
	s.inFlight++
	return l, e, s.take(l, e), 0
}

// oldest returns the lane whose turn it is, or how long there is none.
func (s *Store) oldest(now time.Time) (*itemQueue, time.Duration) {
	var l *itemQueue
	wait := maxRetry
	if s.retrying.Len() > 0 {
		if wait = s.retrying.queues[0].retryAt.Sub(now); wait <= 0 {
			l = s.retrying.queues[0]
		}
	}
	if s.ready.Len() > 0 && (l == nil || s.ready.queues[0].first < l.first) {
		l = s.ready.queues[0]
	}
	if l == nil && s.degraded && s.retrying.Len() > 0 { // nothing is acknowledged: when is that over?
		l = s.retrying.queues[0]
	}
	return l, wait
}

// settleOrphans looks into mutations that others left, and has the outbox note what it could not.
func (s *Store) maintain(ctx context.Context) error {
	var looks, notes streak
	for ctx.Err() == nil {
		failed := append(s.resolveOrphans(ctx), nil)
		noted := s.retryDone()
		if err := s.cfg.Outbox.Stats().Err; err != nil {
			return fmt.Errorf("emit to %s/%s: %w", s.cfg.Account, s.cfg.Store, err)
		}
		if looks.add(ctx, failed[0]) {
			s.log.Warn("cannot find out what came of mutations; they are looked into later",
				"items", len(failed)-1, "failures", looks, "err", failed[0])
		}
		if notes.add(ctx, noted) {
			s.log.Warn("outbox cannot forget what was published; it is tried later", "failures", notes, "err", noted)
		}
		wait := s.cfg.Retry
		if looks > 0 {
			wait = s.backoff(int(looks))
		}
		_ = retry.Sleep(ctx, wait) // the loop's condition says that ctx has ended
	}
	return nil
}

// A streak is how often something has failed in a row.
type streak int

// add counts a try, unless ctx has ended, and reports whether its error is to be logged.
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
