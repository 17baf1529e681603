package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage"
)

// deleteFlags are the flags of object delete.
type deleteFlags struct {
	engineFlags
	store, reason        string
	prefix, dryRun, wait bool
	output               *output
}

func newObjectDelete() *cobra.Command {
	var f deleteFlags
	c := &cobra.Command{
		Use:   "delete ACCOUNT/SPACE/ITEM... --store STORE --reason TEXT",
		Short: "Delete copies that the policy does not want, after approval",
		Long: `Orders the delete of the copies of items of one space in a store, where the policy does not want them: no pair
of the policy leads to the store, or the source was deleted, and its copies are kept (deletes: keep, a closed list, a
delete that no client has reported). With --prefix the argument is ACCOUNT/SPACE/PREFIX, or ACCOUNT/SPACE/ for the
whole space, and all such copies are selected.

A copy that the policy wants, and the source itself, are refused: then nothing is ordered. So is what may be the last
copy of an item, unless a client has deleted the item.

Nothing is deleted yet. The deleter puts the deletes on a list asked-N of the space, with an incident deletes-held, and
'incident approve' of it deletes the copies if all of this still holds. The store keeps the bytes if it can.
'incident close' and 'incident refuse' keep the copies.

With --dry-run nothing is published. With --wait the command ends when each delete is on the list, or has another
result. With --state all roles run in this command.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: some copies are kept by the deleter, 5 precondition, such as a copy
that the policy wants, 130 interrupted.`,
		RunE: func(c *cobra.Command, args []string) error {
			r, err := f.request(args)
			if err != nil {
				return err
			}
			return f.run(c, r)
		},
	}
	f.register(c)
	c.Flags().StringVar(&f.store, "store", "", "the store of this `ID`, which has the copies")
	c.Flags().StringVar(&f.reason, "reason", "", "the reason, which is recorded")
	c.Flags().BoolVar(&f.prefix, "prefix", false, "all items whose ids begin so, and whose copies are not wanted")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be ordered")
	c.Flags().BoolVar(&f.wait, "wait", false, "wait until each delete is on the list, or has another result")
	f.output = outputFlag(c, formText, formJSON)
	return c
}

// request returns the request of the command line.
func (f *deleteFlags) request(args []string) (r app.RemovalRequest, err error) {
	r = app.RemovalRequest{Store: f.store, DryRun: f.dryRun,
		By: app.Actor{Who: currentUser(), Reason: f.reason, From: "cli"}}
	var faults []error
	switch {
	case len(args) == 0 || f.prefix && len(args) > 1:
		faults = append(faults, errors.New("name items of one space, or one prefix"))
	case f.store == "":
		faults = append(faults, errors.New("--store is missing"))
	case f.reason == "" && !f.dryRun:
		faults = append(faults, errors.New("--reason is missing: it is recorded"))
	case f.dryRun && f.wait:
		faults = append(faults, errors.New("--dry-run and --wait exclude each other"))
	}
	for _, arg := range args {
		parts := strings.SplitN(arg, "/", 3)
		if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" && !f.prefix {
			return r, fmt.Errorf("%w: %q is not ACCOUNT/SPACE/ITEM, or with --prefix ACCOUNT/SPACE/PREFIX", usage.Err, arg)
		}
		if r.Account != "" && (r.Account != parts[0] || r.Space != parts[1]) {
			faults = append(faults, errors.New("the items are of several spaces"))
		}
		if r.Account, r.Space = parts[0], parts[1]; f.prefix {
			r.Prefix = &parts[2]
			continue
		}
		r.Items = append(r.Items, parts[2])
		faults = append(faults, storage.CheckItem(parts[2]))
	}
	r.Items = unique(r.Items)
	if err := errors.Join(append(faults, storage.CheckSpace(r.Space))...); err != nil {
		return r, fmt.Errorf("%w: %w", usage.Err, err)
	}
	return r, nil
}

func (f *deleteFlags) run(c *cobra.Command, r app.RemovalRequest) error {
	var report app.RemovalReport
	err := f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
		return e.withRoles(c, a, f.engineFlags, app.Roles(), func(ctx context.Context, w *waiter) (err error) {
			if report, err = a.Remove(ctx, r); err != nil || !f.wait {
				return err
			}
			by := []schemas.Role{schemas.RoleDeleter, schemas.RoleSink}
			if err := w.until(ctx, "deletes", by, a.Removed(report)); err != nil {
				return err
			}
			o, err := a.RemovalOutcome(ctx, report)
			report.Outcome = &o
			return err
		})
	})
	if err != nil {
		return err
	}
	if err := f.print(c.OutOrStdout(), report); err != nil {
		return err
	}
	if report.Outcome != nil && len(report.Outcome.Failed) > 0 {
		return fmt.Errorf("%w: some copies are kept", errFindings)
	}
	return nil
}

func (f *deleteFlags) print(out io.Writer, r app.RemovalReport) error {
	if f.output.form == formJSON {
		return writeJSON(out, r)
	}
	var b strings.Builder
	if f.dryRun {
		fmt.Fprintf(&b, "%d deletes would be ordered\n", r.Ordered)
		for _, item := range r.Copies {
			fmt.Fprintf(&b, "%s\n", item)
		}
	} else {
		fmt.Fprintf(&b, "%d deletes are ordered, and wait for approval: see 'millrace incident list'\n", r.Ordered)
	}
	if f.prefix {
		fmt.Fprintf(&b, "%d items have no copy there, or one that stays\n", r.Stay)
	}
	if r.Outcome != nil {
		for _, result := range slices.Sorted(maps.Keys(r.Outcome.Results)) {
			fmt.Fprintf(&b, "%d deletes: %s\n", r.Outcome.Results[result], result)
		}
		for _, x := range r.Outcome.Failed {
			fmt.Fprintf(&b, "store %s, %q: %s: %s\n", x.Store, x.Item, x.Result, x.Detail)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
