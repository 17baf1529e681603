package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/inventory/sorted"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/groups"
)

// A comparison is the result of a sweep that compares spaces.
type comparison struct {
	sweep    string
	dryRun   bool // nothing was published
	counts   []countedItems
	findings []string // the keys of those with exit code 3
	see      string   // what is said about these
	splits   []app.SweptSpace
	listed   *sorted.Listing // nil: the stores list their spaces
	seconds  *float64        // of a dry run: the estimated time of what would be requested; nil: it is unknown
}

// countedItems are items with one finding.
type countedItems struct {
	key, text string
	what      string // instead of "items"
}

// reconciled are the findings of the reconcile sweep, in the order in which they are printed.
var reconciled = []countedItems{
	{"equal", "as on record", ""},
	{"stale", "as on record, other than the listing shows", ""},
	{"newer", "on record since the listing was made: not compared", ""},
	{"adopted", "adopted: no event had reported them", ""},
	{"updated", "updated: another program had replaced them", ""},
	{"deleted", "reported as deleted: missing in two rounds, and other programs write to the store", ""},
	{"different", "not as on record: they are checked", ""},
	{"resurrected", "there, and on record as deleted: they are checked", ""},
	{"lost", "missing in two rounds: they are checked", ""},
	{"missing", "missing for the first time: the next round looks again", ""},
	{"unsettled", "being written: the next round looks again", ""},
	{"unknown", "that the store does not show, or that no message can report", ""},
	{"inconclusive", "missing, which is too much of the space: nothing is concluded, see 'millrace incident list'", ""},
}

// comparedPairs are those of the duplication sweep.
var comparedPairs = []countedItems{
	{"equal", "equal", ""},
	{"missing", "missing at the destination", ""},
	{"different", "of other size, digests or properties at the destination", ""},
	{"extra", "only at the destination", ""},
	{"excluded", "excluded by the policy, or by sweep.spaces", ""},
	{"unknown", "that cannot be compared", ""},
}

// checkedGroups are the verdicts of the group check.
var checkedGroups = []countedItems{
	{"whole", "all chunks are on record as the document says, and have passed a check", "groups"},
	{"unproven", "nothing differs, but chunks have no size, MD5 or passed check on record", "groups"},
	{"incomplete", "chunks are absent: they are checked", "groups"},
	{"different", "chunks, or the document, differ: they are checked", "groups"},
	{"unreadable", "the document is not one of chunks", "groups"},
	{"young", "damaged, or not complete yet: a record is younger than a day", "groups"},
	{"unknown", "the document cannot be read now, or the store is not read", "groups"},
	{"orphans", "without a document", "chunks"},
}

// groupFindings are the verdicts that open an incident.
var groupFindings = []string{"incomplete", "different", "unreadable"}

// total returns the number of items with a finding, or with KEY_bytes that of their bytes.
func (r *comparison) total(key string) (n int64) {
	for _, s := range r.splits {
		n += s.Counts[key]
	}
	return n
}

