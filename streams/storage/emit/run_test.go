package emit

import (
	"context"
	"runtime"
	"testing"
)

func benchProcs() int { return runtime.GOMAXPROCS(0) }

// running has s.Run run until stop is called, or the test ends.
func running(t testing.TB, s *Store) (ran <-chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ch := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		close(started)
		ch <- s.Run(ctx)
	}()
	<-started
	return ch, cancel
}
