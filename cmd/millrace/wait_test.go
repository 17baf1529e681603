package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/schemas"
)

// notices returns the text lines of a waiter's output.
func notices(out *bytes.Buffer) (lines []string) {
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "{") {
			lines = append(lines, line)
		}
	}
	return lines
}

// After 10 s without progress, and not before, a command prints each reason once, and continues to
// wait.
func TestWaiterReportsAStandstill(t *testing.T) {
	asked := []schemas.Role{schemas.RoleChecker, schemas.RoleSink}
	const waits = "waiting for checks: 1 of 2 are recorded, without progress for 10s; "
	for name, tt := range map[string]struct {
		flags engineFlags
		why   app.Standstill
		err   error // of the question why
		look  error
		want  string
	}{
		"no role runs": {
			flags: engineFlags{config: "m.yaml"}, why: app.Standstill{Unserved: asked},
			want: waits + "no process runs checker,sink: start 'millrace run --config m.yaml --roles checker,sink'\n",
		},
		"no role runs in this process": {
			flags: engineFlags{state: "s"}, why: app.Standstill{Unserved: asked[:1]},
			want: waits + "no process runs checker\n",
		},
		"one is paused": {
			flags: engineFlags{config: "m.yaml"}, why: app.Standstill{Paused: []app.Scope{{Role: schemas.RoleChecker}}},
			want: waits + "paused: role checker ('millrace resume role checker' ends it)\n",
		},
		"an account is inactive": {
			flags: engineFlags{config: "m.yaml"}, why: app.Standstill{Inactive: []string{"acme"}},
			want: waits + "account acme is inactive, and its work waits ('millrace account set' with active: true ends it)\n",
		},
		"all run": {
			flags: engineFlags{config: "m.yaml"},
			want:  waits + "checker,sink run: see their log, and 'millrace dead list' for messages that failed\n",
		},
		"ClickHouse is unavailable": {
			flags: engineFlags{config: "m.yaml"}, look: errors.New("no answer"),
			want: waits + "the last read failed: no answer\n",
		},
		"Kafka is unavailable": {
			flags: engineFlags{config: "m.yaml"}, err: errors.New("no broker"),
			want: waits + "read from Kafka which roles run: no broker\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				begun, first := time.Now(), time.Duration(0)
				w := &waiter{flags: tt.flags, display: progress.New(&out)}
				w.standstill = func(context.Context, ...schemas.Role) (app.Standstill, error) {
					if first == 0 {
						first = time.Since(begun)
					}
					return tt.why, tt.err
				}
				err := w.until(t.Context(), "checks", asked, func(context.Context) (app.Progress, error) {
					switch since := time.Since(begun); {
					case since > time.Minute:
						return app.Progress{Done: 2, Total: 2}, nil
					case since > 0 && tt.look != nil:
						return app.Progress{}, tt.look
					}
					return app.Progress{Done: 1, Total: 2}, nil
				})
				if err != nil || first < stallTimeout || first > stallTimeout+time.Second {
					t.Errorf("returned %v; the first report came after %v, want %v", err, first, stallTimeout)
				}
				if got := notices(&out); len(got) != 1 || got[0] != tt.want {
					t.Errorf("printed %q, want %q", got, tt.want)
				}
				if !strings.Contains(out.String(), `"step":"checks","done":2,"total":2`) {
					t.Errorf("the progress is not shown to the end: %s", out.String())
				}
			})
		})
	}
}

// A changed reason is printed too.
func TestWaiterReportsAnotherReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		begun := time.Now()
		w := &waiter{flags: engineFlags{config: "m.yaml"}, display: progress.New(&out),
			standstill: func(context.Context, ...schemas.Role) (s app.Standstill, err error) {
				if time.Since(begun) < 25*time.Second {
					s.Unserved = []schemas.Role{schemas.RoleSteward}
				}
				return s, nil
			}}
		steward := []schemas.Role{schemas.RoleSteward}
		err := w.until(t.Context(), "repairs", steward, func(context.Context) (app.Progress, error) {
			return app.Progress{Done: int64(time.Since(begun) / time.Minute), Total: 1}, nil
		})
		got := notices(&out)
		if err != nil || len(got) != 2 || !strings.Contains(got[0], "no process runs steward") ||
			!strings.Contains(got[1], "steward run:") {
			t.Errorf("%v, printed %q, want that steward does not run, and then that it does", err, got)
		}
	})
}

// A sweep that waits for checkers reports a standstill too, and ends when it is done or fails.
func TestWaiterWhilePublishing(t *testing.T) {
	for name, want := range map[string]error{"done": nil, "failed": errors.New("broken")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				w := &waiter{flags: engineFlags{config: "m.yaml"}, display: progress.New(&out),
					standstill: func(context.Context, ...schemas.Role) (app.Standstill, error) {
						return app.Standstill{Unserved: []schemas.Role{schemas.RoleChecker}}, nil
					}}
				checker, published := []schemas.Role{schemas.RoleChecker}, func() int64 { return 10_000 }
				err := w.waitWhile(t.Context(), "checks", checker, published, func(context.Context) error {
					time.Sleep(35 * time.Second)
					return want
				})
				got := notices(&out)
				const notice = "requesting checks: 10000 so far, without progress for 10s; no process runs checker:"
				if !errors.Is(err, want) || len(got) != 1 || !strings.HasPrefix(got[0], notice) {
					t.Errorf("returned %v, printed %q", err, got)
				}
			})
		})
	}
}

// An interrupted command prints the remaining work, and when it will be done.
func TestWaiterIsInterrupted(t *testing.T) {
	nothing := func(context.Context) (app.Progress, error) { return app.Progress{Done: 3, Total: 7}, nil }
	wait := func(ctx context.Context, w *waiter) error { return w.until(ctx, "checks", nil, nothing) }
	for name, tt := range map[string]struct {
		flags engineFlags
		do    func(context.Context, *waiter) error
		want  string
	}{
		"running roles": {
			engineFlags{config: "m.yaml"}, wait, "stopped: 3 of 7 checks are recorded; running roles continue with the rest\n",
		},
		"roles here": {
			engineFlags{state: "s"}, wait,
			"stopped: 3 of 7 checks are recorded; the rest is done when 'millrace standalone --state s' runs\n",
		},
		"publishing": {
			engineFlags{state: "s"}, func(ctx context.Context, w *waiter) error {
				return w.waitWhile(ctx, "checks", nil, func() int64 { return 5 }, func(ctx context.Context) error {
					<-ctx.Done()
					return context.Cause(ctx)
				})
			},
			"stopped: 5 checks are requested; the same command continues with the rest\n",
		},
		"nothing was waited for": {
			engineFlags{state: "s"}, func(ctx context.Context, _ *waiter) error { <-ctx.Done(); return context.Cause(ctx) }, "",
		},
		"all was done": {engineFlags{}, func(ctx context.Context, w *waiter) error {
			err := w.until(ctx, "checks", nil, func(context.Context) (app.Progress, error) { return app.Progress{}, nil })
			<-ctx.Done() // while the roles stop
			return err
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var out bytes.Buffer
				c := new(cobra.Command)
				c.SetContext(ctx)
				c.SetErr(&out)
				e := &engines{display: progress.New(io.Discard)}
				err := e.withRoles(c, new(app.App), tt.flags, nil, tt.do)
				if out.String() != tt.want {
					t.Errorf("returned %v and printed %q, want %q", err, out.String(), tt.want)
				}
			})
		})
	}
}
