package main

import (
	"context"
	"fmt"
	"log/slog"
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
	var since time.Duration
	c := listing(&cobra.Command{
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
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		return f.withRecords(c, func(ctx context.Context, r records) error {
			return listSpaces(ctx, c, r, spaceQuery{args, since, o})
		})
	})
	c.Flags().DurationVar(&since, "new", 0, "only spaces first seen within this `DURATION`, such as 24h")
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
	var rows []app.SpaceInfo
	for _, account := range q.accounts {
		spaces, err := r.policies.Spaces(ctx, r.db, account, "")
		if err != nil {
			return err
		}
		for _, s := range spaces {
			if q.since == 0 || s.First != nil && s.First.After(time.Now().Add(-q.since)) {
				rows = append(rows, s)
			}
		}
	}
	return printList(c.OutOrStdout(), q.output, rows, spaceTable())
}

// set returns a pointer to t; nil for the zero time.
func set(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// copiesText describes the pairs that have the store.
func copiesText(r app.SpaceInfo) string {
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

func spaceTable() table[app.SpaceInfo] {
	return table[app.SpaceInfo]{"SPACE\tSTORE\tRECORD\tITEMS\tBYTES\tFIRST SEEN\tPOLICY\tCOPIES\tINCIDENTS",
		func(r app.SpaceInfo) []string {
			return []string{schemas.Key(r.Account, r.Space), r.Store, r.Record, strconv.FormatUint(r.Items, 10),
				strconv.FormatInt(r.Bytes, 10), stamp(r.First), string(r.Scope), copiesText(r),
				strconv.Itoa(len(r.Incidents))}
		}}
}

func newSpaceShow() *cobra.Command {
	return listing(&cobra.Command{
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
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
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
			return printList(c.OutOrStdout(), o, views, spaceViewTable())
		})
	})
}

// aboutText counts properties and rights.
func aboutText(v app.SpaceView) string {
	switch {
	case v.State != app.SpaceExists:
		return ""
	case v.PropertiesUnknown:
		return "unknown"
	}
	return fmt.Sprintf("%d, ACL %d", len(v.Properties), len(v.ACL))
}

// growthText describes how the space has grown since it was counted.
func growthText(v app.SpaceView) string {
	if v.CountedAt == nil {
		return ""
	}
	return fmt.Sprintf("%+d items, %+d bytes since %s", int64(v.Items)-v.ItemsBefore, v.Bytes-v.BytesBefore,
		v.CountedAt.Format(time.DateOnly))
}

// ruleText describes the rule for deletes and the holds.
func ruleText(v app.SpaceView) string {
	text := string(v.Deletes)
	if n := len(v.Holds); n > 0 {
		text += fmt.Sprintf(", holds: %d", n)
	}
	return text
}

func spaceViewTable() table[app.SpaceView] {
	const columns = "STORE\tSTATE\tRECORD\tITEMS\tBYTES\tGROWTH\tPROPERTIES\tPOLICY\tCOPIES\tDELETES\tLIMIT\t" +
		"INCIDENTS\tERROR"
	return table[app.SpaceView]{columns, func(v app.SpaceView) []string {
		limit := ""
		if len(v.CopyOf) > 0 {
			limit = fmt.Sprintf("%g, %d (%d, %d)", v.MaxShare, v.MaxCount, v.Hour, v.Month)
		}
		return []string{v.Store, v.State, v.Record, strconv.FormatUint(v.Items, 10), strconv.FormatInt(v.Bytes, 10),
			growthText(v), aboutText(v), string(v.Scope), copiesText(v.SpaceInfo), ruleText(v), limit,
			strings.Join(v.Incidents, ", "), v.Error}
	}}
}
