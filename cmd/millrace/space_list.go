package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/policy"
)

// records are what space list and space show read.
type records struct {
	policies *app.Policies
	db       *clickhouse.DB
	log      *slog.Logger
}

// withRecords calls do with the policies and the ClickHouse database.
func (f *engineFlags) withRecords(c *cobra.Command, do func(ctx context.Context, r records) error) error {
	return f.withTables(c, statedir.Config{}, func(ctx context.Context, e *engines, db *clickhouse.DB) error {
		return app.WithPolicies(ctx, e.cfg, e.log, func(ctx context.Context, p *app.Policies) error {
			return do(ctx, records{p, db, e.log})
		})
	})
}

// requireAccount returns a usage error for an account that is neither configured nor has a policy.
func requireAccount(p *app.Policies, account string) error {
	known := p.Accounts()
	if slices.Contains(known, account) {
		return nil
	}
	return fmt.Errorf("%w: there is no account %q%s", usage.Err, account, suggestion(account, known))
}

func newSpaceList() *cobra.Command {
	var (
		f     engineFlags
		since time.Duration
		o     *output
	)
	c := &cobra.Command{
		Use:   "list [ACCOUNT]",
		Short: "List the spaces that are on record, by store, and how the policy copies them",
		Long: `Lists the spaces of an account, or of all accounts, in each store that has them on record. RECORD is

  live     the space holds items. If it is missing in the store, it is expected, and its state is unknown
  empty    it was created, or held items before
  deleted  its delete is on record, and it was not created since
  gone     an operator has declared it gone (millrace space gone)

FIRST SEEN is when the first change about the space or an item in it was recorded, however old its files are:
--new 24h lists the spaces that are new.
POLICY is the part of the policy that applies: own (the space's own pairs), default, ignored or reserved (x-).
COPIES are the destinations, the sources, or the reason why the space is not copied.`,
		Args: atMostOne,
		RunE: func(c *cobra.Command, args []string) error {
			return f.withRecords(c, func(ctx context.Context, r records) error {
				return listSpaces(ctx, c, r, spaceQuery{args, since, o})
			})
		},
	}
	f.register(c)
	c.Flags().DurationVar(&since, "new", 0, "only spaces first seen within this `DURATION`, such as 24h")
	o = listFlag(c)
	return c
}

// atMostOne is a cobra.PositionalArgs.
func atMostOne(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("%w: '%s' takes at most 1 argument, got %d; see '%s --help'",
			usage.Err, c.UseLine(), len(args), c.CommandPath())
	}
	return nil
}

// A spaceQuery selects what space list prints.
type spaceQuery struct {
	accounts []string // none: all
	since    time.Duration
	output   *output
}

func listSpaces(ctx context.Context, c *cobra.Command, r records, q spaceQuery) error {
	for _, account := range q.accounts {
		if err := requireAccount(r.policies, account); err != nil {
			return err
		}
	}
	if len(q.accounts) == 0 {
		q.accounts = r.policies.Accounts()
	}
	var rows []spaceRow
	for _, account := range q.accounts {
		spaces, err := r.policies.Spaces(ctx, r.db, account, "")
		if err != nil {
			return err
		}
		for _, s := range spaces {
			if q.since == 0 || s.First.After(time.Now().Add(-q.since)) {
				rows = append(rows, spaceRowOf(s))
			}
		}
	}
	return printList(c.OutOrStdout(), q.output, rows, spaceTable())
}

// A spaceRow is a space in one store.
type spaceRow struct {
	Account   string     `json:"account"`
	Space     string     `json:"space"`
	Store     string     `json:"store"`
	Record    string     `json:"record"`
	Items     uint64     `json:"items"`
	Bytes     int64      `json:"bytes"`   // of the items with a known size
	Unsized   uint64     `json:"unsized"` // items with an unknown size
	First     *time.Time `json:"first_seen"`
	Created   *time.Time `json:"created"`
	Deleted   *time.Time `json:"deleted"`
	Gone      *time.Time `json:"gone"`
	Scope     string     `json:"policy"`
	CopiedTo  []string   `json:"copied_to"`
	CopyOf    []string   `json:"copy_of"`
	NotCopied string     `json:"not_copied"` // the reason; empty if a pair has the store
	Incidents []string   `json:"incidents"`  // keys of the open ones, of the space and its items
}

