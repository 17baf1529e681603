package main

import (
	"context"
	"fmt"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

func newIncident() *cobra.Command {
	return noun("incident", "Look at what is wrong, and decide", newIncidentList(), newIncidentApprove())
}

func newIncidentList() *cobra.Command {
	var (
		f       engineFlags
		account string
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List open incidents",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var open []*pb.Incident
			err := f.withDB(c, func(ctx context.Context, db *clickhouse.DB) (err error) {
				open, err = db.OpenIncidents(ctx, account)
				return err
			})
			if err != nil {
				return err
			}
			tw := tabwriter.NewWriter(c.OutOrStdout(), 2, 0, 2, ' ', 0)
			fmt.Fprintln(tw, "KEY\tSTATE\tROW\tOPENED")
			for _, i := range open {
				fmt.Fprintf(tw, "%s\t%s\t%d\t%s\n", schemas.IncidentKey(i), stateWord(i.GetState()), i.GetRow(), i.GetOpened().AsTime().Format(time.RFC3339))
			}
			return tw.Flush()
		},
	}
	f.register(c)
	c.Flags().StringVar(&account, "account", "", "only of this `ACCOUNT`")
	return c
}

func newIncidentApprove() *cobra.Command {
	var (
		f      engineFlags
		reason string
	)
	c := &cobra.Command{
		Use:   "approve KEY",
		Short: "Let the repair of an incident go ahead; it is carried out by a running steward and copier",
		Args:  exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				if err := isOpen(ctx, a, args[0]); err != nil {
					return err
				}
				if err := a.ApproveRepair(ctx, args[0], app.Approval{Who: person(), Reason: reason, From: "cli"}); err != nil {
					return err
				}
				how := "the steward will order the repair"
				if e.state != nil {
					how = fmt.Sprintf("it is carried out when 'millrace standalone --state %s' runs", f.state)
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "approved %s: %s\n", args[0], how)
				return err
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return c
}

// isOpen refuses a key that no open incident has: nothing would come of its approval.
func isOpen(ctx context.Context, a *app.App, key string) error {
	open, err := a.DB().OpenIncidents(ctx, "")
	if err != nil {
		return fmt.Errorf("read the incidents: %w", err)
	}
	for _, i := range open {
		if schemas.IncidentKey(i) == key {
			return nil
		}
	}
	return fmt.Errorf("no open incident has the key %q: see 'millrace incident list'", key)
}

// person is who sits at the keyboard, as far as the machine knows.
func person() string {
	u, err := user.Current()
	if err != nil {
		return "unknown"
	}
	return u.Username
}

// stateWord is an incident's state as people say it.
func stateWord(s pb.IncidentState) string {
	word := strings.TrimPrefix(s.String(), "INCIDENT_STATE_")
	return strings.ReplaceAll(strings.ToLower(word), "_", "-")
}
