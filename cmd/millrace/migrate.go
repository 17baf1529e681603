package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

// errPending means that a dry run has found something to do.
var errPending = errors.New("there is something to migrate")

// clusterWarning is printed whenever tables are made for a cluster.
const clusterWarning = "replication, quorum and ON CLUSTER are not covered by any test of millrace: " +
	"try a copy of your cluster first (docs/clickhouse.md, Cluster)"

func newMigrate() *cobra.Command {
	var (
		f             engineFlags
		cluster       string
		dryRun, again bool
		o             *output
	)
	c := &cobra.Command{
		Use:   "migrate --config FILE",
		Short: "Bring ClickHouse's tables up to date and make the topics that are missing",
		Long: `Applies the migrations that the database lacks, in their order, and makes the topics that are
missing. Whatever interrupts it, it is simply run again.

With --dry-run it prints the statements and topics and does nothing. It exits with 0 where there is nothing
to do, and with 3 where there is. See docs/clickhouse.md.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if cluster != "" && f.state != "" {
				return fmt.Errorf("%w: the ClickHouse of a state directory is one server: --cluster goes with --config", usage.Err)
			}
			ctx := c.Context()
			e, err := f.open(ctx, c.ErrOrStderr(), app.StateConfig{})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close(ctx)) }()
			if cluster != "" {
				if set := e.cfg.ClickHouse.Cluster; set != "" && set != cluster {
					return fmt.Errorf("%w: clickhouse.cluster is %s, --cluster %s", usage.Err, set, cluster)
				}
				e.cfg.ClickHouse.Cluster = cluster
			}
			a, err := app.Open(ctx, e.cfg, app.Options{Log: e.log, Drain: app.QuickDrain})
			if err != nil {
				return err
			}
			defer a.Close()
			if name := e.cfg.ClickHouse.Cluster; name != "" {
				fmt.Fprintf(c.ErrOrStderr(), "warning: cluster %s: %s\n", name, clusterWarning)
			}
			if dryRun {
				return planMigration(ctx, c.OutOrStdout(), o, a, again)
			}
			return migrate(ctx, c.OutOrStdout(), o, a, again)
		},
	}
	f.register(c)
	c.Flags().StringVar(&cluster, "cluster", "", "spread the tables over the cluster `NAME`; clickhouse.cluster must then say so too")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be done, and do nothing")
	c.Flags().BoolVar(&again, "again", false, "apply every migration again: for a server that has joined the cluster, or a table that was dropped")
	o = outputFlag(c, formText, formJSON)
	return c
}

// migrated is the document of a migration.
type migrated struct {
	Applied []string `json:"applied"`
	Topics  []string `json:"topics"`  // that were made
	Present int      `json:"present"` // topics that were there before
}

func migrate(ctx context.Context, out io.Writer, o *output, a *app.App, again bool) error {
	run := a.Migrate
	if again {
		run = a.MigrateAgain
	}
	done, err := run(ctx)
	if o.form == formJSON {
		m := migrated{append([]string{}, done.Applied...), append([]string{}, done.Topics...), done.Present}
		return errors.Join(err, writeJSON(out, m))
	}
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

// A migrationPlan is the document of what a migration would do.
type migrationPlan struct {
	Prepare    []string         `json:"prepare"` // statements before the first migration
	Migrations []migrationSteps `json:"migrations"`
	Topics     []string         `json:"topics"` // that are missing
}

type migrationSteps struct {
	Name       string   `json:"name"`
	Statements []string `json:"statements"`
}

// planMigration prints what a migration would do; as text, statements that clickhouse-client takes as they are.
func planMigration(ctx context.Context, out io.Writer, o *output, a *app.App, again bool) error {
	m, err := a.PlanMigration(ctx, again)
	if err != nil {
		return err
	}
	pending := fmt.Errorf("%w: %d migrations, %d topics", errPending, len(m.Steps), len(m.Topics))
	if o.form == formJSON {
		plan := migrationPlan{append([]string{}, m.Prepare...), []migrationSteps{}, append([]string{}, m.Topics...)}
		for _, s := range m.Steps {
			plan.Migrations = append(plan.Migrations, migrationSteps{s.Name, s.Statements})
		}
		if err := writeJSON(out, plan); err != nil || m.Empty() {
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
		fmt.Fprintf(out, "-- %s\n", s.Name)
		for _, statement := range s.Statements {
			fmt.Fprintf(out, "%s;\n", statement)
		}
		fmt.Fprintln(out)
	}
	for _, name := range m.Topics {
		fmt.Fprintf(out, "-- topic %s\n", name)
	}
	return pending
}
