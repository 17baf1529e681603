package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// minPollInterval and maxPollInterval bound the pause between two polls. Within them the pause is
	// pollIntervalFactor times as long as the last poll took.
	minPollInterval    = 250 * time.Millisecond
	maxPollInterval    = 5 * time.Second
	pollIntervalFactor = 4
	// requestTimeout bounds one call of Look, and other single queries.
	requestTimeout = 10 * time.Second
	// standstillTimeout bounds one call of Standstill.
	standstillTimeout = 5 * time.Second
)

// Progress is the amount of work done, of a total.
type Progress struct{ Done, Total int64 }

// A ProgressFunc returns the present progress.
type ProgressFunc func(context.Context) (Progress, error)

// A Wait polls until the work of roles is recorded.
type Wait struct {
	// Progress is called repeatedly, also after an error. A call may take requestTimeout.
	Progress ProgressFunc
	// Stalled is called whenever the progress has not changed for StallTimeout. Its arguments are the last
	// progress, and the error of the last Progress, which may be nil. An error from Stalled ends the wait.
	Stalled      func(context.Context, Progress, error) error
	StallTimeout time.Duration
}

// Until returns nil when all work is done. It returns an error when ctx is done, Stalled returns one,
// or the login lacks a right in Kafka.
func (w Wait) Until(ctx context.Context) error {
	last, since := Progress{Done: -1}, time.Now()
	for {
		begun := time.Now()
		now, err := w.look(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, client.ErrAccess) { // it would be refused again
			return err
		}
		if err == nil && now.Done >= now.Total {
			return nil
		}
		if err == nil && now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) >= w.StallTimeout {
			if err := w.Stalled(ctx, last, err); err != nil {
				return err
			}
			since = time.Now()
		}
		pause := min(max(minPollInterval, pollIntervalFactor*time.Since(begun)), maxPollInterval)
		if err := retry.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func (w Wait) look(ctx context.Context) (Progress, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return w.Progress(ctx)
}

// RunWhile runs roles, and the functions beside, until do returns, and then stops them. The first
// failure ends all of them: the context of do is cancelled.
func (a *App) RunWhile(ctx context.Context, roles []schemas.Role, do func(context.Context) error,
	beside ...func(context.Context) error) error {
	g, gctx := errgroup.WithContext(ctx)
	rctx, stop := context.WithCancel(gctx)
	g.Go(func() error { return a.Run(rctx, roles) })
	for _, part := range beside {
		g.Go(func() error { return part(rctx) })
	}
	g.Go(func() error {
		defer stop()
		return do(rctx)
	})
	return g.Wait()
}

// A Standstill lists reasons why roles make no progress.
type Standstill struct {
	Unserved []schemas.Role // roles that no process runs
	Paused   []Scope        // pauses that affect the roles
	Inactive []string       // accounts whose work waits
}

// Standstill returns the roles that no process runs, the pauses that affect roles, and the inactive accounts.
func (a *App) Standstill(ctx context.Context, roles ...schemas.Role) (s Standstill, err error) {
	ctx, cancel := context.WithTimeout(ctx, standstillTimeout)
	defer cancel()
	if s.Unserved, err = a.admin.Unserved(ctx, roles...); err != nil {
		return s, err
	}
	if i := slices.Index(s.Unserved, schemas.RoleState); i >= 0 {
		s.Unserved[i] = schemas.RoleSink // --roles sink runs both
		slices.Sort(s.Unserved)
		s.Unserved = slices.Compact(s.Unserved)
	}
	s.Inactive = a.stores.inactive()
	err = a.withControls(ctx, func(_ context.Context, k *client.Controls) error {
		for _, c := range k.Active() {
			if p := ScopeOf(c); c.GetPaused() && concerns(p, roles) {
				s.Paused = append(s.Paused, p)
			}
		}
		return nil
	})
	return s, err
}

// concerns reports whether a pause of p stops one of roles, entirely or for some stores.
func concerns(p Scope, roles []schemas.Role) bool {
	return p.Sweep == "" && slices.ContainsFunc(roles, func(r schemas.Role) bool { return p.Role == "" || p.Role == r })
}

// Handled returns a ProgressFunc that counts the records of the topics of roles. The total is the number of
// uncommitted records at the first call; records that the groups commit are done. A committed
// record has become outputs, waits in a delay lane, or is a dead letter.
func (a *App) Handled(roles ...schemas.Role) ProgressFunc {
	var (
		left  func(context.Context) (int64, error)
		total int64
	)
	return func(ctx context.Context) (p Progress, err error) {
		if left == nil {
			if left, err = a.admin.Outstanding(ctx, roles...); err != nil {
				return p, err
			}
		}
		n, err := left(ctx)
		if err != nil {
			return p, err
		}
		total = max(total, n)
		return Progress{Done: total - n, Total: total}, nil
	}
}
