package main

import (
	"context"
	"fmt"
	"os/user"
	"slices"
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
	return noun("incident", "Look at what is wrong, and decide", newIncidentList(), newIncidentApprove(), newIncidentClose())
}

func newIncidentList() *cobra.Command {
	var (
		f       engineFlags
		account string
		pending bool
		o       *output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List open incidents, or what may become one",
		Long: `Lists open incidents: those of copies, and those of a table, a space, a policy or a record.

With --pending it lists the copies of which the newest check, of the last 35 days, has concluded nothing yet: what
it would conclude, since when, and when the copy is checked again. There is an incident only when a check has
concluded something.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if pending {
				return listPending(c, f, o, account)
			}
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
	c.Flags().BoolVar(&pending, "pending", false, "list copies of which nothing is concluded yet")
	o = listFlag(c)
	return c
}

// pendingDays is how far back checks are looked for that have concluded nothing.
const pendingDays = 35

// listPending prints the copies of which nothing is concluded yet.
func listPending(c *cobra.Command, f engineFlags, o *output, account string) error {
	rows := []pendingRow{}
	err := f.withDB(c, func(ctx context.Context, db *clickhouse.DB) error {
		all, err := db.Pending(ctx, account, time.Now().AddDate(0, 0, -pendingDays))
		for _, p := range all {
			rows = append(rows, pendingRow{p.Account, p.Store, p.Space, p.Item,
				p.Verdict, p.Finding, int32(p.Row), p.Since, p.Next, p.Checks})
		}
		return err
	})
	if err != nil {
		return err
	}
	cells := func(r pendingRow) []string {
		return []string{schemas.Key(r.Account, r.Store, r.Space, r.Item), r.Verdict, r.Finding, strconv.Itoa(int(r.Row)),
			stamp(&r.Since), stamp(&r.Next)}
	}
	return printList(c.OutOrStdout(), o, rows,
		table[pendingRow]{"COPY\tVERDICT\tFINDING\tROW\tSINCE\tNEXT CHECK", cells})
}

// A pendingRow is what a list says of one copy of which nothing is concluded yet.
type pendingRow struct {
	Account string    `json:"account"`
	Store   string    `json:"store"`
	Space   string    `json:"space"`
	Item    string    `json:"item"`
	Verdict string    `json:"verdict"`
	Finding string    `json:"finding"`
	Row     int32     `json:"row"`
	Since   time.Time `json:"since"`
	Next    time.Time `json:"next"`
	Checks  uint64    `json:"checks"`
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
	Subject string     `json:"subject"`
	State   string     `json:"state"`
	Row     int32      `json:"row"`
	Opened  *time.Time `json:"opened"`
	Updated *time.Time `json:"updated"`
	Repairs int32      `json:"repairs"`
	Last    string     `json:"last_step"` // with its detail
}

func incidentOf(i *pb.Incident) incidentRow {
	return incidentRow{
		Key: schemas.IncidentKey(i), ID: i.GetId(), Account: i.GetAccount(), Store: i.GetStore(), Space: i.GetSpace(),
		Item: i.GetItem(), Kind: i.GetKind(), Subject: i.GetSubject(), State: incidentState(i.GetState()), Row: i.GetRow(),
		Opened: timeOf(i.GetOpened()), Updated: timeOf(i.GetUpdated()), Repairs: i.GetRepairs(),
		Last: lastStep(i),
	}
}

// lastStep is the newest step of an incident, with its detail.
func lastStep(i *pb.Incident) string {
	n := len(i.GetSteps())
	if n == 0 {
		return ""
	}
	s := i.GetSteps()[n-1]
	if s.GetDetail() == "" {
		return s.GetAction()
	}
	return s.GetAction() + ": " + s.GetDetail()
}

// incidentTable is the table of incidents.
func incidentTable() table[incidentRow] {
	return table[incidentRow]{"KEY\tSTATE\tROW\tOPENED\tLAST STEP", func(r incidentRow) []string {
		return []string{r.Key, r.State, strconv.Itoa(int(r.Row)), stamp(r.Opened), r.Last}
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
				incident, err := requireOpenIncident(ctx, a, args[0])
				if err != nil {
					return err
				}
				action, err := a.ApproveRepair(ctx, incident, app.Approval{Who: currentUser(), Reason: reason, From: "cli"})
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
					how = f.laterWithState("it is carried out")
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

func newIncidentClose() *cobra.Command {
	var (
		f      engineFlags
		reason string
	)
	c := &cobra.Command{
		Use:   "close KEY",
		Short: "Close an incident of which a person knows that it is over",
		Long: `Closes an open incident, and records who did it and why.

An incident of a copy is closed by a running steward; a later check that passes closes it too, and one that finds
the fault again opens a new one. An incident of a table, a space or a policy is opened again while its cause is
there; one of a record that cannot be read stays closed, and the record is passed over from then on.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			if reason == "" {
				return fmt.Errorf("%w: say with --reason why, for the record", usage.Err)
			}
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				incident, err := requireOpenIncident(ctx, a, args[0])
				if err != nil {
					return err
				}
				if err := a.CloseIncident(ctx, incident, app.Approval{Who: currentUser(), Reason: reason, From: "cli"}); err != nil {
					return err
				}
				how := "closed"
				switch {
				case incident.GetItem() == "":
				case e.state != nil:
					how = f.laterWithState("it is closed")
				default:
					how = "the steward will close it"
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "close %s: %s\n", schemas.IncidentKey(incident), how)
				return err
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return c
}

// mustBeOpen returns the open incident of a key.
func requireOpenIncident(ctx context.Context, a *app.App, key string) (*pb.Incident, error) {
	i, err := openIncident(ctx, a, key)
	if err == nil && i == nil {
		err = fmt.Errorf("no open incident has the key %q: see 'millrace incident list'", key)
	}
	return i, err
}

// withKeys returns the arguments of the command line in a form in which no key of an incident looks like a flag: the
// account of incidents that are of none, "-", is left out, and openIncident knows them without it.
func escapeIncidentKeys(args []string) []string {
	if len(args) == 0 || args[0] != "incident" {
		return args
	}
	args = slices.Clone(args)
	for i, a := range args {
		if strings.HasPrefix(a, "-/") {
			args[i] = a[1:]
		}
	}
	return args
}

// openIncident returns the open incident of a key, nil if there is none.
func openIncident(ctx context.Context, a *app.App, key string) (*pb.Incident, error) {
	open, err := a.DB().OpenIncidents(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read the incidents: %w", err)
	}
	for _, i := range open {
		if k := schemas.IncidentKey(i); k == key || k == "-"+key {
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
	}
	if !taken {
		return false, ""
	}
	return true, lastStep(now)
}

// person is who sits at the keyboard, as far as the machine knows.
func currentUser() string {
	u, err := user.Current()
	if err != nil {
		return "unknown"
	}
	return u.Username
}

// stateWord is an incident's state as people say it.
func incidentState(s pb.IncidentState) string {
	word := strings.TrimPrefix(s.String(), "INCIDENT_STATE_")
	return strings.ReplaceAll(strings.ToLower(word), "_", "-")
}
