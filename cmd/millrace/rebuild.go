package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

func newRebuild() *cobra.Command {
	var (
		f      engineFlags
		accept bool
		reason string
		o      *output
	)
	c := &cobra.Command{
		Use:   "rebuild",
		Short: "Fill gaps in the tables of ClickHouse after they were emptied or restored from a backup",
		Long: `Stores the committed records that the tables audit_log, duplication_log, bit_log and copy_state lack, from
Kafka and, for copy_state, from the log tables. The other tables are small; they get the records that Kafka has,
and records that were removed from Kafka are not reported for them.

The command moves the position of each partition as it proceeds. It can be stopped and repeated, and can run beside
a sink. Fresh reads fail until it is done.

Records that neither Kafka nor the logs have are reported as lost, with the lists that keep copies because of them.
They stay findings of 'millrace verify' until they are accepted with --accept-loss and a --reason, which are recorded.

Exit codes: 0 done, 1 error, 2 usage, 3 records are lost, 5 precondition, 130 interrupted.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if accept && strings.TrimSpace(reason) == "" {
				return fmt.Errorf("%w: --accept-loss needs a --reason", usage.Err)
			}
			by := app.Actor{Who: currentUser(), Reason: reason, From: "cli"}
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				if accept {
					return acceptLoss(ctx, c.OutOrStdout(), o, a, by)
				}
				show := &stepTracker{display: e.display, steps: map[string]*progress.Step{}}
				done, err := a.Rebuild(ctx, by, show.update)
				show.display.Close()
				return printRebuilt(c.OutOrStdout(), o, done, err)
			})
		},
	}
	f.register(c)
	c.Flags().BoolVar(&accept, "accept-loss", false, "accept the lost records instead of rebuilding")
	c.Flags().StringVar(&reason, "reason", "", "the reason, which is recorded")
	o = outputFlag(c, formText, formJSON)
	return c
}

// printRebuilt prints the result of a rebuild, which may have ended with the error failed. It
// returns failed, joined with an error that wraps errFindings if records are lost.
func printRebuilt(out io.Writer, o *output, done app.RebuildResult, failed error) error {
	var err error
	if o.form == formJSON {
		err = writeJSON(out, done)
	} else {
		var b strings.Builder
		for _, g := range done.Gaps {
			fmt.Fprintf(&b, "%s: stored offsets %d to %d of %s, partition %d\n", g.Table, g.From, g.To-1, g.Topic, g.Partition)
		}
		writeLost(&b, done.Lost)
		if failed == nil && len(done.Gaps) == 0 {
			b.WriteString("the tables have all committed records\n")
		}
		_, err = io.WriteString(out, b.String())
	}
	if err == nil && len(done.Lost) > 0 {
		err = fmt.Errorf("%w: %d ranges of offsets are lost", errFindings, len(done.Lost))
	}
	return errors.Join(failed, err)
}

func writeLost(b *strings.Builder, lost []app.Loss) {
	for _, l := range lost {
		fmt.Fprintf(b, "%s: lost: offsets %d to %d of %s, partition %d (incarnation %08x): "+
			"Kafka no longer has them, and %d of %d have rows\n",
			l.Table, l.From, l.To-1, l.Topic, l.Partition, l.Incarnation, l.Held, l.To-l.From)
		if len(l.Lists) > 0 {
			fmt.Fprintf(b, "  these lists keep copies because of such records: %s. The copies may be deleted or replaced now: "+
				"restore a backup of %s\n", strings.Join(l.Lists, ", "), l.Table)
		}
	}
}

func acceptLoss(ctx context.Context, out io.Writer, o *output, a *app.App, by app.Actor) error {
	lost, err := a.AcceptLoss(ctx, by)
	if err != nil {
		return err
	}
	if o.form == formJSON {
		return writeJSON(out, struct {
			Accepted []app.Loss `json:"accepted"`
		}{append([]app.Loss{}, lost...)})
	}
	var b strings.Builder
	writeLost(&b, lost)
	fmt.Fprintf(&b, "accepted: %d\n", len(lost))
	_, err = io.WriteString(out, b.String())
	return err
}
