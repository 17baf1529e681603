package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func newObjectDryRun() *cobra.Command {
	var from, to string
	c := listing(&cobra.Command{
		Use:   "dry-run ACCOUNT/SPACE/ITEM --from STORE --to STORE",
		Short: "Ask what a copy would do with an item now, and change nothing",
		Long: `Publishes a command that copier and deleter decide like any other and do not execute: no store, no record and
no count of the brake changes, and nothing is checked. It prints the row of the decision table, and the result that the
command would have had; if it would delete the copy, a second line says what the deleter would do. The results are in
duplication_log, with the result dry-run.

A dry run reads no bytes that are not needed to decide, so rot that is found only while bytes are copied is not found.

With --state all roles run in this command meanwhile. Exit codes: 0 fine, 1 error, 2 usage, 5 precondition, 130
interrupted.`,
		Args: exactly(1),
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		parts, err := itemName(args[0])
		if err != nil {
			return err
		}
		if from == "" || to == "" || from == to {
			return fmt.Errorf("%w: name two stores with --from and --to", usage.Err)
		}
		item := schemas.Copy{Account: parts[0], Store: from, Space: parts[1], Item: parts[2]}
		var results []read.DryRun
		err = f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
			results, err = dryRun(c, a, e, *f, item, to)
			return err
		})
		if err != nil {
			return err
		}
		return printList(c.OutOrStdout(), o, results, table[read.DryRun]{"ROW\tWOULD BE\tDETAIL",
			func(r read.DryRun) []string { return []string{r.Row, r.WouldBe, r.Detail + r.Error} }})
	})
	c.Flags().StringVar(&from, "from", "", "`STORE` to copy from")
	c.Flags().StringVar(&to, "to", "", "`STORE` to copy to")
	return c
}

// dryRun publishes a dry run, and waits for its results.
//
//nolint:revive // the command's parts
func dryRun(
	c *cobra.Command, a *app.App, e *engines, f engineFlags, item schemas.Copy, to string,
) (results []read.DryRun, err error) {
	id, err := a.DryRun(c.Context(), item, to)
	if err != nil {
		return nil, err
	}
	roles := []schemas.Role{schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleSink}
	err = e.withRoles(c, a, f, app.Roles(), func(ctx context.Context, w *waiter) error {
		return w.until(ctx, "results", roles, func(ctx context.Context) (app.Progress, error) {
			rows, err := read.DryRunResults(ctx, a.DB(), item, id)
			if err != nil {
				return app.Progress{}, err
			}
			results = rows
			p := app.Progress{Done: int64(len(rows)), Total: 1}
			if slices.ContainsFunc(rows, func(r read.DryRun) bool { return r.WouldBe == "deletion-ordered" }) {
				p.Total = 2 // the deleter reports too
			}
			return p, nil
		})
	})
	return results, err
}
