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
const probes = 8

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
	g.Go(func() error { return s.settleOrphans(ctx) })
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
				s.flying--
				s.mu.Unlock()
				s.ring()
				return nil
			})
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-s.bell:
		case <-timer.C:
		}
	}
	return g.Wait()
}

// pick returns what is to be published now, or how long there is nothing.
func (s *Store) pick() (*lane, *entry, *pb.Change, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	l, wait := s.oldest(now)
	if l == nil {
		return nil, nil, nil, wait
	}
	if s.away {
		if s.flying >= probes {
			return nil, nil, nil, longestRetry
		}
		if wait := s.probeAt.Sub(now); wait > 0 {
			return nil, nil, nil, wait
		}
		s.probeAt = now.Add(s.cfg.Retry)
	}
	e := l.next()
	s.flying++
	return l, e, s.take(l, e), 0
}

// oldest returns the lane whose turn it is, or how long there is none.
func (s *Store) oldest(now time.Time) (*lane, time.Duration) {
	var l *lane
	wait := longestRetry
	if s.later.Len() > 0 {
		if wait = s.later.lanes[0].retryAt.Sub(now); wait <= 0 {
			l = s.later.lanes[0]
		}
	}
	if s.ready.Len() > 0 && (l == nil || s.ready.lanes[0].first < l.first) {
		l = s.ready.lanes[0]
	}
	if l == nil && s.away && s.later.Len() > 0 { // nothing is acknowledged: when is that over?
		l = s.later.lanes[0]
	}
	return l, wait
}

// settleOrphans looks into mutations that others left, and has the outbox note what it could not.
func (s *Store) settleOrphans(ctx context.Context) error {
	var looks, notes int // that failed, in a row
	for ctx.Err() == nil {
		failed := s.resolveOrphans(ctx)
		noted := s.finish()
		if err := s.cfg.Outbox.Stats().Err; err != nil {
			return fmt.Errorf("emit to %s/%s: %w", s.cfg.Account, s.cfg.Store, err)
		}
		if ctx.Err() != nil {
			break
		}
		looks, notes = counted(looks, len(failed) > 0), counted(notes, noted != nil)
		if looks > 0 && worthLogging(looks) {
			s.log.Warn("cannot find out what came of mutations; they are looked into later",
				"items", len(failed), "failures", looks, "err", failed[0])
		}
		if notes > 0 && worthLogging(notes) {
			s.log.Warn("outbox cannot forget what was published; it is tried later", "failures", notes, "err", noted)
		}
		wait := s.cfg.Retry
		if looks > 0 {
			wait = s.backoff(looks)
		}
		_ = retry.Sleep(ctx, wait) // the loop's condition says that ctx has ended
	}
	return nil
}

// counted returns how often something failed in a row.
func counted(n int, failed bool) int {
	if failed {
		return n + 1
	}
	return 0
}
