package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/lazy"
	"github.com/millrace/millrace/streams/storage/limit"
)

const (
	storeMonitorEvery = time.Minute
	// storeUnavailableAfter is how long a store has not answered when its incident opens.
	storeUnavailableAfter = 5 * time.Minute
	storeAnswerTimeout    = 10 * time.Second
)

var errNoAnswer = fmt.Errorf("no answer within %v", storeAnswerTimeout)

// A storeMonitor opens one incident of each store that does not answer, and closes it when it does. Checks of its
// copies conclude nothing meanwhile, so that these have no incidents.
type storeMonitor struct {
	app *App
	// silent has the stores that have not answered the last time, and since when they have not. Only check uses it.
	silent map[StoreName]time.Time
	calls  storeCalls
}

func newStoreMonitor(a *App) *storeMonitor {
	current := func(n StoreName) *lazy.Store { return a.stores.of(n).lazy }
	return &storeMonitor{app: a, calls: storeCalls{usable: a.stores.usable, current: current}}
}

// run checks the stores until ctx is done. One of the processes does it: what another one cannot reach is in its own
// log, metrics and /readyz.
func (m *storeMonitor) run(ctx context.Context, owns func(sweep, split string) bool) error {
	for ctx.Err() == nil {
		if !owns("monitor", "stores") {
			m.silent = nil
		} else if err := m.check(ctx, time.Now()); err != nil && ctx.Err() == nil {
			m.app.log.Warn("update incidents of stores", "err", err, "retry_after", storeMonitorEvery)
		}
		_ = retry.Sleep(ctx, storeMonitorEvery) // only ctx ends it early
	}
	return nil
}

// check asks all stores, and opens and closes incidents.
func (m *storeMonitor) check(ctx context.Context, now time.Time) error {
	names := m.app.stores.storeNames()
	answers := m.calls.ask(ctx, names)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	board, silent := m.app.incidentBoard, map[StoreName]time.Time{}
	var errs []error
	for n, name := range names {
		about := incident.Subject{Account: name.Account, Store: name.Store, Kind: incident.StoreUnavailable}
		if answers[n] == nil {
			errs = append(errs, board.Close(ctx, about, "the store answers"))
			continue
		}
		since := now
		if at, ok := m.silent[name]; ok {
			since = at
		}
		if st, ok := m.app.stores.configured(name); ok == nil {
			if state, at, _ := st.breaker.State(); state != limit.Closed && at.Before(since) {
				since = at
			}
		}
		silent[name] = since
		if now.Sub(since) < storeUnavailableAfter || board.IsOpen(about) {
			continue
		}
		why := answers[n]
		if open := (*limit.OpenError)(nil); errors.As(why, &open) {
			why = open.Cause
		}
		errs = append(errs, board.Open(ctx, about, fmt.Sprintf("unavailable since %s: %v: %s",
			since.UTC().Format(time.RFC3339), why, m.app.stores.remedyFor(name, why))))
	}
	m.silent = silent
	for _, about := range board.OpenOf(incident.StoreUnavailable) {
		if !slices.Contains(names, StoreName{about.Account, about.Store}) {
			errs = append(errs, board.Close(ctx, about, "the account has no such store"))
		}
	}
	return errors.Join(errs...)
}

// usable reads the marker of a store, and returns why tasks cannot use the store; nil if they can.
func (s *Stores) usable(ctx context.Context, name StoreName) error {
	st, err := s.configured(name)
	if err != nil {
		return err
	}
	if err := st.Marker(ctx); err != nil {
		return err
	}
	if state, _, cause := st.breaker.State(); state != limit.Closed { // after streams that hang
		return fmt.Errorf("it answers, but tasks fail: %w", cause)
	}
	return nil
}
