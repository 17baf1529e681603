package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/schemas"
)

// patience is how long nothing may change before a command that waits reports why.
const patience = 10 * time.Second

// A waiter waits for work that roles do: in this process with --state, in running ones with --config.
type waiter struct {
	flags engineFlags
	// standstill returns why roles may do nothing.
	standstill func(context.Context, ...schemas.Role) (app.Standstill, error)
	display    *progress.Display

	remaining func() string // of what is waited for, and when it is done; nil: nothing yet
}

// withRoles runs do, and with --state roles beside it, which stop when do returns. If do is interrupted, it reports what
// do waited for.
func (e *engines) withRoles(c *cobra.Command, a *app.App, f engineFlags, roles []schemas.Role,
	do func(ctx context.Context, w *waiter) error) error {
	ctx := c.Context()
	w := &waiter{flags: f, standstill: a.Standstill, display: e.display}
	var err error
	if e.state == nil {
		err = do(ctx, w)
	} else {
		err = a.RunWhile(ctx, roles, func(ctx context.Context) error { return do(ctx, w) }, e.state.Watch)
	}
	w.display.Close()
	if err != nil && ctx.Err() != nil {
		w.interrupted(c.ErrOrStderr())
	}
	return err
}

// handled waits until roles have handled what their topics hold now, and what came of that is on record.
func (e *engines) waitHandled(c *cobra.Command, f engineFlags, roles ...schemas.Role) (err error) {
	a, err := app.Open(c.Context(), e.cfg, app.Options{Log: e.log, Drain: app.QuickDrain})
	if err != nil {
		return err
	}
	defer a.Close()
	return e.withRoles(c, a, f, app.Roles(), func(ctx context.Context, w *waiter) error {
		if err := w.until(ctx, "messages of "+join(roles), roles, a.Handled(roles...)); err != nil {
			return err
		}
		return w.until(ctx, "messages", []schemas.Role{schemas.RoleSink}, a.Handled(schemas.RoleSink, schemas.RoleState))
	})
}

// later says when roles go on with a state.
func (f *engineFlags) laterWithState(what string) string {
	return fmt.Sprintf("%s when 'millrace standalone --state %s' runs", what, f.state)
}

// interrupted reports what is left when the command is interrupted.
func (w *waiter) interrupted(stderr io.Writer) {
	if w.remaining != nil {
		fmt.Fprintln(stderr, "stopped:", w.remaining())
	}
}

// until waits until all of what look counts is on record, and shows how far it is. what is a plural noun; roles do the
// work, and are named if nothing changes.
func (w *waiter) until(ctx context.Context, what string, roles []schemas.Role, look app.Look) error {
	var last app.Progress
	w.remaining = func() string {
		how := "running roles go on with the rest"
		if w.flags.state != "" {
			how = w.flags.laterWithState("the rest is done")
		}
		return fmt.Sprintf("%d of %d %s are on record; %s", last.Done, last.Total, what, how)
	}
	var step *progress.Step
	err := app.Wait{
		Look: func(ctx context.Context) (app.Progress, error) {
			now, err := look(ctx)
			if err != nil {
				return now, err
			}
			if last = now; step == nil {
				step = w.display.Step(what, now.Total)
			}
			step.Set(now.Done)
			return now, nil
		},
		Patience: patience,
		Stalled: w.stalled(roles, func(last app.Progress) string {
			return fmt.Sprintf("waiting for %s: %d of %d are on record", what, max(last.Done, 0), last.Total)
		}),
	}.Until(ctx)
	if step != nil {
		step.End(err == nil)
	}
	return err
}

// while runs do, which publishes messages and may wait until roles have handled some of them. It reports if their
// number, which published returns, does not change.
func (w *waiter) waitWhile(ctx context.Context, what string, roles []schemas.Role, published func() int64,
	do func(context.Context) error) error {
	w.remaining = func() string {
		return fmt.Sprintf("%d %s are asked for; the same command goes on with the rest", published(), what)
	}
	var done atomic.Bool
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer done.Store(true)
		return do(gctx)
	})
	g.Go(func() error {
		return app.Wait{
			Look: func(context.Context) (app.Progress, error) {
				p := app.Progress{Done: published(), Total: math.MaxInt64}
				if done.Load() {
					p.Total = p.Done
				}
				return p, nil
			},
			Patience: patience,
			Stalled: w.stalled(roles, func(last app.Progress) string {
				return fmt.Sprintf("asking for %s: %d so far", what, last.Done)
			}),
		}.Until(gctx)
	})
	return g.Wait()
}

// stalled returns what app.Wait calls when nothing has changed for a while: it prints how far the work is and why it
// may not go on, unless that has been printed before.
func (w *waiter) stalled(roles []schemas.Role, state func(app.Progress) string) func(context.Context, app.Progress,
	error) error {
	said := ""
	return func(ctx context.Context, last app.Progress, look error) error {
		text := fmt.Sprintf("%s, and nothing has changed for %v; %s", state(last), patience, w.why(ctx, roles, look))
		if text != said && ctx.Err() == nil {
			said = text
			fmt.Fprintln(w.display, text)
		}
		return nil
	}
}

// why returns why roles may do nothing, and what a person can do about it; look is the error of the last look.
func (w *waiter) why(ctx context.Context, roles []schemas.Role, look error) string {
	s, err := w.standstill(ctx, roles...)
	if err != nil {
		return fmt.Sprintf("Kafka does not say which roles run: %v", err)
	}
	var reasons []string
	if look != nil {
		reasons = append(reasons, fmt.Sprintf("the last look failed: %v", look))
	}
	if len(s.Unserved) > 0 {
		names := join(s.Unserved)
		reason := "no process runs " + names
		if w.flags.state == "" {
			reason += fmt.Sprintf(": start 'millrace run --config %s --roles %s'", w.flags.config, names)
		}
		reasons = append(reasons, reason)
	}
	for _, p := range s.Paused {
		reasons = append(reasons, fmt.Sprintf("paused: %s ('millrace resume %s' ends it)", p, p))
	}
	if len(reasons) == 0 {
		reasons = append(reasons, join(roles)+" run: their log says what they do, and 'millrace dead list' what they could not handle, if anything")
	}
	return strings.Join(reasons, "; ")
}

// join returns the names of roles as --roles takes them.
func join(roles []schemas.Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return strings.Join(names, ",")
}
