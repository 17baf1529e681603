package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
)

func newSweep() *cobra.Command {
	return noun("sweep", "Start sweeps", newSweepStart())
}

func newSweepStart() *cobra.Command {
	var (
		f              engineFlags
		account, store string
		all            bool
	)
	c := &cobra.Command{
		Use:   "start fixity",
		Short: "Ask for a check of every copy that is due; running checkers carry it out",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] != "fixity" {
				return fmt.Errorf("%w: name a sweep; there is one: fixity", errUsage)
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				for _, acc := range e.cfg.Accounts {
					for _, st := range acc.Stores {
						if account != "" && acc.ID != account || store != "" && st.ID != store {
							continue
						}
						o := app.SweepOrder{Account: acc.ID, Store: st.ID, Begun: time.Now().UTC().Truncate(time.Millisecond)}
						if !all {
							o.Period = e.cfg.Fixity.Period
						}
						round, err := a.SweepFixity(ctx, o)
						if err != nil {
							return fmt.Errorf("sweep store %s/%s: %w", acc.ID, st.ID, err)
						}
						fmt.Fprintf(c.OutOrStdout(), "store %s/%s: round %s: %d checks asked for\n", acc.ID, st.ID, round.ID, round.Emitted)
					}
				}
				return nil
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&account, "account", "", "only of this `ACCOUNT`")
	c.Flags().StringVar(&store, "store", "", "only of the store of this `ID`")
	c.Flags().BoolVar(&all, "all", false, "every copy, not only those whose last pass is older than fixity.period")
	return c
}
