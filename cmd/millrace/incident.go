package main

import (
	"context"
	"fmt"
	"os/user"
	"strconv"
	"strings"
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
		o       *output
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
			rows := make([]incidentRow, 0, len(open))
			for _, i := range open {
				rows = append(rows, incidentOf(i))
			}
			return printList(c.OutOrStdout(), o, rows, incidentTable())
		},
	}
	f.register(c)
	c.Flags().StringVar(&account, "account", "", "only of this `ACCOUNT`")
	o = listFlag(c)
	return c
}

// An incidentRow is what a list says of one incident.
type incidentRow struct {
	Key     string     `json:"key"` // as approve takes it
	ID      string     `json:"id"`
	Account string     `json:"account"`
	Store   string     `json:"store"`
	Space   string     `json:"space"`
	Item    string     `json:"item"`
	Kind    string     `json:"kind"`
	State   string     `json:"state"`
	Row     int32      `json:"row"`
	Opened  *time.Time `json:"opened"`
	Updated *time.Time `json:"updated"`
	Repairs int32      `json:"repairs"`
}

func incidentOf(i *pb.Incident) incidentRow {
	return incidentRow{
		Key: schemas.IncidentKey(i), ID: i.GetId(), Account: i.GetAccount(), Store: i.GetStore(), Space: i.GetSpace(),
		Item: i.GetItem(), Kind: i.GetKind(), State: stateWord(i.GetState()), Row: i.GetRow(),
		Opened: timeOf(i.GetOpened()), Updated: timeOf(i.GetUpdated()), Repairs: i.GetRepairs(),
	}
}

// incidentTable is the table of incidents.
func incidentTable() table[incidentRow] {
	return table[incidentRow]{"KEY\tSTATE\tROW\tOPENED", func(r incidentRow) []string {
		return []string{r.Key, r.State, strconv.Itoa(int(r.Row)), stamp(r.Opened)}
	}}
}

func newIncidentApprove() *cobra.Command {
	var (
		f      engineFlags
		reason string
		wait   bool
	)
	c := &cobra.Command{
		Use:   "approve KEY",
		Short: "Let the repair of an incident go ahead; it is carried out by a running steward and copier",
		Long: `Publishes the approval of the repair that the incident waits for. The roles steward, copier and checker carry it
out.

With --wait it ends when the incident is closed. With --state all roles run in this command until then.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: the copy is not as it should be after the repair, 5 precondition,
130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				incident, err := openIncident(ctx, a, args[0])
				if err != nil {
					return err
				}
				if incident == nil {
					return fmt.Errorf("no open incident has the key %q: see 'millrace incident list'", args[0])
				}
				if err := a.ApproveRepair(ctx, args[0], app.Approval{Who: person(), Reason: reason, From: "cli"}); err != nil {
					return err
				}
				how := "the steward will order the repair"
				switch {
				case wait:
					how = "the incident is closed"
					if err := awaitRepair(c, e, a, f, incident); err != nil {
						return err
					}
				case e.state != nil:
					how = f.later("it is carried out")
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "approved %s: %s\n", args[0], how)
				return err
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "why, for the record")
	c.Flags().BoolVar(&wait, "wait", false, "wait until the incident is closed")
	return c
}

// openIncident returns the open incident of a key, nil if there is none.
func openIncident(ctx context.Context, a *app.App, key string) (*pb.Incident, error) {
	open, err := a.DB().OpenIncidents(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read the incidents: %w", err)
	}
	for _, i := range open {
		if schemas.IncidentKey(i) == key {
			return i, nil
		}
	}
	return nil, nil
}

// awaitRepair waits until an incident is closed, or waits for an approval again after a repair.
func awaitRepair(c *cobra.Command, e *engines, a *app.App, f engineFlags, approved *pb.Incident) error {
	key, vain := schemas.IncidentKey(approved), false
	by := []schemas.Role{schemas.RoleSteward, schemas.RoleCopier, schemas.RoleChecker, schemas.RoleSink}
	err := e.withRoles(c, a, f, app.Roles(), func(ctx context.Context, w *waiter) error {
		return w.until(ctx, "repairs", by, func(ctx context.Context) (app.Progress, error) {
			i, err := openIncident(ctx, a, key)
			if err != nil {
				return app.Progress{}, err
			}
			vain = i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL && i.GetRepairs() > approved.GetRepairs()
			p := app.Progress{Total: 1}
			if i == nil || vain {
				p.Done = 1
			}
			return p, nil
		})
	})
	if err == nil && vain {
		return fmt.Errorf("%w: the copy of %s is not as it should be after the repair, which waits for approval again",
			errFindings, key)
	}
	return err
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
