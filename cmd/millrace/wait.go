package main

import (
	"cmp"
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

// stallTimeout is the time without progress after which a waiting command prints the reasons.
const stallTimeout = 10 * time.Second

// A waiter waits for the work of roles: in this process with --state, in other processes with
// --config.
type waiter struct {
	flags engineFlags
	// standstill returns reasons why roles make no progress.
	standstill func(context.Context, ...schemas.Role) (app.Standstill, error)
	display    *progress.Display
	again      string // what becomes of the rest after an interruption of waitWhile [the same command continues with it]

	remaining func() string // describes the remaining work; nil: not waiting yet
}

// withRoles calls do; with --state it runs roles meanwhile and stops them when do returns. If do is
// interrupted, it prints the remaining work.
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

// waitHandled waits until roles have handled the present records of their topics, and ClickHouse
// has the results.
func (e *engines) waitHandled(c *cobra.Command, f engineFlags, roles ...schemas.Role) (err error) {
	a, err := e.openApp(c.Context())
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

// laterWithState returns a sentence saying that work is done when the roles run with the state.
func (f *engineFlags) laterWithState(what string) string {
	return fmt.Sprintf("%s when 'millrace standalone --state %s' runs", what, f.state)
}

// interrupted prints the remaining work of an interrupted command.
func (w *waiter) interrupted(stderr io.Writer) {
	if w.remaining != nil {
		fmt.Fprintln(stderr, "stopped:", w.remaining())
	}
}

// until waits until look reports that all work is recorded, and shows the progress. what is a
// plural noun. roles do the work; they are named if there is no progress.
func (w *waiter) until(ctx context.Context, what string, roles []schemas.Role, look app.ProgressFunc) error {
	var last app.Progress
	w.remaining = func() string {
		how := "running roles continue with the rest"
		if w.flags.state != "" {
			how = w.flags.laterWithState("the rest is done")
		}
		return fmt.Sprintf("%d of %d %s are recorded; %s", last.Done, last.Total, what, how)
	}
	var step *progress.Step
	err := app.Wait{
		Progress: func(ctx context.Context) (app.Progress, error) {
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
		StallTimeout: stallTimeout,
		Stalled: w.stalled(roles, func(last app.Progress) string {
			return fmt.Sprintf("waiting for %s: %d of %d are recorded", what, max(last.Done, 0), last.Total)
		}),
	}.Until(ctx)
	if step != nil {
		step.End(err == nil)
	}
	return err
}

// waitWhile calls do, which publishes messages and may wait until roles have handled some. It
// reports if the number of messages, which published returns, does not change.
func (w *waiter) waitWhile(ctx context.Context, what string, roles []schemas.Role, published func() int64,
	do func(context.Context) error) error {
	w.remaining = func() string {
		return fmt.Sprintf("%d %s are requested; %s", published(), what,
			cmp.Or(w.again, "the same command continues with the rest"))
	}
	var done atomic.Bool
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer done.Store(true)
		return do(gctx)
	})
	g.Go(func() error {
		return app.Wait{
			Progress: func(context.Context) (app.Progress, error) {
				p := app.Progress{Done: published(), Total: math.MaxInt64}
				if done.Load() {
					p.Total = p.Done
				}
				return p, nil
			},
			StallTimeout: stallTimeout,
			Stalled: w.stalled(roles, func(last app.Progress) string {
				return fmt.Sprintf("requesting %s: %d so far", what, last.Done)
			}),
		}.Until(gctx)
	})
	return g.Wait()
}

// stalled returns the function that app.Wait calls without progress: it prints the progress and the
// reasons, unless it has just printed the same.
func (w *waiter) stalled(roles []schemas.Role, state func(app.Progress) string) func(context.Context, app.Progress,
	error) error {
	printed := ""
	return func(ctx context.Context, last app.Progress, pollErr error) error {
		text := fmt.Sprintf("%s, without progress for %v; %s", state(last), stallTimeout,
			w.stallReasons(ctx, roles, pollErr))
		if text != printed && ctx.Err() == nil {
			printed = text
			fmt.Fprintln(w.display, text)
		}
		return nil
	}
}

// stallReasons returns the reasons why roles make no progress, and the remedies. pollErr is the
// error of the last poll.
func (w *waiter) stallReasons(ctx context.Context, roles []schemas.Role, pollErr error) string {
	s, err := w.standstill(ctx, roles...)
	if err != nil {
		return fmt.Sprintf("read from Kafka which roles run: %v", err)
	}
	var reasons []string
	if pollErr != nil {
		reasons = append(reasons, fmt.Sprintf("the last read failed: %v", pollErr))
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
	for _, account := range s.Inactive {
		reasons = append(reasons, fmt.Sprintf(
			"account %s is inactive, and its work waits ('millrace account set' with active: true ends it)", account))
	}
	if len(reasons) == 0 {
		reasons = append(reasons, join(roles)+" run: see their log, and 'millrace dead list' for messages that failed")
	}
	return strings.Join(reasons, "; ")
}

// join returns the names of roles as --roles takes them.
func join(roles []schemas.Role) string { return strings.Join(words(roles), ",") }
