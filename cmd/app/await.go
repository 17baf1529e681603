package app

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// awaitPoll is the least time between two looks at what is waited for, and awaitMost the longest. In between, a look
	// is followed by a pause of awaitShare times as long.
	minPollInterval    = 250 * time.Millisecond
	maxPollInterval    = 5 * time.Second
	pollIntervalFactor = 4
	// standstillLimit bounds the question why nothing moves.
	standstillTimeout = 5 * time.Second
)

// Progress is how much of something is done.
type Progress struct{ Done, Total int64 }

// A Look returns how much is on record now.
type Look func(context.Context) (Progress, error)

// A Wait waits until something that roles do is on record.
type Wait struct {
	// Look is made again and again, also if it fails. It may take lookLimit.
	Look Look
	// Stalled is called each time that nothing has changed for Patience, with the last progress and the error of the
	// last look, which is nil if it succeeded. An error that it returns ends the wait.
	Stalled  func(context.Context, Progress, error) error
	Patience time.Duration
}

// Until returns nil when a look has found all of it done, and an error when ctx is done or Stalled returns one.
func (w Wait) Until(ctx context.Context) error {
	last, since := Progress{Done: -1}, time.Now()
	for {
		begun := time.Now()
		now, err := w.look(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil && now.Done >= now.Total {
			return nil
		}
		if err == nil && now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) >= w.Patience {
			if err := w.Stalled(ctx, last, err); err != nil {
				return err
			}
			since = time.Now()
		}
		if err := retry.Sleep(ctx, min(max(minPollInterval, pollIntervalFactor*time.Since(begun)), maxPollInterval)); err != nil {
			return err
		}
	}
}

func (w Wait) look(ctx context.Context) (Progress, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return w.Look(ctx)
}

// RunWhile runs roles, and the parts beside them, until do returns, and then stops them. The first failure of any of
// them ends all. The context of do ends when another fails.
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

// A Standstill is why roles may do nothing.
type Standstill struct {
	Unserved []schemas.Role // roles that no process runs
	Paused   []Piece        // pauses that concern the roles
}

// Standstill looks for why roles may do nothing.
func (a *App) Standstill(ctx context.Context, roles ...schemas.Role) (s Standstill, err error) {
	ctx, cancel := context.WithTimeout(ctx, standstillTimeout)
	defer cancel()
	if s.Unserved, err = a.admin.Unserved(ctx, roles...); err != nil {
		return s, err
	}
	if i := slices.Index(s.Unserved, schemas.RoleState); i >= 0 {
		s.Unserved[i] = schemas.RoleSink // which a process runs by this name
		slices.Sort(s.Unserved)
		s.Unserved = slices.Compact(s.Unserved)
	}
	err = a.withControls(ctx, func(_ context.Context, k *kafka.Controls) error {
		for _, c := range k.InForce() {
			if p := PieceOf(c); c.GetPaused() && concerns(p, roles) {
				s.Paused = append(s.Paused, p)
			}
		}
		return nil
	})
	return s, err
}

// concerns reports whether a pause of p stops one of roles, or part of what it does.
func concerns(p Piece, roles []schemas.Role) bool {
	if p.Sweep != "" {
		return false
	}
	for _, r := range roles {
		if p.Role == "" || p.Role == r {
			return true
		}
	}
	return false
}

// Handled returns a look that counts how many of the records that the topics of roles hold at the time of the first
// look their groups have committed: a handled record has become outputs, waits in a delay lane, or is a dead letter.
func (a *App) Handled(roles ...schemas.Role) Look {
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