// compare runs a round of a sweep that compares spaces, over the selected ones.
func (f *sweepFlags) compare(c *cobra.Command, name string) error {
	report := comparison{sweep: name, dryRun: f.dryRun, counts: reconciled, findings: []string{"inconclusive"},
		see: "listings lack too many copies to conclude anything"}
	ask, by := func(ctx context.Context, a *app.App, e *engines, found func(int64)) ([]app.SweptSpace, error) {
		return f.reconcile(ctx, a, e, report.listed, found)
	}, []schemas.Role{schemas.RolePlanner, schemas.RoleSink}
	switch name {
	case app.DuplicationSweep:
		report.counts, by = comparedPairs, []schemas.Role{schemas.RoleCopier, schemas.RoleSink}
		ask = func(ctx context.Context, a *app.App, _ *engines, found func(int64)) ([]app.SweptSpace, error) {
			return a.SweepDuplication(ctx, f.spaces(found), f.full)
		}
	case groups.Name:
		report.counts, by = checkedGroups, []schemas.Role{schemas.RoleChecker, schemas.RoleSink}
		ask = func(ctx context.Context, a *app.App, _ *engines, found func(int64)) ([]app.SweptSpace, error) {
			return a.SweepGroups(ctx, f.spaces(found))
		}
		report.findings, report.see = groupFindings, "groups of chunks have findings"
	}
	err := f.withApp(c, func(ctx context.Context, a *app.App, e *engines) (err error) {
		listed, err := f.listing.read(ctx, f, e)
		if err != nil {
			return err
		}
		if listed != nil {
			defer func() { err = errors.Join(err, listed.Close()) }()
			report.listed, report.counts = listed, reconciledListing()
		}
		if f.begun, err = a.Begin(ctx, f.dryRun); err != nil {
			return err
		}
		if f.dryRun {
			if report.splits, err = ask(ctx, a, e, nil); err == nil {
				report.seconds, err = a.WorkTime(ctx, report.splits)
			}
			return err
		}
		return e.withRoles(c, a, f.engineFlags, rolesWithoutSweeper(), func(ctx context.Context, w *waiter) error {
			var found atomic.Int64
			err := w.waitWhile(ctx, "findings", by, found.Load, func(ctx context.Context) (err error) {
				report.splits, err = ask(ctx, a, e, func(n int64) { found.Add(n) })
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
	if err == nil && slices.ContainsFunc(report.findings, func(key string) bool { return report.total(key) > 0 }) {
		err = fmt.Errorf("%w: %s: see 'millrace incident list'", errFindings, report.see)
	}
	return err
}

// work returns what a dry run would ask for in all spaces.
func (r *comparison) work() (all sweep.Work) {
	for _, s := range r.splits {
		for _, of := range []struct{ to, from *sweep.Amount }{
			{&all.Checks, &s.Work.Checks}, {&all.Copies, &s.Work.Copies}, {&all.Changes, &s.Work.Changes},
		} {
			of.to.Items += of.from.Items
			of.to.Bytes += of.from.Bytes
		}
	}
	return all
}

func (f *sweepFlags) spaces(found func(int64)) app.SpacesRequest {
	return app.SpacesRequest{Account: f.account, Store: f.store, Space: f.space, Filter: f.filter, Begun: f.begun,
		OnEmitted: found, DryRun: f.dryRun}
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
	if l := r.listed; l != nil {
		text += fmt.Sprintf("a listing of %s with %d items\n", l.Made().UTC().Format(time.RFC3339), l.Len())
		for _, kind := range slices.Sorted(maps.Keys(l.Skipped())) {
			text += fmt.Sprintf("%d rows skipped: %s\n", l.Skipped()[kind], kind)
		}
	}
	for _, c := range r.counts {
		if n := r.total(c.key); n > 0 {
			text += fmt.Sprintf("%d %s%s: %s\n", n, cmp.Or(c.what, "items"), ofBytes(r.total(c.key+"_bytes")), c.text)
			found = found || !slices.Contains([]string{"equal", "stale", "newer"}, c.key) &&
				(r.sweep != groups.Name || slices.Contains(r.findings, c.key))
		}
	}
	if f.dryRun {
		text += "a dry run: nothing was requested or put on record\n" + r.workText()
	}
	if f.state != "" && !f.wait && !f.dryRun && found {
		text += f.laterWithState("what was found is copied and checked") + "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// ofBytes returns the text of a number of bytes; "" for none.
func ofBytes(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" of %d bytes", n)
}

// workText describes what a dry run would ask for, and how long that takes.
func (r *comparison) workText() (text string) {
	work := r.work()
	for _, w := range []struct {
		of   sweep.Amount
		text string
	}{{work.Copies, "commands of the copier"}, {work.Changes, "Changes of items"}, {work.Checks, "checks"}} {
		if w.of.Items > 0 {
			text += fmt.Sprintf("it would request %d %s%s\n", w.of.Items, w.text, ofBytes(w.of.Bytes))
		}
	}
	switch {
	case text == "":
	case r.seconds == nil:
		text += "how long they take is unknown: in the last 30 days no such work was done\n"
	default:
		text += fmt.Sprintf("they take %s at least, by the rates of the last 30 days\n", secondsText(*r.seconds))
	}
	return text
}

// document returns the report for JSON: the numbers of items, and of bytes, of each finding, in all and by space.
func (r *comparison) document() map[string]any {
	all, spaces := map[string]any{"sweep": r.sweep}, []map[string]any{}
	if r.dryRun {
		all["dry_run"] = true
		work := r.work()
		for key, of := range map[string]sweep.Amount{"copies": work.Copies, "changes": work.Changes, "checks": work.Checks} {
			all["requested_"+key], all["requested_"+key+"_bytes"] = of.Items, of.Bytes
		}
		if r.seconds != nil {
			all["seconds"] = *r.seconds
		}
	}
	if l := r.listed; l != nil {
		all["listing"] = map[string]any{"id": l.ID(), "made": l.Made().UTC(), "items": l.Len(), "skipped": l.Skipped()}
	}
	for _, s := range r.splits {
		space := map[string]any{"account": s.Account, "store": s.Store, "space": s.Space, "round": s.ID}
		if s.Destination != "" {
			space["destination"] = s.Destination
		}
		r.addCounts(space, func(key string) int64 { return s.Counts[key] })
		spaces = append(spaces, space)
	}
	r.addCounts(all, r.total)
	all["spaces"] = spaces
	return all
}

// addCounts adds the numbers of items and bytes of each finding. Groups have no bytes.
func (r *comparison) addCounts(to map[string]any, count func(key string) int64) {
	for _, c := range r.counts {
		if to[c.key] = count(c.key); r.sweep != groups.Name {
			to[c.key+"_bytes"] = count(c.key + "_bytes")
		}
	}
}
