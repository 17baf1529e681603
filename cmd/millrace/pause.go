package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A scopeArgs is a form of arguments that selects a part of the work.
type scopeArgs struct {
	use, short string
	parse      func(words []string) (app.Scope, error)
}

func scopes() []scopeArgs {
	return []scopeArgs{
		{"all", "everything", func([]string) (app.Scope, error) { return app.Scope{}, nil }},
		{"role NAME", "a role", func(w []string) (app.Scope, error) {
			return app.Scope{Role: schemas.Role(w[0])}, nil
		}},
		{"account NAME", "all work for an account", func(w []string) (app.Scope, error) {
			return app.Scope{Account: w[0]}, nil
		}},
		{"store ACCOUNT/STORE", "all reads and writes of a store", func(w []string) (app.Scope, error) {
			account, store, err := accountStore(w[0])
			return app.Scope{Account: account, Store: store}, err
		}},
		{"pair ROLE ACCOUNT[/STORE]", "a role, for an account or a store", func(w []string) (app.Scope, error) {
			p := app.Scope{Role: schemas.Role(w[0]), Account: w[1]}
			var err error
			if strings.Contains(w[1], "/") {
				p.Account, p.Store, err = accountStore(w[1])
			}
			return p, err
		}},
		sweepScope("sweep NAME"),
	}
}

// sweepScope is the form of arguments that selects a sweep.
func sweepScope(use string) scopeArgs {
	return scopeArgs{use, "a sweep; its published tasks continue", func(w []string) (app.Scope, error) {
		return app.Scope{Sweep: w[0]}, nil
	}}
}

// accountStore splits ACCOUNT/STORE.
func accountStore(word string) (account, store string, err error) {
	account, store, ok := strings.Cut(word, "/")
	if !ok || account == "" || store == "" {
		return "", "", fmt.Errorf("%w: %q is not ACCOUNT/STORE", usage.Err, word)
	}
	return account, store, nil
}

// command returns the command of a verb for this form of arguments.
func (p scopeArgs) command(verb string, do func(c *cobra.Command, p app.Scope) error) *cobra.Command {
	return &cobra.Command{
		Use: p.use, Short: verb + " " + p.short, Args: exactly(len(strings.Fields(p.use)) - 1),
		RunE: func(c *cobra.Command, words []string) error {
			named, err := p.parse(words)
			for _, w := range words {
				if w == "" {
					err = fmt.Errorf("%w: a name is empty", usage.Err)
				}
			}
			if err != nil {
				return err
			}
			return do(c, named)
		},
	}
}

func newPause() *cobra.Command {
	c := newPauseList("pause", "Pause a part of the work, or list the pauses")
	c.Long = `Pauses a part of the work in all processes within a second, until it is resumed or the time --until.
A pause survives restarts. Messages stay in Kafka; running tasks finish. Without arguments it lists the pauses.`
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(newPauseList("list", "List the pauses, and the roles with a set number of workers"))
	for _, p := range scopes() {
		c.AddCommand(newPauseOne(p))
	}
	return c
}

func newPauseOne(p scopeArgs) *cobra.Command {
	var (
		f             engineFlags
		reason, until string
	)
	c := p.command("Pause", func(c *cobra.Command, scope app.Scope) error {
		if reason == "" {
			return fmt.Errorf("%w: --reason is missing: 'millrace pause list' shows it", usage.Err)
		}
		end, err := untilTime(until, time.Now())
		if err != nil {
			return err
		}
		return f.withControls(c, func(ctx context.Context, ctl *app.Controls) error {
			if err := ctl.Pause(ctx, scope, end, app.Actor{Who: currentUser(), Reason: reason, From: "cli"}); err != nil {
				return err
			}
			how := "until it is resumed: millrace resume " + scope.String()
			if !end.IsZero() {
				how = "until " + end.Format(time.RFC3339)
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "paused %s %s\n", scope, how)
			return err
		})
	})
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "the reason, which 'millrace pause list' shows")
	c.Flags().StringVar(&until, "until", "",
		"end the pause at this `TIME`, or after a period: 2006-01-02T15:04:05Z, 90m, 7d")
	return c
}

func newResume() *cobra.Command {
	c := noun("resume", "End a pause")
	for _, p := range scopes() {
		c.AddCommand(newResumeOne(p))
	}
	return c
}

func newResumeOne(p scopeArgs) *cobra.Command {
	var (
		f      engineFlags
		reason string
	)
	c := p.command("Resume", func(c *cobra.Command, scope app.Scope) error {
		return f.withControls(c, func(ctx context.Context, ctl *app.Controls) error {
			was, err := ctl.Resume(ctx, scope, app.Actor{Who: currentUser(), Reason: reason, From: "cli"})
			if err != nil {
				return err
			}
			in, err := ctl.Active(ctx)
			if err != nil {
				return err
			}
			line := "resumed"
			if !was {
				line = "was not paused:"
			}
			fmt.Fprintln(c.OutOrStdout(), line, scope)
			for _, other := range in {
				if other.GetPaused() {
					fmt.Fprintf(c.OutOrStdout(), "still paused: %s, by %s: %s\n",
						app.ScopeOf(other), printable(other.GetBy()), printable(other.GetReason()))
				}
			}
			return nil
		})
	})
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "the reason, which is recorded")
	return c
}

