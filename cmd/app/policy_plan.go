package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/policy/preview"
	"github.com/millrace/millrace/streams/retry"
)

// rateWindow is how far back the rates of copies are looked up.
const rateWindow = 30 * 24 * time.Hour

// A PolicyPlan is what a policy would do to the copies of an account that are on record.
type PolicyPlan struct {
	Account  string    `json:"account"`
	Revision int64     `json:"revision"` // the current one, before the change
	AsOf     time.Time `json:"as_of"`    // when the records were read
	// Behind is the number of Changes that were in Kafka then, and not in the tables.
	Behind       int64                `json:"behind"`
	Deletes      []PlannedDeletes     `json:"deletes"`
	Unmanaged    []UnmanagedCopies    `json:"unmanaged"` // those that the policy in force manages
	Destinations []PlannedDestination `json:"destinations"`
}

// A PlannedCount is a number of items.
type PlannedCount struct {
	Items   int64 `json:"items"`
	Bytes   int64 `json:"bytes"`             // of the items with a known size
	Unsized int64 `json:"unsized,omitempty"` // items with an unknown size
}

func countOf(c preview.Count) PlannedCount { return PlannedCount(c) }

// PlannedDeletes are the copies of a space at a destination that would be deleted because their sources were.
type PlannedDeletes struct {
	Space       string `json:"space"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Approval    bool   `json:"approval"` // an operator must approve them
	PlannedCount
}

// UnmanagedCopies are live copies of a space in a store to which no pair of the policy leads.
type UnmanagedCopies struct {
	Account    string `json:"account"`
	Store      string `json:"store"`
	Space      string `json:"space"`
	Configured bool   `json:"configured"` // the configuration has the store
	PlannedCount
}

// A PlannedDestination is the work for one pair of stores, over all spaces in which the pair changes in the same way.
type PlannedDestination struct {
	Account     string         `json:"account"`
	Source      string         `json:"source"`
	Destination string         `json:"destination"`
	Change      preview.Change `json:"change"`
	Spaces      []string       `json:"spaces"` // with items on record, or named in the document
	// Items and Bytes are those to copy or update.
	Items    int64 `json:"items"`
	Bytes    int64 `json:"bytes"`
	Commands int64 `json:"commands"`
	// Seconds is the estimated time to copy and update; nil: unknown, since the pair has copied nothing within 30 days,
	// or an item has an unknown size.
	Seconds   *float64     `json:"seconds"`
	Copy      PlannedCount `json:"copy"`
	Update    PlannedCount `json:"update"`
	Compare   PlannedCount `json:"compare"` // digests or sizes that decide are not on record
	Unchanged PlannedCount `json:"unchanged"`
	Excluded  PlannedCount `json:"excluded"`
	Held      PlannedCount `json:"held"`
	Delete    PlannedCount `json:"delete"`
	Approve   PlannedCount `json:"approve"` // deletes that an operator must approve
	Kept      PlannedCount `json:"kept"`    // copies of deleted sources that stay
	Orphan    PlannedCount `json:"orphan"`  // copies without a source on record
}

// PlanPolicy returns what a document would do if it became the policy of an account now. It changes nothing. An error
// that wraps precondition.Err reports that the tables lack records.
func (a *App) PlanPolicy(ctx context.Context, account string, doc policy.Document) (plan *PolicyPlan, err error) {
	err = a.withPolicies(ctx, func(ctx context.Context, r *policy.Registry) error {
		now := time.Now().UTC()
		p, behind, err := a.preview(ctx, account, preview.Config{
			Rules: r.Next(account, &doc, now), Before: rulesOf(r, account), Now: now,
		}, append(doc.NamedSpaces(), ""))
		if err != nil {
			return err
		}
		rates, err := read.PairRates(ctx, a.db, account, now.Add(-rateWindow))
		if err != nil {
			return err
		}
		plan = planOf(account, p, rates)
		plan.Revision, plan.AsOf, plan.Behind = r.Revision(account), now, behind
		for i, u := range plan.Unmanaged {
			plan.Unmanaged[i].Configured = a.hasStore(account, u.Store)
		}
		return nil
	})
	return plan, err
}

// withPolicies reads the topic policies, and calls do with all policies. It needs no running Run.
func (a *App) withPolicies(ctx context.Context, do func(context.Context, *policy.Registry) error) error {
	r := policy.NewRegistry(a.stores.IDs)
	return withRegistry(ctx, a.kafka, r, func(ctx context.Context) error { return do(ctx, r) })
}

// rulesOf returns the rules in force for the spaces of an account.
func rulesOf(r *policy.Registry, account string) func(space string) policy.Rules {
	return func(space string) policy.Rules {
		rules, _ := r.Rules(account, space)
		return rules
	}
}

// primaryOf returns the primary store of an account; empty if it has none.
func (a *App) primaryOf(account string) string {
	for _, id := range a.stores.IDs(account) { // the primary first
		if a.stores.of(StoreName{account, id}).cfg.Primary {
			return id
		}
	}
	return ""
}

func (a *App) hasStore(account, store string) bool {
	return slices.Contains(a.stores.IDs(account), store)
}

// preview reads the copies of an account on record into a Preview, with the named spaces even if they have none. behind
// is the number of Changes that the tables did not have.
func (a *App) preview(
	ctx context.Context, account string, c preview.Config, spaces []string,
) (p *preview.Preview, behind int64, err error) {
	c.Primary, c.Has = a.primaryOf(account), func(store string) bool { return a.hasStore(account, store) }
	c.Lists = func(refs []policy.ExcludeList) ([]*policy.List, error) { return a.readLists(ctx, refs) }
	p = preview.New(c)
	for _, space := range spaces {
		if err := p.Seed(space); err != nil {
			return nil, 0, err
		}
	}
	if behind, err = a.manifestLag(ctx); err != nil {
		return nil, 0, err
	}
	err = a.completeTables(ctx, func() error { return AddCopies(ctx, a.db, account, p) })
	return p, behind, err
}

// AddCopies adds all copies of an account that the tables have to a Preview.
func AddCopies(ctx context.Context, db *clickhouse.DB, account string, p *preview.Preview) error {
	var copies []preview.Stored
	return read.EachItem(ctx, db, account, func(space, item string, stored []read.StoredCopy) error {
		copies = copies[:0]
		for i := range stored {
			copies = append(copies, storedOf(&stored[i]))
		}
		return p.Add(space, item, copies)
	})
}

func storedOf(c *read.StoredCopy) preview.Stored {
	return preview.Stored{Store: c.Store, Record: preview.Record{Live: c.Live, Size: c.Size, Time: c.Time,
		SourceTime: c.SourceTime, Doubtful: c.Inferred || c.Disputed, Digests: preview.Digests(c.Digests)}}
}

// completeTables calls do if the tables have all records that sinks have committed, before and after it: a table may be
// filled or emptied meanwhile.
func (a *App) completeTables(ctx context.Context, do func() error) error {
	return between(func() error {
		gaps, err := a.findGaps(ctx)
		if err == nil {
			if err = clickhouse.CheckGaps(gaps); err != nil {
				err = fmt.Errorf("%w: %w", precondition.Err, err)
			}
		}
		return err
	}, do)
}

// manifestLag returns the number of Changes that are in Kafka and not in the state of copies.
func (a *App) manifestLag(ctx context.Context) (n int64, err error) {
	lags, err := a.admin.Lags(ctx, schemas.RoleState)
	for _, l := range lags {
		if l.Topic == schemas.Changes {
			n += l.Records
		}
	}
	return n, err
}

// readLists returns exclusion lists. It waits while they are read, and returns an error if one cannot be.
func (a *App) readLists(ctx context.Context, refs []policy.ExcludeList) ([]*policy.List, error) {
	for {
		lists, err := a.lists.Lists(ctx, refs)
		failed := slices.ContainsFunc(refs, func(ref policy.ExcludeList) bool { return a.lists.Failure(ref) != nil })
		if err == nil || failed {
			return lists, err
		}
		if err := retry.Sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// planOf returns the plan of a preview.
func planOf(account string, p *preview.Preview, rates []read.PairRate) *PolicyPlan {
	plan := &PolicyPlan{Account: account, Deletes: []PlannedDeletes{}, Unmanaged: []UnmanagedCopies{}}
	type key struct {
		pair   policy.Pair
		change preview.Change
	}
	at := map[key]*PlannedDestination{}
	for _, s := range p.Spaces() {
		k := key{s.Pair, s.Change}
		d := at[k]
		if d == nil {
			d = &PlannedDestination{Account: account, Source: s.Pair.Source, Destination: s.Pair.Destination,
				Change: s.Change, Spaces: []string{}}
			at[k] = d
		}
		d.add(s)
		for _, o := range []preview.Outcome{preview.Delete, preview.Approve} {
			if c := s.Counts[o]; c.Items > 0 {
				plan.Deletes = append(plan.Deletes, PlannedDeletes{s.Space, s.Pair.Source, s.Pair.Destination,
					o == preview.Approve, countOf(c)})
			}
		}
	}
	for _, c := range p.Unmanaged(true) {
		plan.Unmanaged = append(plan.Unmanaged, UnmanagedCopies{account, c.Store, c.Space, false, countOf(c.Count)})
	}
	plan.Destinations = []PlannedDestination{}
	for _, d := range at {
		d.Seconds = d.estimate(rates)
		plan.Destinations = append(plan.Destinations, *d)
	}
	slices.SortFunc(plan.Destinations, func(a, b PlannedDestination) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Destination, b.Destination),
			cmp.Compare(a.Change, b.Change))
	})
	return plan
}

// add adds the items of a space.
func (d *PlannedDestination) add(s preview.Space) {
	if s.Space != "" {
		d.Spaces = append(d.Spaces, s.Space)
	}
	for o, to := range map[preview.Outcome]*PlannedCount{
		preview.Copy: &d.Copy, preview.Update: &d.Update, preview.Compare: &d.Compare, preview.Unchanged: &d.Unchanged,
		preview.Excluded: &d.Excluded, preview.Held: &d.Held, preview.Delete: &d.Delete, preview.Approve: &d.Approve,
		preview.Kept: &d.Kept, preview.Orphan: &d.Orphan,
	} {
		*to = countOf(preview.Count(*to).Plus(s.Counts[o]))
	}
	d.Items, d.Bytes = d.Copy.Items+d.Update.Items, d.Copy.Bytes+d.Update.Bytes
	d.Commands += s.Commands()
}

// estimate returns the seconds to copy and update at the measured rates of the pair; nil if they are unknown.
func (d *PlannedDestination) estimate(rates []read.PairRate) *float64 {
	if d.Items == 0 {
		return new(float64)
	}
	i := slices.IndexFunc(rates, func(r read.PairRate) bool {
		return r.Source == d.Source && r.Destination == d.Destination
	})
	if i < 0 || d.Copy.Unsized+d.Update.Unsized > 0 || d.Bytes > 0 && rates[i].Bytes <= 0 {
		return nil
	}
	seconds := float64(d.Items) / rates[i].Items
	if d.Bytes > 0 {
		seconds = max(seconds, float64(d.Bytes)/rates[i].Bytes)
	}
	return &seconds
}
