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
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/held"
)

func newIncident() *cobra.Command {
	return noun("incident", "List, check, approve, accept, refuse and close incidents",
		newIncidentList(), newIncidentShow(), newIncidentApprove(), newIncidentAccept(), newIncidentRefuse(),
		newIncidentClose(), newIncidentCheck())
}

// incidentFilter are the flags that select the incidents of a list.
type incidentFilter struct {
	of               schemas.Copy
	kinds            []string
	since, olderThan string
	pending, all     bool
	groups           bool
}

func (f *incidentFilter) register(c *cobra.Command) {
	c.Flags().StringVar(&f.of.Account, "account", "", "only of this `ACCOUNT`")
	c.Flags().StringVar(&f.of.Store, "store", "", "only of the store of this `ID`")
	c.Flags().StringVar(&f.of.Space, "space", "", "only of this `SPACE`")
	c.Flags().StringSliceVar(&f.kinds, "kind", nil, "only of this `KIND`; repeatable, or a list with commas")
	c.Flags().StringVar(&f.since, "since", "",
		"only incidents opened since this `TIME`, or in the last such period: 2006-01-02T15:04:05Z, 90m, 7d")
	c.Flags().StringVar(&f.olderThan, "older-than", "", "only incidents opened longer ago than this `DURATION`: 90m, 7d")
	c.Flags().BoolVar(&f.pending, "pending", false, "list copies with checks that are not concluded yet")
	c.Flags().BoolVar(&f.all, "all", false, "list closed incidents too")
	c.Flags().BoolVar(&f.groups, "groups", false, "count the open incidents of each account, store, space and kind")
}

// selection converts the flags. It is pure.
func (f *incidentFilter) selection(now time.Time) (s read.IncidentSelection, err error) {
	s = read.IncidentSelection{Of: f.of, Kinds: f.kinds, Closed: f.all}
	if f.pending && (f.all || f.groups || len(f.kinds) > 0 || f.since != "" || f.olderThan != "") {
		return s, fmt.Errorf("%w: --pending takes --account, --store and --space, and no other flag that selects", usage.Err)
	}
	if f.groups && f.all {
		return s, fmt.Errorf("%w: --groups counts open incidents, and takes no --all", usage.Err)
	}
	if f.since != "" {
		if s.Since, err = sinceTime(f.since, now); err != nil {
			return s, err
		}
	}
	if f.olderThan != "" {
		age, err := config.ParseDuration(f.olderThan)
		if err != nil || age < 0 {
			return s, fmt.Errorf("%w: --older-than is a duration such as 90m, 24h or 7d, not %q", usage.Err, f.olderThan)
		}
		s.Before = now.Add(-age)
	}
	return s, nil
}

func newIncidentList() *cobra.Command {
	var by incidentFilter
	c := listing(&cobra.Command{
		Use:   "list",
		Short: "List open incidents, or checks that may become incidents",
		Long: `Lists the open incidents of copies, tables, spaces, policies and records, the oldest first.

Open lists of deletes, or of rewrites, of one space at several destinations are one line, unless the output is json or
ndjson. Its key, --event ACCOUNT/SPACE, is the argument with which 'incident approve', 'refuse' and 'close' decide
about all of them.

With --groups it prints, instead of each incident, the number of those of each account, store, space and kind, and of
those that wait for approval.

With --all it lists closed incidents too, several of which may have the same key, and how many copies are kept still by
the decision about a list that was closed or refused.

With --pending it lists the copies with a check of the last 35 days that is not concluded yet: the preliminary
verdict, since when, and the time of the next check. An incident is opened only when a check is concluded.`,
		Args: usage.NoArgs,
	}, func(c *cobra.Command, _ []string, f *engineFlags, o *output) error {
		selection, err := by.selection(time.Now())
		if err != nil {
			return err
		}
		switch {
		case by.pending:
			return listPending(c, *f, o, by.of)
		case by.groups:
			return listGroups(c, *f, o, selection)
		}
		var rows []incidentRow
		err = f.withDB(c, func(ctx context.Context, db *clickhouse.DB) error {
			incidents, err := read.SelectIncidents(ctx, db, selection)
			rows = rowsOf(incidents, incidentOf)
			for n, i := range incidents {
				if err == nil && i.GetState() == pb.IncidentState_INCIDENT_STATE_CLOSED && app.HasList(i.GetKind()) {
					err = rows[n].keptBy(app.KeptBy(ctx, db, i))
				}
			}
			return err
		})
		if err != nil {
			return err
		}
		if o.form == formTable {
			rows = byEvent(rows)
		}
		return printList(c.OutOrStdout(), o, rows, incidentTable())
	})
	by.register(c)
	return c
}

