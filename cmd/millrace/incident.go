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
	"github.com/millrace/millrace/cmd/millrace/usage"
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
		Args:  usage.NoArgs,
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

With --wait it ends when the incident is closed, or when the steward does not order a repair, such as without a good
copy, or the repair has failed. With --state all roles run in this command until then.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: the incident is still open, 5 precondition, such as an incident
that has no repair, 130 interrupted.`,
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
				action, err := a.ApproveRepair(ctx, incident, app.Approval{Who: person(), Reason: reason, From: "cli"})
				if err != nil {
					return err
				}
				how := "the steward will order the repair"
				switch {
				case wait:
					how = "the incident is closed"
					if err := f.awaitRepair(c, e, a, incident, action); err != nil {
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
	c.Flags().BoolVar(&wait, "wait", false, "wait until the incident is closed, or its repair has failed")
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

// awaitRepair waits until an incident is closed, or its repair, which an action approved, cannot be made or has failed.
func (f *engineFlags) awaitRepair(c *cobra.Command, e *engines, a *app.App, approved *pb.Incident, action string) error {
	key, open := schemas.IncidentKey(approved), ""
	by := []schemas.Role{schemas.RoleSteward, schemas.RoleCopier, schemas.RoleChecker, schemas.RoleSink}
	err := e.withRoles(c, a, *f, app.Roles(), func(ctx context.Context, w *waiter) error {
		return w.until(ctx, "repairs", by, func(ctx context.Context) (app.Progress, error) {
			i, err := openIncident(ctx, a, key)
			if err != nil {
				return app.Progress{}, err
			}
			p := app.Progress{Total: 1}
			var over bool
			if over, open = repairEnded(i, approved, action); over {
				p.Done = 1
			}
			return p, nil
		})
	})
	if err == nil && open != "" {
		return fmt.Errorf("%w: the incident %s is still open: %s", errFindings, key, open)
	}
	return err
}

// repairEnded reports whether a repair that an action approved has come to an end, and the last step of its incident if
// that is still open. now is the newest record of the open incident of the same key, nil if there is none.
func repairEnded(now, approved *pb.Incident, action string) (over bool, open string) {
	if now == nil || now.GetId() != approved.GetId() {
		return true, ""
	}
	if now.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING {
		return false, ""
	}
	// The steward ignores an approval while a repair is under way: then the end of that one counts.
	taken := approved.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING
	for _, s := range now.GetSteps() {
		taken = taken || s.GetRef() == action
		open = s.GetAction()
		if s.GetDetail() != "" {
			open += ": " + s.GetDetail()
		}
	}
	if !taken {
		return false, ""
	}
	return true, open
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
