package brake

import (
	"context"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// countInterval is how often Run counts the permits that were given ahead of their count.
	countInterval = time.Second
	// maxOwed is how long a permit may stay uncounted. After that a space gets no further one ahead of the count.
	maxOwed = 2 * time.Second
	// counters is the number of spaces that are counted at a time.
	counters = 32
	// steady is the number of permits of a second from which as many are reserved for the next second.
	steady = 10
)

// Run counts once a second the permits that this process gives, until ctx is done. While it runs, a permit within the
// limits costs no write: it is counted after it was given. So processes that are killed, or work beside each other, may
// pass a limit by what they do in a second, or in maxOwed while the checkpoint cannot be written; after that they stop.
// A space that uses permits steadily has them reserved for the next second, so that a kill loses few counts.
func (b *Brake) Run(ctx context.Context) error {
	b.counts.Store(true)
	t := time.NewTicker(countInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			b.countAll(ctx)
		}
	}
}

// countAll counts what is owed in all spaces.
func (b *Brake) countAll(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(counters)
	b.mu.Lock()
	all := slices.Collect(maps.Values(b.spaces))
	b.mu.Unlock()
	for _, s := range all {
		s.mu.Lock()
		used := s.used
		idle := s.owed == 0 && used == 0 && s.left == 0
		s.used = 0
		s.mu.Unlock()
		if !idle {
			g.Go(func() error {
				b.count(ctx, s, used)
				return nil
			})
		}
	}
	_ = g.Wait() // no error: see count
}

// count counts what is owed in a space, and reserves as many permits as were used in the last second. An error is that
// of the next Take too, once the permits are owed for too long.
func (b *Brake) count(ctx context.Context, s *braked, used int64) {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	default:
		return // a task reserves, and counts what is owed with it
	}
	_, _ = b.reserve(ctx, s, 0, func(_ Limits, _, allowed int64) int64 {
		if used < steady {
			return 0
		}
		return min(used, allowed)
	})
}

// takeAhead takes a permit that is counted later, if the limits are known not to be reached.
func (b *Brake) takeAhead(s *braked) bool {
	held, ok := b.deps.Ledger.get(s.split)
	now := b.now()
	if !ok || !b.counts.Load() || b.liveIsOld(held, now) {
		return false
	}
	// takeReserved has seen no open list.
	allowed, _ := brake(held.usage(now, false), b.deps.Limits(s.of.Account, s.of.Space))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owed >= allowed || s.owed > 0 && now.Sub(s.owedSince) > maxOwed {
		return false
	}
	if s.owed == 0 {
		s.owedSince = now
	}
	s.owed++
	s.used++
	return true
}

// liveIsOld reports whether the live copies must be counted again. Few rewrites do not depend on them, so that these go
// on for a day while the records are unknown.
func (b *Brake) liveIsOld(t *tally, now time.Time) bool {
	if b.Kind() == Rewrites && now.Unix()-t.LiveAt < daySeconds && now.Unix() >= t.LiveAt {
		if u := t.usage(now, false); u.hour < free && u.month < monthFactor*free {
			return false
		}
	}
	return t.liveIsOld(now)
}
