package main

import (
	"context"
	"errors"
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
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/incident"
)

func newIncident() *cobra.Command {
	return noun("incident", "List, approve, accept, refuse and close incidents",
		newIncidentList(), newIncidentShow(), newIncidentApprove(), newIncidentAccept(), newIncidentRefuse(),
		newIncidentClose())
}

func newIncidentList() *cobra.Command {
	var (
		f       engineFlags
		account string
		pending bool
		all     bool
		members bool
		o       *output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List open incidents, or checks that may become incidents",
		Long: `Lists the open incidents of copies, tables, spaces, policies and records, the oldest first.

Incidents with one cause have an open incident as parent, repairs-held or incidents-grouped. Only the parent is
listed, with their number; --children lists them too.

With --all it lists closed incidents too. Several of them may have the same key.

With --pending it lists the copies with a check of the last 35 days that is not concluded yet: the preliminary
verdict, since when, and the time of the next check. An incident is opened only when a check is concluded.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if pending && all {
				return fmt.Errorf("%w: --pending and --all exclude each other", usage.Err)
			}
			if pending {
				return listPending(c, f, o, account)
			}
			list := read.OpenIncidents
			if all {
				list = read.Incidents
			}
			var incidents []*pb.Incident
			err := f.withDB(c, func(ctx context.Context, db *clickhouse.DB) (err error) {
				incidents, err = list(ctx, db, account)
				return err
			})
			if err != nil {
				return err
			}
			return printList(c.OutOrStdout(), o, incidentRows(incidents, members), incidentTable())
		},
	}
	f.register(c)
	c.Flags().StringVar(&account, "account", "", "only of this `ACCOUNT`")
	c.Flags().BoolVar(&pending, "pending", false, "list copies with checks that are not concluded yet")
	c.Flags().BoolVar(&all, "all", false, "list closed incidents too")
	c.Flags().BoolVar(&members, "children", false, "list the incidents that have an open parent, too")
	o = listFlag(c)
	return c
}

// pendingDays is the age in days up to which unconcluded checks are listed.
const pendingDays = 35

// listPending prints the copies with checks that are not concluded yet.
func listPending(c *cobra.Command, f engineFlags, o *output, account string) error {
	rows := []pendingRow{}
	err := f.withDB(c, func(ctx context.Context, db *clickhouse.DB) error {
		all, err := read.Pending(ctx, db, account, time.Now().AddDate(0, 0, -pendingDays))
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

// A pendingRow is a copy with an unconcluded check in a list.
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

// An incidentRow is an incident in a list.
type incidentRow struct {
	Key     string     `json:"key"` // the argument of approve
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
	Closed  *time.Time `json:"closed"` // null: it is open
	Repairs int32      `json:"repairs"`
	Last    string     `json:"last_step"` // with its detail
	// Parent is the id of the incident that stands for this one and others; empty: none does. Children is the number of
	// the open ones.
	Parent   string `json:"parent"`
	Children int    `json:"children"`
}

func incidentOf(i *pb.Incident) incidentRow {
	return incidentRow{
		Key: schemas.IncidentKey(i), ID: i.GetId(), Account: i.GetAccount(), Store: i.GetStore(), Space: i.GetSpace(),
		Item: i.GetItem(), Kind: i.GetKind(), Subject: i.GetSubject(), State: incidentState(i.GetState()), Row: i.GetRow(),
		Opened: timeOf(i.GetOpened()), Updated: timeOf(i.GetUpdated()), Closed: timeOf(i.GetClosed()),
		Repairs: i.GetRepairs(), Last: lastStep(i), Parent: i.GetParent(),
	}
}

// lastStep returns the latest step of an incident, with its detail.
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

// incidentTable returns the table of incidents.
func incidentTable() table[incidentRow] {
	return table[incidentRow]{"KEY\tSTATE\tROW\tOPENED\tLAST STEP", func(r incidentRow) []string {
		return []string{r.Key, r.State, strconv.Itoa(int(r.Row)), stamp(r.Opened), r.Last + childrenOf(r)}
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
		Short: "Approve the repair of an incident, or a list of deletes or rewrites",
		Long: `Publishes the approval of a repair. The roles steward, copier and checker carry it out.

Of an incident resurrected it approves the delete of the copy that came back, by the roles steward and deleter, if it
is still the object that the check has found and no later event is on record. Of an incident not-captured-update it
approves the record of the update, as 'incident accept' does.

Of an incident repairs-held it approves the repairs of all missing copies of the space, also of those that are found
while the incident is open. The steward orders them within seconds.

Of an incident deletes-held it approves the deletes that are on its list now. The roles steward and deleter carry them
out, if the sources are still deleted and were not deleted again later. Later deletes come to another list.

Of an incident rewrites-held it approves the contents that are on its list now. The roles steward, deleter and copier
carry them out. A later content comes to another list.

With --wait the command ends when the incident is closed, when the repair has failed, or when the steward does not
order a repair, for example because there is no good copy. With --state all roles run in this command until then.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: the incident is still open, 5 precondition, such as an incident
that has no repair, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				open, err := requireOpenIncident(ctx, a, args[0])
				if err != nil {
					return err
				}
				by := app.Actor{Who: currentUser(), Reason: reason, From: "cli"}
				action, how, err := approve(ctx, a, open, by)
				if err != nil {
					return err
				}
				switch {
				case wait:
					how = "the incident is closed"
					if err := f.awaitRepairs(c, e, a, []approval{{open, action}}); err != nil {
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
	c.Flags().StringVar(&reason, "reason", "", "the reason, which is recorded")
	c.Flags().BoolVar(&wait, "wait", false, "wait until the incident is closed, or its repair has failed")
	return c
}

// approve publishes an approval. It returns the id of the action, and what follows.
func approve(ctx context.Context, a *app.App, i *pb.Incident, by app.Actor) (action, how string, err error) {
	switch {
	case i.GetKind() == "resurrected":
		action, err = a.ApproveRepair(ctx, i, by)
		return action, "the deleter will delete the copy", err
	case !app.HasList(i.GetKind()):
		action, err = a.ApproveRepair(ctx, i, by)
		return action, "the steward will order the repair", err
	}
	action, n, err := a.ApproveList(ctx, i, by)
	if i.GetKind() == incident.RewritesHeld {
		return action, fmt.Sprintf("the copier will do the %d rewrites that are on the list", n), err
	}
	return action, fmt.Sprintf("the deleter will do the %d deletes that are on the list", n), err
}

func newIncidentClose() *cobra.Command {
	var (
		f      engineFlags
		reason string
	)
	c := &cobra.Command{
		Use:   "close KEY",
		Short: "Close an incident",
		Long: `Closes an open incident, and records the user and the reason.

A running steward closes an incident of a copy. A later check that passes closes such an incident too, and a check
that finds the fault again opens a new one. An incident of a table, a space or a policy is opened again while its cause
exists. An incident of an unreadable record stays closed, and the record is skipped from then on.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			if reason == "" {
				return fmt.Errorf("%w: --reason is missing: it is recorded", usage.Err)
			}
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				open, err := requireOpenIncident(ctx, a, args[0])
				if err != nil {
					return err
				}
				by := app.Actor{Who: currentUser(), Reason: reason, From: "cli"}
				if err := a.CloseIncident(ctx, open, by); err != nil {
					return err
				}
				how := "closed"
				switch {
				case open.GetItem() == "":
				case e.state != nil:
					how = f.laterWithState("it is closed")
				default:
					how = "the steward will close it"
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "close %s: %s\n", schemas.IncidentKey(open), how)
				return err
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "the reason, which is recorded")
	return c
}

// requireOpenIncident returns the open incident with a key, or an error if there is none.
func requireOpenIncident(ctx context.Context, a *app.App, key string) (*pb.Incident, error) {
	i, err := openIncident(ctx, a, key)
	if err == nil && i == nil {
		err = fmt.Errorf("no open incident has the key %q: see 'millrace incident list'", key)
	}
	return i, err
}

// escapeIncidentKeys changes arguments so that no incident key looks like a flag: the key of an
// incident without an account starts with "-/", and the dash is removed. openIncident accepts keys
// without it.
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

// openIncident returns the open incident with a key; nil if there is none.
func openIncident(ctx context.Context, a *app.App, key string) (*pb.Incident, error) {
	open, err := read.OpenIncidents(ctx, a.DB(), "")
	if err != nil {
		return nil, fmt.Errorf("read the incidents: %w", err)
	}
	return withKey(open, key), nil
}

// withKey returns the incident with a key; nil if there is none.
func withKey(incidents []*pb.Incident, key string) *pb.Incident {
	for _, i := range incidents {
		if k := schemas.IncidentKey(i); k == key || k == "-"+key {
			return i
		}
	}
	return nil
}

// An approval is an action about an incident, which was as it is here.
type approval struct {
	incident *pb.Incident
	action   string // its id
}

// awaitRepairs waits until each approved incident is closed, or its repair has failed or cannot be
// made. The error names the incidents that are still open.
func (f *engineFlags) awaitRepairs(c *cobra.Command, e *engines, a *app.App, approved []approval) error {
	by := []schemas.Role{schemas.RoleSteward, schemas.RoleCopier, schemas.RoleChecker, schemas.RoleSink}
	if k := approved[0].incident.GetKind(); app.HasList(k) || k == "resurrected" {
		by = append(by, schemas.RoleDeleter)
	}
	var open []error
	err := e.withRoles(c, a, *f, app.Roles(), func(ctx context.Context, w *waiter) error {
		return w.until(ctx, "repairs", by, func(ctx context.Context) (app.Progress, error) {
			now, err := read.OpenIncidents(ctx, a.DB(), "")
			if err != nil {
				return app.Progress{}, fmt.Errorf("read the incidents: %w", err)
			}
			p := app.Progress{Total: int64(len(approved))}
			open = nil
			for _, on := range approved {
				key := schemas.IncidentKey(on.incident)
				over, last := repairEnded(withKey(now, key), on.incident, on.action)
				if over {
					p.Done++
				}
				if last != "" {
					open = append(open, fmt.Errorf("%w: the incident %s is still open: %s", errFindings, key, last))
				}
			}
			return p, nil
		})
	})
	if err == nil {
		err = errors.Join(open...)
	}
	return err
}

// repairEnded reports whether the repair approved by an action has ended, and, if the incident is
// still open, its last step. now is the present state of the open incident with the same key; nil
// if there is none.
func repairEnded(now, approved *pb.Incident, action string) (over bool, open string) {
	if now == nil || now.GetId() != approved.GetId() {
		return true, ""
	}
	if now.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING {
		return false, ""
	}
	// During a repair the steward ignores an approval. Then the end of that repair counts.
	taken := approved.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING
	for _, s := range now.GetSteps() {
		taken = taken || s.GetRef() == action
	}
	if !taken {
		return false, ""
	}
	return true, lastStep(now)
}

// currentUser returns the name of the user who runs the command.
func currentUser() string {
	u, err := user.Current()
	if err != nil {
		return "unknown"
	}
	return u.Username
}

// incidentState returns the name of an incident's state, as it is printed.
func incidentState(s pb.IncidentState) string {
	word := strings.TrimPrefix(s.String(), "INCIDENT_STATE_")
	return strings.ReplaceAll(strings.ToLower(word), "_", "-")
}
