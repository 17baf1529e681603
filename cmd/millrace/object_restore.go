package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/restore"
	"github.com/millrace/millrace/streams/storage"
)

// restoreFlags are the flags of object restore.
type restoreFlags struct {
	engineFlags
	at, version, store, reason string
	prefix, dryRun, wait       bool
	output                     *output
}

func newObjectRestore() *cobra.Command {
	var f restoreFlags
	c := &cobra.Command{
		Use:   "restore ACCOUNT/SPACE/ITEM --reason TEXT",
		Short: "Bring back content that was deleted or replaced",
		Long: `Brings back the content that an item had in the source store at a time (--at), or one that 'object versions'
lists (--version takes its id or version). Without both, it brings back an item that is deleted. With --prefix the
argument is ACCOUNT/SPACE/PREFIX, or ACCOUNT/SPACE/ for the whole space, and every item gets its content of the time
--at; items that did not exist then are left as they are.

All stores of the policy get the content; with --store only that store gets its own earlier content. Nothing is deleted.
The command publishes one order for each copy that does not have the content. The copier reads the bytes from a copy, or
from what a store has kept; it writes only bytes whose digests the audit log proves, only if the copy is still what
the command has seen, and keeps what it replaces. The action and its reason are recorded.

Nothing is ordered if a source store cannot be written (layout plain, repair: off) and does not have the content, or if
a copy would get it while such a source keeps other content: 'millrace object export' writes it to a directory then.

The same command again orders only what is still missing. With --dry-run nothing is published. With --wait the command
ends when every order has a result. With --state all roles run in this command.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: an order brought nothing back, 4 for some copies there are no
proven bytes, or a store did not answer, 5 precondition, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := f.request(args[0], time.Now())
			if err != nil {
				return err
			}
			return f.run(c, r)
		},
	}
	f.register(c)
	c.Flags().StringVar(&f.at, "at", "",
		"the content at this `TIME` by the clock of the store: RFC 3339, YYYY-MM-DD, or how long ago, as 2h")
	c.Flags().StringVar(&f.version, "version", "", "the content of this `ID` or version")
	c.Flags().StringVar(&f.store, "store", "", "only the copy in the store of this `ID`")
	c.Flags().StringVar(&f.reason, "reason", "", "the reason, which is recorded")
	c.Flags().BoolVar(&f.prefix, "prefix", false, "restore all items whose ids begin so")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be ordered")
	c.Flags().BoolVar(&f.wait, "wait", false, "wait until every order has a result")
	f.output = outputFlag(c, formText, formJSON)
	return c
}

// request returns the request of the command line.
func (f *restoreFlags) request(arg string, now time.Time) (r app.RestoreRequest, err error) {
	parts := strings.SplitN(arg, "/", 3)
	if f.prefix && len(parts) == 2 {
		parts = append(parts, "")
	}
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" && !f.prefix {
		return r, fmt.Errorf("%w: %q is not ACCOUNT/SPACE/ITEM, or with --prefix ACCOUNT/SPACE/PREFIX", usage.Err, arg)
	}
	r = app.RestoreRequest{Account: parts[0], Space: parts[1], Item: parts[2], Prefix: f.prefix, Version: f.version,
		Store: f.store, DryRun: f.dryRun, By: app.Actor{Who: currentUser(), Reason: f.reason, From: "cli"}}
	faults := []error{storage.CheckSpace(r.Space)}
	if !f.prefix {
		faults = append(faults, storage.CheckItem(r.Item))
	}
	if f.at != "" {
		var err error
		r.At, err = contentTime(f.at, now)
		faults = append(faults, err)
	}
	switch {
	case f.reason == "" && !f.dryRun:
		faults = append(faults, errors.New("--reason is missing: it is recorded"))
	case f.at != "" && f.version != "":
		faults = append(faults, errors.New("--at and --version exclude each other"))
	case f.prefix && f.at == "":
		faults = append(faults, errors.New("--prefix needs --at"))
	case f.prefix && f.version != "":
		faults = append(faults, errors.New("--version is of one item"))
	case f.dryRun && f.wait:
		faults = append(faults, errors.New("--dry-run and --wait exclude each other"))
	}
	if err := errors.Join(faults...); err != nil {
		return r, fmt.Errorf("%w: %w", usage.Err, err)
	}
	return r, nil
}

// contentTime parses the time of a content: a time in the past.
func contentTime(text string, now time.Time) (time.Time, error) {
	at, ok := parseTimeOr(text, func(d time.Duration) time.Time { return now.Add(-d) })
	switch {
	case !ok:
		return at, fmt.Errorf("--at %q is not a time: want 2026-03-01T12:00:00Z, 2026-03-01 or 2h (ago)", text)
	case at.After(now):
		return at, fmt.Errorf("--at %s is in the future", text)
	}
	return at, nil
}

// A restoreResult is the result of object restore.
type restoreResult struct {
	app.RestoreReport
	DryRun  bool                `json:"dry_run"`
	Outcome *app.RestoreOutcome `json:"outcome,omitempty"` // with --wait
}

// restoreRoles are the roles that bring content back.
var restoreRoles = []schemas.Role{schemas.RoleCopier, schemas.RoleSink}

func (f *restoreFlags) run(c *cobra.Command, r app.RestoreRequest) error {
	var result restoreResult
	err := f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
		return e.withRoles(c, a, f.engineFlags, app.Roles(), func(ctx context.Context, w *waiter) (err error) {
			result, err = w.restore(ctx, a, r, f.wait)
			return err
		})
	})
	if err == nil || result.Items > 0 { // also what was ordered before a failure
		err = errors.Join(err, result.print(c.OutOrStdout(), f))
	}
	if err != nil {
		return err
	}
	return result.verdict()
}

// restore restores what a request selects. With wait it waits until every order has a result.
func (w *waiter) restore(
	ctx context.Context, a *app.App, r app.RestoreRequest, wait bool,
) (result restoreResult, err error) {
	result.DryRun = r.DryRun
	var seen atomic.Int64
	var step *progress.Step
	r.Progress = func(p app.RestoreReport) {
		if step == nil {
			step = w.display.Step("items", p.Selected)
		}
		step.Set(p.Items)
		seen.Store(p.Items)
	}
	err = w.waitWhile(ctx, "items", restoreRoles, seen.Load, func(ctx context.Context) (err error) {
		result.RestoreReport, err = a.Restore(ctx, r)
		return err
	})
	if step != nil {
		step.End(err == nil)
	}
	if err != nil || !wait || result.Copies[restore.Ordered] == 0 {
		return result, err
	}
	if err := w.until(ctx, "restore orders", restoreRoles, a.Restored(r, result.RestoreReport)); err != nil {
		return result, err
	}
	o, err := a.RestoreOutcome(ctx, r, result.RestoreReport)
	result.Outcome = &o
	return result, err
}

// verdict returns the error of a result that is not complete.
func (r *restoreResult) verdict() error {
	if n := r.Lacking(); n > 0 {
		return fmt.Errorf("%w: %d copies are not restored: there are no proven bytes, or a store did not answer",
			errPartly, n)
	}
	if r.Outcome != nil && len(r.Outcome.Failed) > 0 {
		return fmt.Errorf("%w: some restore orders brought nothing back", errFindings)
	}
	return nil
}

func (r *restoreResult) print(out io.Writer, f *restoreFlags) error {
	if f.output.form == formJSON {
		return writeJSON(out, r)
	}
	var b strings.Builder
	would := ""
	if f.dryRun {
		would = "would be "
	}
	fmt.Fprintf(&b, "%d items, content of store %s, for %s\n", r.Items, r.Source,
		strings.Join(prepend("store ", r.Stores), ", "))
	for _, v := range slices.Sorted(maps.Keys(r.Copies)) {
		text := string(v)
		if v == restore.Ordered {
			text = would + text
		}
		fmt.Fprintf(&b, "%d copies: %s\n", r.Copies[v], text)
	}
	for _, choice := range r.Choices {
		fmt.Fprintf(&b, "store %s, %q: %s", choice.Store, choice.Item, choice.Verdict)
		if choice.Detail != "" {
			fmt.Fprintf(&b, ": %s", choice.Detail)
		}
		if len(choice.Sources) > 0 {
			fmt.Fprintf(&b, ", from %s", strings.Join(prepend("store ", choice.Sources), "; "))
		}
		b.WriteByte('\n')
	}
	if r.More > 0 {
		fmt.Fprintf(&b, "and %d more\n", r.More)
	}
	if r.Outcome != nil {
		for _, name := range slices.Sorted(maps.Keys(r.Outcome.Results)) {
			fmt.Fprintf(&b, "%d orders: %s\n", r.Outcome.Results[name], name)
		}
		for _, x := range r.Outcome.Failed {
			fmt.Fprintf(&b, "store %s, %q: %s: %s\n", x.Store, x.Item, x.Result, x.Detail)
		}
	} else if f.state != "" && r.Copies[restore.Ordered] > 0 && !f.dryRun {
		fmt.Fprintf(&b, "%s\n", f.laterWithState("what is not done yet is done"))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// prepend returns the words with a prefix.
func prepend(prefix string, words []string) []string {
	return rowsOf(words, func(w string) string { return prefix + w })
}
