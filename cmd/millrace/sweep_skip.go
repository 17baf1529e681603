package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

func newSweepSkip() *cobra.Command {
	var (
		f      engineFlags
		r      app.SkipRequest
		reason string
	)
	c := &cobra.Command{
		Use:   "skip NAME --reason TEXT",
		Short: "End the unfinished rounds of a sweep; the next ones begin when they are due",
		Long: `Ends the unfinished rounds of a sweep, scheduled or by hand. What a round has requested is still done; it has
no report, and 'millrace job list' shows that it was skipped. The reason is in the table admin_log. The next round
begins when it is due, a period after the start of the skipped one.

A process that works on a round ends it after its page. If none does, a process with role sweeper ends it, or the next
'millrace sweep start' that would continue it.

Exit codes: 0 fine, also if no round is unfinished, 1 error, 2 usage, 130 interrupted.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%w: name a sweep: one of %s", usage.Err, strings.Join(app.Sweeps(), ", "))
			}
			return atMostOneSweep(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if reason == "" {
				return fmt.Errorf("%w: --reason is missing: it is recorded", usage.Err)
			}
			r.Sweep = args[0]
			return f.withApp(c, func(ctx context.Context, a *app.App, _ *engines) error {
				skipped, err := a.SkipRounds(ctx, r, app.Actor{Who: currentUser(), Reason: reason, From: "cli"})
				for _, s := range skipped {
					where := storeName(s.Account, s.Store)
					if s.Destination != "" {
						where += " to " + s.Destination
					}
					if s.Space != "" {
						where = "space " + s.Space + " in " + where
					}
					fmt.Fprintf(c.OutOrStdout(), "skipped round %s of %s\n", s.Round, where)
				}
				if err == nil && len(skipped) == 0 {
					fmt.Fprintln(c.OutOrStdout(), "no such round is unfinished")
				}
				return err
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&r.Account, "account", "", "only of this `ACCOUNT`")
	c.Flags().StringVar(&r.Store, "store", "", "only of the store of this `ID`, also as the destination of a pair")
	c.Flags().StringVar(&r.Space, "space", "", "only of this `SPACE`")
	c.Flags().StringVar(&reason, "reason", "", "the reason, which is recorded")
	return c
}