func newWorkers() *cobra.Command {
	var (
		f      engineFlags
		reason string
	)
	c := &cobra.Command{
		Use:   "workers ROLE N|default",
		Short: "Set the number of items that a role handles at a time in each process; 'millrace pause list' shows it",
		Args:  exactly(2),
		RunE: func(c *cobra.Command, words []string) error {
			var n uint64
			if words[1] != "default" {
				var err error
				if n, err = strconv.ParseUint(words[1], 10, 16); err != nil || n == 0 {
					return fmt.Errorf("%w: %q is not a number of workers from 1 to 65535, or default; "+
						"'millrace pause role' stops a role", usage.Err, words[1])
				}
			}
			return f.withControls(c, func(ctx context.Context, ctl *app.Controls) error {
				by := app.Actor{Who: currentUser(), Reason: reason, From: "cli"}
				if err := ctl.SetWorkers(ctx, schemas.Role(words[0]), int32(n), by); err != nil {
					return err
				}
				workers := fmt.Sprintf("%d workers in each process", n)
				if n == 0 {
					workers = "the number of workers of the configuration"
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "role %s has %s\n", words[0], workers)
				return err
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "the reason, which is recorded")
	return c
}

func newPauseList(use, short string) *cobra.Command {
	return listing(&cobra.Command{
		Use: use, Short: short, Args: usage.NoArgs,
	}, func(c *cobra.Command, _ []string, f *engineFlags, o *output) error {
		return f.withControls(c, func(ctx context.Context, ctl *app.Controls) error {
			in, err := ctl.Active(ctx)
			if err != nil {
				return err
			}
			return printList(c.OutOrStdout(), o, rowsOf(in, pauseOf), pauseTable())
		})
	})
}

// A pauseRow is a pause, or a set number of workers, in a list.
type pauseRow struct {
	What    string     `json:"what"`
	Role    string     `json:"role,omitempty"`
	Account string     `json:"account,omitempty"`
	Store   string     `json:"store,omitempty"`
	Sweep   string     `json:"sweep,omitempty"`
	Paused  bool       `json:"paused"`
	Until   *time.Time `json:"until,omitempty"`
	Workers int32      `json:"workers,omitempty"`
	By      string     `json:"by"`
	Reason  string     `json:"reason"`
	Since   *time.Time `json:"since,omitempty"`
}

func pauseOf(c *pb.Control) pauseRow {
	return pauseRow{
		What: app.ScopeOf(c).String(), Role: c.GetRole(), Account: c.GetAccount(), Store: c.GetStore(), Sweep: c.GetSweep(),
		Paused: c.GetPaused(), Until: timeOf(c.GetUntil()), Workers: c.GetWorkers(), By: c.GetBy(), Reason: c.GetReason(),
		Since: timeOf(c.GetTime()),
	}
}

// pauseTable returns the table of pauses.
func pauseTable() table[pauseRow] {
	return table[pauseRow]{"WHAT\tPAUSED\tUNTIL\tWORKERS\tBY\tSINCE\tREASON", func(p pauseRow) []string {
		paused, workers := "no", ""
		if p.Paused {
			paused = "yes"
		}
		if p.Workers > 0 {
			workers = strconv.Itoa(int(p.Workers))
		}
		return []string{p.What, paused, stamp(p.Until), workers, p.By, stamp(p.Since), p.Reason}
	}}
}

// untilTime parses a time, or a duration from now; the zero time for "".
func untilTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, ok := parseTimeOr(text, now.Add)
	if !ok {
		return at, fmt.Errorf("%w: --until is a time such as 2006-01-02T15:04:05Z, or how long from now: "+
			"90m, 24h, 7d; not %q", usage.Err, text)
	}
	if !at.After(now) {
		return at, fmt.Errorf("%w: --until %s is past", usage.Err, text)
	}
	return at.UTC(), nil
}

// parseTimeOr parses a time or a date, or a duration, which from converts to a time.
func parseTimeOr(text string, from func(time.Duration) time.Time) (at time.Time, ok bool) {
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(form, text); err == nil {
			return at, true
		}
	}
	d, err := config.ParseDuration(text)
	return from(d), err == nil && d >= 0
}

// timeOf converts t; nil if t is nil.
func timeOf(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	at := t.AsTime()
	return &at
}

// stamp formats a time for a table; "" if t is nil.
func stamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format(time.RFC3339)
}

// stampOf formats a time for a table; "" for the zero time.
func stampOf(t time.Time) string { return stamp(set(t)) }

// withControls calls do with the controls. An unknown name is a usage error.
func (f *engineFlags) withControls(c *cobra.Command, do func(ctx context.Context, ctl *app.Controls) error) error {
	return f.withEngines(c, statedir.Config{WithoutEngine: true}, func(ctx context.Context, e *engines) error {
		e.useTopicAccounts(ctx)
		ctl, err := app.OpenControls(ctx, e.cfg, e.log)
		if err != nil {
			return err
		}
		defer ctl.Close()
		return suggestName(do(ctx, ctl))
	})
}

// suggestName returns err. An unknown name is a usage error that suggests a known one.
func suggestName(err error) error {
	if unknown := (*app.UnknownNameError)(nil); errors.As(err, &unknown) {
		return fmt.Errorf("%w: %w%s", usage.Err, err, suggestion(unknown.Name, unknown.Known))
	}
	return err
}

// suggestion returns the known name that is nearest to a word as a suggestion, or, if none is near,
// all names.
func suggestion(word string, known []string) string {
	c := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, name := range known {
		c.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	if near := c.SuggestionsFor(word); len(near) > 0 {
		return fmt.Sprintf("; did you mean %q?", near[0])
	}
	if len(known) == 0 {
		return ": there is none"
	}
	return ": there are " + strings.Join(known, ", ")
}
