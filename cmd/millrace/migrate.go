package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/statedir"
)

// errPending reports that a dry run has found something to do.
var errPending = errors.New("there is something to migrate")

func newMigrate() *cobra.Command {
	var (
		f             engineFlags
		dryRun, again bool
		o             *output
	)
	c := &cobra.Command{
		Use:   "migrate --config FILE",
		Short: "Update the tables of ClickHouse and create missing topics",
		Long: `Applies the missing migrations in their order, and creates the missing topics. After an interruption, run it
again.

With --dry-run it prints the statements and topics and changes nothing; the exit code is 3 if there is something to
do, otherwise 0. See docs/clickhouse.md.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.withEngines(c, statedir.Config{}, func(ctx context.Context, e *engines) error {
				a, err := app.Open(ctx, e.cfg, app.Options{Log: e.log, Drain: app.QuickDrain})
				if err != nil {
					return err
				}
				defer a.Close()
				if dryRun {
					return planMigration(ctx, c.OutOrStdout(), o, a, again)
				}
				return migrate(ctx, c.OutOrStdout(), o, a, again)
			})
		},
	}
	f.register(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print the statements and topics, and change nothing")
	c.Flags().BoolVar(&again, "again", false,
		"apply every migration again: for a table that was dropped")
	o = outputFlag(c, formText, formJSON)
	return c
}

func migrate(ctx context.Context, out io.Writer, o *output, a *app.App, again bool) error {
	run := a.Migrate
	if again {
		run = a.MigrateAgain
	}
	done, err := run(ctx)
	if o.form == formJSON {
		return errors.Join(err, writeJSON(out, done))
	}
	for _, name := range done.Applied {
		fmt.Fprintln(out, "applied", name)
	}
	for _, name := range done.Topics {
		fmt.Fprintln(out, "created topic", name)
	}
	if err != nil {
		return err
	}
	if len(done.Applied)+len(done.Topics) == 0 {
		_, err = fmt.Fprintf(out, "nothing to apply: the tables are up to date, and all %d topics exist\n", done.Present)
		return err
	}
	_, err = fmt.Fprintf(out, "%d migrations applied, %d topics created, %d topics existed\n",
		len(done.Applied), len(done.Topics), done.Present)
	return err
}

// planMigration prints the plan of a migration. As text it prints statements that clickhouse-client
// accepts unchanged.
func planMigration(ctx context.Context, out io.Writer, o *output, a *app.App, again bool) error {
	m, err := a.PlanMigration(ctx, again)
	if err != nil {
		return err
	}
	pending := fmt.Errorf("%w: %d migrations, %d topics", errPending, len(m.Steps), len(m.Topics))
	if o.form == formJSON {
		if err := writeJSON(out, m); err != nil || m.Empty() {
			return err
		}
		return pending
	}
	if m.Empty() {
		_, err := fmt.Fprintln(out, "nothing to apply")
		return err
	}
	for _, statement := range m.Prepare {
		fmt.Fprintf(out, "%s;\n\n", statement)
	}
	for _, s := range m.Steps {
		fmt.Fprintf(out, "-- %s\n%s;\n\n", s.Name, s.Statement)
	}
	for _, name := range m.Topics {
		fmt.Fprintf(out, "-- topic %s\n", name)
	}
	return pending
}
