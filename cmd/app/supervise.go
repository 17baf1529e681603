package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// A part is a long-running component of the process. run blocks until ctx is done and then returns
// nil. Any other return is a failure of the process.
type part struct {
	name string
	run  func(ctx context.Context) error
}

var errStopped = errors.New("ended before the process was stopped")

// supervise runs all parts until ctx is done or one of them fails. It then stops the others and
// waits for at most grace. It returns the first failure, or nil if ctx was done first and all parts
// stopped in time. If parts are still running after grace, the error names them.
func supervise(ctx context.Context, log *slog.Logger, grace time.Duration, parts ...part) error {
	var (
		mu      sync.Mutex // guards running
		running = map[string]bool{}
	)
	mark := func(name string, up bool) {
		mu.Lock()
		defer mu.Unlock()
		if up {
			running[name] = true
		} else {
			delete(running, name)
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, p := range parts {
		mark(p.name, true)
		g.Go(func() error {
			defer mark(p.name, false)
			log.Debug("start", "part", p.name)
			err := p.run(gctx)
			switch {
			case gctx.Err() == nil && err == nil:
				err = errStopped
			case gctx.Err() != nil && errors.Is(err, context.Canceled):
				err = nil
			}
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			log.Debug("stop", "part", p.name)
			return nil
		})
	}
	done := make(chan error, 1)
	go func() { done <- g.Wait() }()
	<-gctx.Done() // the caller, the first failure, or the return of the last part
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		mu.Lock()
		defer mu.Unlock()
		names := slices.Sorted(maps.Keys(running))
		late := fmt.Errorf("not stopped after %v: %s", grace, strings.Join(names, ", "))
		if cause := context.Cause(gctx); ctx.Err() == nil {
			return errors.Join(cause, late)
		}
		return late
	}
}