func spaceRowOf(s app.SpaceInfo) spaceRow {
	r := spaceRow{Account: s.Account, Space: s.Space, Store: s.Store, Record: s.Record, Items: s.Items, Bytes: s.Bytes,
		Unsized: s.Unsized, First: set(s.First), Created: set(s.Created), Deleted: set(s.Deleted), Gone: set(s.Gone),
		Scope: string(s.Scope), CopiedTo: filled(s.CopiedTo), CopyOf: filled(s.CopyOf), NotCopied: s.NotCopied(),
		Incidents: []string{}}
	for _, i := range s.Incidents {
		r.Incidents = append(r.Incidents, schemas.IncidentKey(i))
	}
	return r
}

// set returns a pointer to t; nil for the zero time.
func set(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// filled returns s, or an empty slice, which is an empty array in JSON.
func filled(s []string) []string { return append([]string{}, s...) }

// copies describes the pairs that have the store.
func (r spaceRow) copies() string {
	var parts []string
	if len(r.CopyOf) > 0 {
		parts = append(parts, "from "+strings.Join(r.CopyOf, ", "))
	}
	if len(r.CopiedTo) > 0 {
		parts = append(parts, "to "+strings.Join(r.CopiedTo, ", "))
	}
	if r.NotCopied != "" {
		parts = append(parts, "not copied: "+r.NotCopied)
	}
	return strings.Join(parts, "; ")
}

func spaceTable() table[spaceRow] {
	return table[spaceRow]{"SPACE\tSTORE\tRECORD\tITEMS\tBYTES\tFIRST SEEN\tPOLICY\tCOPIES\tINCIDENTS",
		func(r spaceRow) []string {
			return []string{schemas.Key(r.Account, r.Space), r.Store, r.Record, strconv.FormatUint(r.Items, 10),
				strconv.FormatInt(r.Bytes, 10), stamp(r.First), r.Scope, r.copies(), strconv.Itoa(len(r.Incidents))}
		}}
}

func newSpaceShow() *cobra.Command {
	var (
		f engineFlags
		o *output
	)
	c := &cobra.Command{
		Use:   "show ACCOUNT/SPACE",
		Short: "Show a space in each store: whether it exists, its properties, its rules and its incidents",
		Long: `Asks every store of the account for the space, and prints a row for each. STATE is

  exists   the store has the space
  absent   the store lacks it, and the store's marker was read after the store said so
  unknown  the store does not answer, its marker cannot be read, or the configuration lacks the store: ERROR says why

RECORD, POLICY and COPIES are those of millrace space list. GROWTH is the difference to the oldest count of the stats
sweep within 30 days. DELETES is the rule for deletes, with the holds; LIMIT are
the limits of the brake on deletes of copies in this store, and the deletes of the last hour and the last 30 days.
The JSON forms have the properties and the ACL, which the table counts.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			account, space, ok := strings.Cut(args[0], "/")
			if !ok || account == "" || space == "" {
				return fmt.Errorf("%w: %q is not ACCOUNT/SPACE", usage.Err, args[0])
			}
			return f.withRecords(c, func(ctx context.Context, r records) error {
				if err := requireAccount(r.policies, account); err != nil {
					return err
				}
				views, err := r.policies.SpaceViews(ctx, r.db, r.log, schemas.Copy{Account: account, Space: space})
				if err != nil {
					return err
				}
				return printList(c.OutOrStdout(), o, rowsOf(views, spaceViewOf), spaceViewTable())
			})
		},
	}
	f.register(c)
	o = listFlag(c)
	return c
}

// A spaceView is a space in one store, with the state of the store and the rules in force.
type spaceView struct {
	spaceRow
	State             string            `json:"state"`
	Error             string            `json:"error"`
	Properties        map[string]string `json:"properties"`
	ACL               map[string]string `json:"acl"`
	PropertiesUnknown bool              `json:"properties_unknown"`
	Revision          int64             `json:"policy_revision"`
	Deletes           policy.Deletes    `json:"deletes"`
	DeletesSince      *time.Time        `json:"deletes_since"` // copies of what was deleted before are kept
	Holds             []policy.Hold     `json:"holds"`
	MaxShare          float64           `json:"brake_max_share"`
	MaxCount          int64             `json:"brake_max_count"`
	Hour              int64             `json:"deletes_last_hour"`
	Month             int64             `json:"deletes_last_30_days"`
	// The oldest count within 30 days.
	CountedAt   *time.Time `json:"counted_at"`
	ItemsBefore int64      `json:"items_counted"`
	BytesBefore int64      `json:"bytes_counted"`
}

func spaceViewOf(v app.SpaceView) spaceView {
	r := spaceView{spaceRow: spaceRowOf(v.SpaceInfo), State: v.State,
		PropertiesUnknown: v.Space.PropertiesUnknown, Revision: v.Rules.Revision, Deletes: v.Rules.Deletes,
		DeletesSince: set(v.Rules.Since), Holds: append([]policy.Hold{}, v.Rules.Holds...),
		MaxShare: v.Limits.MaxShare, MaxCount: v.Limits.MaxCount, Hour: v.Hour, Month: v.Month,
		CountedAt: set(v.Before.At), ItemsBefore: v.Before.Items, BytesBefore: v.Before.Bytes}
	if v.Err != nil {
		r.Error = v.Err.Error()
	}
	if v.State == app.SpaceExists && !v.Space.PropertiesUnknown { // else null: not known to be empty
		r.Properties, r.ACL = map[string]string{}, map[string]string{}
		maps.Copy(r.Properties, v.Space.Properties)
		maps.Copy(r.ACL, v.Space.ACL)
	}
	return r
}

// about counts properties and rights.
func (v spaceView) about() string {
	switch {
	case v.State != app.SpaceExists:
		return ""
	case v.PropertiesUnknown:
		return "unknown"
	}
	return fmt.Sprintf("%d, ACL %d", len(v.Properties), len(v.ACL))
}

// growth describes how the space has grown since it was counted.
func (v spaceView) growth() string {
	if v.CountedAt == nil {
		return ""
	}
	return fmt.Sprintf("%+d items, %+d bytes since %s", int64(v.Items)-v.ItemsBefore, v.Bytes-v.BytesBefore,
		v.CountedAt.Format(time.DateOnly))
}

// rule describes the rule for deletes and the holds.
func (v spaceView) rule() string {
	text := string(v.Deletes)
	if n := len(v.Holds); n > 0 {
		text += fmt.Sprintf(", holds: %d", n)
	}
	return text
}

func spaceViewTable() table[spaceView] {
	const columns = "STORE\tSTATE\tRECORD\tITEMS\tBYTES\tGROWTH\tPROPERTIES\tPOLICY\tCOPIES\tDELETES\tLIMIT\t" +
		"INCIDENTS\tERROR"
	return table[spaceView]{columns, func(v spaceView) []string {
		limit := ""
		if len(v.CopyOf) > 0 {
			limit = fmt.Sprintf("%g, %d (%d, %d)", v.MaxShare, v.MaxCount, v.Hour, v.Month)
		}
		return []string{v.Store, v.State, v.Record, strconv.FormatUint(v.Items, 10), strconv.FormatInt(v.Bytes, 10),
			v.growth(), v.about(), v.Scope, v.copies(), v.rule(), limit, strings.Join(v.Incidents, ", "), v.Error}
	}}
}
