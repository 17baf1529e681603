package limit

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/streams/retry"
)

// probeInterval bounds a probe of Watch. It is also the wait after a probe of a store that is half-open because
// of hung streams.
const probeInterval = 10 * time.Second

// Watch probes the store until it is in use and its breaker is closed, and then whenever the breaker opens,
// until ctx is done. So a store is found to be available again without a message for it, and the tasks that
// wait for it continue when they are due. inUse reports whether the store was opened. At most one Watch of a
// store runs at a time.
func (s *Store) Watch(ctx context.Context, inUse func() bool) {
	for {
		for s.breaker.state() != Closed || !inUse() {
			if retry.Sleep(ctx, s.probe(ctx)) != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.breaker.opened:
		}
	}
}

// probe reads the marker if the breaker admits it, and returns the wait before the next probe. After hung streams, a
// store answers probes and stays half-open until a stream of a task succeeds.
func (s *Store) probe(run context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(run, probeInterval)
	defer cancel()
	const least = 100 * time.Millisecond
	var open *OpenError
	err := s.Marker(ctx)
	switch {
	case errors.As(err, &open):
		return max(time.Until(open.Until), least)
	case s.breaker.state() == HalfOpen:
		return probeInterval
	}
	return least
}