// listGroups prints the numbers of open incidents by account, store, space and kind.
func listGroups(c *cobra.Command, f engineFlags, o *output, s read.IncidentSelection) error {
	rows := []read.IncidentGroup{}
	err := f.withDB(c, func(ctx context.Context, db *clickhouse.DB) (err error) {
		rows, err = read.GroupIncidents(ctx, db, s)
		return err
	})
	if err != nil {
		return err
	}
	return printList(c.OutOrStdout(), o, rows,
		table[read.IncidentGroup]{"ACCOUNT\tSTORE\tSPACE\tKIND\tOPEN\tWAITING\tOLDEST", func(r read.IncidentGroup) []string {
			return []string{r.Account, r.Store, r.Space, r.Kind, fmt.Sprint(r.Open), fmt.Sprint(r.Waiting), stamp(&r.Oldest)}
		}})
}

// pendingDays is the age in days up to which unconcluded checks are listed.
const pendingDays = 35

// listPending prints the copies with checks that are not concluded yet.
func listPending(c *cobra.Command, f engineFlags, o *output, of schemas.Copy) error {
	rows := []pendingRow{}
	err := f.withDB(c, func(ctx context.Context, db *clickhouse.DB) error {
		all, err := read.Pending(ctx, db, of, time.Now().AddDate(0, 0, -pendingDays))
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
	Key     string     `json:"key"` // the argument of the commands that decide
	ID      string     `json:"id"`
	Account string     `json:"account"`
	Store   string     `json:"store"`
	Space   string     `json:"space"`
	Item    string     `json:"item"`
	Kind    string     `json:"kind"`
	Subject string     `json:"subject"`
	Event   string     `json:"event"` // of an open list: the argument of --event of the commands that decide
	State   string     `json:"state"`
	Row     int32      `json:"row"`
	Opened  *time.Time `json:"opened"`
	Updated *time.Time `json:"updated"`
	Closed  *time.Time `json:"closed"` // null: it is open
	Repairs int32      `json:"repairs"`
	Last    string     `json:"last_step"` // with its detail
	// Expected and Found are digests by algorithm. Without digests they are null or empty.
	Expected map[string]string `json:"expected"`
	Found    map[string]string `json:"found"`
	Kept     int64             `json:"kept"` // copies that the decision about a closed list keeps still
	kept     string            // that, as text
}

func incidentOf(i *pb.Incident) incidentRow {
	return incidentRow{
		Key: schemas.IncidentKey(i), ID: i.GetId(), Account: i.GetAccount(), Store: i.GetStore(), Space: i.GetSpace(),
		Item: i.GetItem(), Kind: i.GetKind(), Subject: i.GetSubject(), Event: app.EventOf(i),
		State: incidentState(i.GetState()), Row: i.GetRow(),
		Opened: timeOf(i.GetOpened()), Updated: timeOf(i.GetUpdated()), Closed: timeOf(i.GetClosed()),
		Repairs: i.GetRepairs(), Last: lastStep(i), Expected: i.GetExpected(), Found: i.GetFound(),
	}
}

// keptBy adds the number of copies that a decision keeps.
func (r *incidentRow) keptBy(d held.Decision, n int64, err error) error {
	if r.Kept = n; n > 0 {
		r.kept = fmt.Sprintf("; %d copies are kept as they are by decision of %s, %s", n, d.By,
			d.At.UTC().Format(time.DateOnly))
	}
	return err
}

// byEvent returns rows with one row for several lists of one kind and event, in place of the first of them. Its key is
// the argument that names them all, and its last step has those of the lists.
func byEvent(rows []incidentRow) (all []incidentRow) {
	type event struct{ of, kind string }
	lists := map[event][]incidentRow{}
	for _, r := range rows {
		lists[event{r.Event, r.Kind}] = append(lists[event{r.Event, r.Kind}], r)
	}
	for _, r := range rows {
		of := lists[event{r.Event, r.Kind}]
		switch {
		case r.Event == "" || len(of) == 1:
		case r.Key != of[0].Key:
			continue
		default:
			r.Key, r.Last = "--event "+r.Event, r.Kind
			for _, l := range of {
				r.Last += fmt.Sprintf("; store %s, %s, %s: %s", l.Store, l.Subject, l.State, l.Last)
			}
			r.State = fmt.Sprintf("%d lists", len(of))
		}
		all = append(all, r)
	}
	return all
}

// lastStep returns the latest step of an incident, with its detail.
func lastStep(i *pb.Incident) string {
	n := len(i.GetSteps())
	if n == 0 {
		return ""
	}
	return stepText(i.GetSteps()[n-1])
}

// stepText returns a step and its detail.
func stepText(s *pb.IncidentStep) string {
	if s.GetDetail() == "" {
		return s.GetAction()
	}
	return s.GetAction() + ": " + s.GetDetail()
}

// incidentTable returns the table of incidents.
func incidentTable() table[incidentRow] {
	return table[incidentRow]{"KEY\tSTATE\tROW\tOPENED\tLAST STEP", func(r incidentRow) []string {
		return []string{r.Key, r.State, strconv.Itoa(int(r.Row)), stamp(r.Opened), r.Last + r.kept}
	}}
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
