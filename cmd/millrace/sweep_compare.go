package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// A comparison is the result of a sweep that compares listings.
type comparison struct {
	sweep  string
	counts []countedItems
	splits []comparedSplit
}

// countedItems are items with one finding.
type countedItems struct {
	key, text string
}

// A comparedSplit is the result for one space.
type comparedSplit struct {
	account, store, destination, space, round string // destination: of a pair
	counts                                    map[string]int64
}

// reconciled are the findings of the reconcile sweep, in the order in which they are printed.
var reconciled = []countedItems{
	{"equal", "as on record"},
	{"adopted", "adopted: no event had reported them"},
	{"updated", "updated: another program had replaced them"},
	{"deleted", "reported as deleted: missing in two rounds, and other programs write to the store"},
	{"different", "not as on record: they are checked"},
	{"resurrected", "there, and on record as deleted: they are checked"},
	{"lost", "missing in two rounds: they are checked"},
	{"missing", "missing for the first time: the next round looks again"},
	{"unsettled", "being written: the next round looks again"},
	{"unknown", "that the store does not show, or that no message can report"},
	{"inconclusive", "missing, which is too much of the space: nothing is concluded, see 'millrace incident list'"},
}

// comparedPairs are those of the duplication sweep.
var comparedPairs = []countedItems{
	{"equal", "equal"},
	{"missing", "missing at the destination"},
	{"different", "of other size, digests or properties at the destination"},
	{"extra", "only at the destination"},
	{"excluded", "excluded by the policy"},
	{"unknown", "that cannot be compared"},
}

// total returns the number of items with a finding.
func (r *comparison) total(key string) (n int64) {
	for _, s := range r.splits {
		n += s.counts[key]
	}
	return n
}

// compare runs a round of a sweep that compares listings, over the selected spaces.
func (f *sweepFlags) compare(c *cobra.Command, name string) error {
	report := comparison{sweep: name, counts: reconciled}
	ask, by := f.reconcile, []schemas.Role{schemas.RolePlanner, schemas.RoleSink}
	if name == app.DuplicationSweep {
		report.counts, ask, by = comparedPairs, f.comparePairs, []schemas.Role{schemas.RoleCopier, schemas.RoleSink}
	}
	err := f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
		return e.withRoles(c, a, f.engineFlags, rolesWithoutSweeper(), func(ctx context.Context, w *waiter) error {
			var found atomic.Int64
			err := w.waitWhile(ctx, "findings", by, found.Load, func(ctx context.Context) (err error) {
				report.splits, err = ask(ctx, a, func(n int64) { found.Add(n) })
				return err
			})
			if err != nil || !f.wait {
				return err
			}
			return waitForFindings(ctx, w, a)
		})
	})
	// Report what was found even if a later space fails or the command is interrupted.
	if err == nil || len(report.splits) > 0 {
		err = errors.Join(err, report.print(c.OutOrStdout(), f))
	}
	if err == nil && report.total("inconclusive") > 0 {
		err = fmt.Errorf("%w: listings lack too many copies to conclude anything: see 'millrace incident list'", errFindings)
	}
	return err
}

// begun identifies the rounds that a command begins now.
func begun() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func (f *sweepFlags) reconcile(ctx context.Context, a *app.App, found func(int64)) (all []comparedSplit, err error) {
	spaces, err := a.SweepReconcile(ctx, app.ReconcileRequest{Account: f.account, Store: f.store, Space: f.space,
		Begun: begun(), OnEmitted: found})
	for _, s := range spaces {
		all = append(all, comparedSplit{s.Account, s.Store, "", s.Space, s.ID, s.Counts})
	}
	return all, err
}

func (f *sweepFlags) comparePairs(ctx context.Context, a *app.App, found func(int64)) (all []comparedSplit, err error) {
	pairs, err := a.SweepDuplication(ctx, app.PairRequest{Account: f.account, Store: f.store, Space: f.space,
		Full: f.full, Begun: begun(), OnEmitted: found})
	for _, p := range pairs {
		all = append(all, comparedSplit{p.Account, p.Source, p.Destination, p.Space, p.ID, p.Counts})
	}
	return all, err
}

// waitForFindings waits until what a sweep has found is planned, copied and checked, and on record.
func waitForFindings(ctx context.Context, w *waiter, a *app.App) error {
	for _, role := range []schemas.Role{schemas.RolePlanner, schemas.RoleCopier, schemas.RoleChecker} {
		roles := []schemas.Role{role}
		if err := w.until(ctx, "messages of "+join(roles), roles, a.Handled(roles...)); err != nil {
			return err
		}
	}
	return w.until(ctx, "messages", []schemas.Role{schemas.RoleSink}, a.Handled(schemas.RoleSink, schemas.RoleState))
}

func (r *comparison) print(out io.Writer, f *sweepFlags) error {
	if f.output.form == formJSON {
		return writeJSON(out, r.document())
	}
	text, found := fmt.Sprintf("%d spaces\n", len(r.splits)), false
	for _, c := range r.counts {
		if n := r.total(c.key); n > 0 {
			text += fmt.Sprintf("%d items: %s\n", n, c.text)
			found = found || c.key != string(reconcile.Equal)
		}
	}
	if f.state != "" && !f.wait && found {
		text += f.laterWithState("what was found is copied and checked") + "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// document returns the report for JSON: the numbers of items of each finding, in all and by space.
func (r *comparison) document() map[string]any {
	all, spaces := map[string]any{"sweep": r.sweep}, []map[string]any{}
	for _, s := range r.splits {
		space := map[string]any{"account": s.account, "store": s.store, "space": s.space, "round": s.round}
		if s.destination != "" {
			space["destination"] = s.destination
		}
		for _, c := range r.counts {
			space[c.key] = s.counts[c.key]
		}
		spaces = append(spaces, space)
	}
	for _, c := range r.counts {
		all[c.key] = r.total(c.key)
	}
	all["spaces"] = spaces
	return all
}
