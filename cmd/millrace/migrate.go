package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
)

// errPending means that a dry run has found something to do.
var errPending = errors.New("there is something to migrate")

func newMigrate() *cobra.Command {
	var (
		f             engineFlags
		cluster       string
		dryRun, again bool
	)
	c := &cobra.Command{
		Use:   "migrate --config FILE",
		Short: "Bring ClickHouse's tables up to date and make the topics that are missing",
		Long: `Applies the migrations that the database lacks, in their order, and makes the topics that are
missing. Whatever interrupts it, it is simply run again.

With --dry-run it prints the statements and topics and does nothing. It exits with 0 where there is nothing
to do, and with 3 where there is. See docs/clickhouse.md.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if cluster != "" && f.state != "" {
				return fmt.Errorf("%w: the ClickHouse of a state directory is one server: --cluster goes with --config", errUsage)
			}
			ctx := c.Context()
			e, err := f.open(ctx, c.ErrOrStderr(), app.StateConfig{})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close(ctx)) }()
			if cluster != "" {
				if set := e.cfg.ClickHouse.Cluster; set != "" && set != cluster {
					return fmt.Errorf("%w: clickhouse.cluster is %s, --cluster %s", errUsage, set, cluster)
				}
				e.cfg.ClickHouse.Cluster = cluster
			}
			a, err := app.Open(ctx, e.cfg, app.Options{Log: e.log, Drain: app.QuickDrain})
			if err != nil {
				return err
			}
			defer a.Close()
			if dryRun {
				return planMigration(ctx, c.OutOrStdout(), a, again)
			}
			return migrate(ctx, c.OutOrStdout(), a, again)
		},
	}
	f.register(c)
	c.Flags().StringVar(&cluster, "cluster", "", "spread the tables over the cluster `NAME`; clickhouse.cluster must then say so too")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be done, and do nothing")
	c.Flags().BoolVar(&again, "again", false, "apply every migration again: for a server that has joined the cluster, or a table that was dropped")
	return c
}

func migrate(ctx context.Context, out io.Writer, a *app.App, again bool) error {
	run := a.Migrate
	if again {
		run = a.MigrateAgain
	}
	done, err := run(ctx)
	for _, name := range done.Applied {
		fmt.Fprintln(out, "applied", name)
	}
	for _, name := range done.Topics {
		fmt.Fprintln(out, "made topic", name)
	}
	if err != nil {
		return err
	}
	if len(done.Applied)+len(done.Topics) == 0 {
		_, err = fmt.Fprintf(out, "nothing to apply: the tables are up to date, and all %d topics are there\n", done.Present)
		return err
	}
	_, err = fmt.Fprintf(out, "%d migrations applied, %d topics made, %d topics were there already\n",
		len(done.Applied), len(done.Topics), done.Present)
	return err
}

// planMigration prints statements that can be given to clickhouse-client as they are.
func planMigration(ctx context.Context, out io.Writer, a *app.App, again bool) error {
	m, err := a.PlanMigration(ctx, again)
	if err != nil {
		return err
	}
	if m.Empty() {
		_, err := fmt.Fprintln(out, "nothing to apply")
		return err
	}
	for _, statement := range m.Prepare {
		fmt.Fprintf(out, "%s;\n\n", statement)
	}
	for _, s := range m.Steps {
		fmt.Fprintf(out, "-- %s\n", s.Name)
		for _, statement := range s.Statements {
			fmt.Fprintf(out, "%s;\n", statement)
		}
		fmt.Fprintln(out)
	}
	for _, name := range m.Topics {
		fmt.Fprintf(out, "-- topic %s\n", name)
	}
	return fmt.Errorf("%w: %d migrations, %d topics", errPending, len(m.Steps), len(m.Topics))
}
