package brake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/streams/retry"
)

const (
	// countInterval is how often Run counts the permits that were given ahead of their count.
	countInterval = time.Second
	// maxOwed is how long a permit may stay uncounted. After that a space gets no further one ahead of the count.
	maxOwed = 2 * time.Second
	// counters is the number of spaces that are counted at a time.
	counters = 32
)

// Run counts once a second the permits that this process gives, until ctx is done. While it runs, a permit within the
// limits costs no write: it is counted after it was given. So processes that are killed, or work beside each other, may
// pass a limit by what they do in a second, or in maxOwed while the checkpoint cannot be written; after that they stop.
func (b *Brake) Run(ctx context.Context) error {
	b.counts.Store(true)
	defer b.counts.Store(false)
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

// countAll counts what is owed in all spaces and stores.
func (b *Brake) countAll(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(counters)
	b.mu.Lock()
	all := slices.Collect(maps.Values(b.spaces))
	b.mu.Unlock()
	for _, s := range all {
		s.mu.Lock()
		owed := s.owed
		s.mu.Unlock()
		if owed <= 0 {
			continue
		}
		g.Go(func() error {
			select {
			case s.writing <- struct{}{}:
				defer func() { <-s.writing }()
				_, _ = b.count(ctx, s, false) // the next Take has the error, once the permits are owed for too long
			default: // a task counts what is owed with its own permit
			}
			return nil
		})
	}
	_ = g.Wait() // no error
}

// takeAhead takes a permit that is counted later, or was counted and given back, if the limits are known not to be
// reached. It reports whether there was one.
func (b *Brake) takeAhead(s *braked) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, ok := b.deps.Ledger.get(s.split) // before the lock it might lack what is owed no more
	if !ok {
		return false
	}
	if s.turn(b.slot()); s.owed < 0 {
		s.owed++
		return true
	}
	if !b.counts.Load() || b.isBehind(held) || held.liveIsOld(b.Kind(), s.of.Space == "", held.now()) ||
		s.owed > 0 && time.Since(s.owedSince) > maxOwed {
		return false
	}
	if left, _ := b.decide(s, held, held.now(), s.owed); left == 0 {
		return false
	}
	if s.owed == 0 {
		s.owedSince = time.Now()
	}
	s.owed++
	return true
}

// count counts what is owed in s, and one permit more for a caller that takes one if the limits allow it. Without it,
// reached is the limit that is reached. Only for a caller are the live copies counted again. It holds s.writing.
func (b *Brake) count(ctx context.Context, s *braked, take bool) (reached limit, err error) {
	var owed int64
	err = b.change(ctx, s, func(t *tally, now time.Time) (bool, error) {
		s.mu.Lock()
		owed = max(0, s.owed)
		s.mu.Unlock()
		if t.New = owed; !take {
			return owed > 0, nil
		}
		old := t.liveIsOld(b.Kind(), s.of.Space == "", now)
		if old {
			live, err := b.deps.Live(ctx, s.of)
			if err != nil {
				return false, retry.Unavailable(fmt.Errorf("count the copies of %s: %w", s.of, err))
			}
			now = t.now()
			t.Live, t.LiveAt = live+b.gone(t, now), now.Unix() // when the window of the hour began
		}
		var left int64
		if left, reached = b.decide(s, t, now, owed); left > 0 {
			t.New++
		}
		return old || t.New > 0, nil
	})
	if err == nil {
		s.mu.Lock()
		s.owed, s.owedSince = s.owed-owed, time.Now()
		s.mu.Unlock()
	}
	return reached, err
}
