package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// showPage is the number of items of a list that are read at once.
const showPage = 10_000

func newIncidentShow() *cobra.Command {
	var (
		f     engineFlags
		after string
		limit int
		o     *output
	)
	c := &cobra.Command{
		Use:   "show KEY",
		Short: "Show what is on a held list, or the steps of an incident",
		Long: `Lists the items of an incident deletes-held, rewrites-held or repairs-held: when the source was deleted or
changed, since when the effect waits and why, and its result, or that of the restore, once the list was approved or
refused. The items are in the order of their ids; --after continues a list.

Of an incident of another kind it lists the steps.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.withApp(c, func(ctx context.Context, a *app.App, _ *engines) error {
				open, err := openIncidents(ctx, a)
				if err != nil {
					return err
				}
				i, err := open.require(args[0])
				if err != nil {
					if i = app.ListOfKey(args[0]); i == nil { // the items of a list are on record after it was closed
						return err
					}
				}
				if !app.HasList(i.GetKind()) {
					rows := []stepRow{}
					for _, s := range i.GetSteps() {
						rows = append(rows, stepRow{s.GetTime().AsTime(), s.GetAction(), s.GetBy(), s.GetDetail(), s.GetRef()})
					}
					return printList(c.OutOrStdout(), o, rows, stepTable())
				}
				q, _, err := app.QueryOfList(ctx, a.DB(), i)
				if err != nil {
					return err
				}
				q.After = after
				l := list[heldRow]{w: c.OutOrStdout(), form: o.form, table: heldTable()}
				return printHeld(ctx, a.DB(), l, q, limit)
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&after, "after", "", "only items after this `ITEM`")
	c.Flags().IntVar(&limit, "limit", 0, "at most `N` items; 0: all")
	o = listFlag(c)
	return c
}

// printHeld prints the items of a list of deletes, rewrites or repairs with l, page by page.
func printHeld(ctx context.Context, db *clickhouse.DB, l list[heldRow], q read.ListQuery, limit int) error {
	for left := cmp.Or(limit, math.MaxInt); left > 0; {
		q.Limit = min(left, showPage)
		page, err := read.ListedDeletes(ctx, db, q)
		if err != nil {
			return err
		}
		rows := rowsOf(page, func(d read.ListedDelete) heldRow {
			return heldRow{d.Item, d.SourceStore, d.Deleted, d.Listed, d.Version, d.Detail, d.Result, d.Why}
		})
		if err := l.print(rows); err != nil {
			return err
		}
		if len(page) < q.Limit {
			break
		}
		left -= len(page)
		q.After = page[len(page)-1].Item
	}
	if !l.started && q.After == "" && q.Until == nil {
		return fmt.Errorf("%w: nothing of the list is on record", app.ErrNothingWaits)
	}
	return l.end()
}

// A heldRow is a delete, rewrite or repair on a list.
type heldRow struct {
	Item    string    `json:"item"` // empty: the space itself
	Source  string    `json:"source_store"`
	Deleted time.Time `json:"deleted"` // of a rewrite: when the source was changed
	Listed  time.Time `json:"waits_since"`
	Version string    `json:"source_version,omitempty"` // of a rewrite
	Cause   string    `json:"cause"`
	Result  string    `json:"result"` // after the decision; empty: none yet
	Why     string    `json:"why"`    // the detail of the result
}

func heldTable() table[heldRow] {
	return table[heldRow]{"ITEM\tSOURCE CHANGED\tWAITS SINCE\tCAUSE\tRESULT\tWHY", func(r heldRow) []string {
		return []string{
			cmp.Or(r.Item, "(the space)"), stamp(&r.Deleted), stamp(&r.Listed), r.Cause, r.Result, r.Why}
	}}
}

// A stepRow is a step of an incident.
type stepRow struct {
	Time   time.Time `json:"time"`
	Action string    `json:"action"`
	By     string    `json:"by"`
	Detail string    `json:"detail"`
	Ref    string    `json:"ref"`
}

func stepTable() table[stepRow] {
	return table[stepRow]{"TIME\tSTEP\tBY\tDETAIL", func(r stepRow) []string {
		return []string{stamp(&r.Time), r.Action, r.By, r.Detail}
	}}
}
