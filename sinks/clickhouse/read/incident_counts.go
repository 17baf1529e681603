package read

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// An IncidentGroup counts the open incidents of one kind in a space of a store.
type IncidentGroup struct {
	Account string    `json:"account" ch:"account"`
	Store   string    `json:"store"   ch:"store"`
	Space   string    `json:"space"   ch:"space"`
	Kind    string    `json:"kind"    ch:"kind"`
	Open    int64     `json:"open"    ch:"open"`
	Waiting int64     `json:"waiting" ch:"waiting"` // for a decision of an operator
	Oldest  time.Time `json:"oldest"  ch:"oldest"`  // when the oldest one was opened
}

// GroupIncidents counts the selected open incidents by account, store, space and kind, the group with the oldest one
// first.
func GroupIncidents(ctx context.Context, db *clickhouse.DB, s IncidentSelection) ([]IncidentGroup, error) {
	q := s.query()
	return clickhouse.Query[IncidentGroup](ctx, db, "count the open incidents",
		"SELECT account, store, space, kind, toInt64(count()) AS open, toInt64(countIf(state = 'awaiting_approval'"+
			" OR kind IN ('deletes-held', 'rewrites-held', 'repairs-held'))) AS waiting, min(ts) AS oldest FROM ("+
			q.of("account, store, space, item, kind, subject, state, ts, ns, id")+
			") GROUP BY account, store, space, kind ORDER BY oldest, account, store, space, kind", q.args...)
}

// An IncidentCount counts the open incidents of one kind.
type IncidentCount struct {
	Kind string `json:"kind"`
	Open int64  `json:"open"`
	// Waiting are for a decision of an operator: all lists do, and held repairs once, not each of them.
	Waiting int64     `json:"waiting"`
	Oldest  time.Time `json:"oldest"` // when the oldest one was opened
}

// CountIncidents counts the open incidents of an account, or of all accounts for "", by kind.
func CountIncidents(ctx context.Context, db *clickhouse.DB, account string) ([]IncidentCount, error) {
	groups, err := GroupIncidents(ctx, db, IncidentSelection{Of: schemas.Copy{Account: account}})
	held := map[schemas.Copy]bool{}
	for _, g := range groups {
		if g.Kind == "repairs-held" {
			held[schemas.Copy{Account: g.Account, Store: g.Store, Space: g.Space}] = true
		}
	}
	counts := map[string]*IncidentCount{}
	for _, g := range groups {
		n := counts[g.Kind]
		if n == nil {
			n = &IncidentCount{Kind: g.Kind, Oldest: g.Oldest}
			counts[g.Kind] = n
		}
		n.Open += g.Open
		if g.Kind != "content-missing" || !held[schemas.Copy{Account: g.Account, Store: g.Store, Space: g.Space}] {
			n.Waiting += g.Waiting
		}
	}
	all := make([]IncidentCount, 0, len(counts))
	for _, n := range counts {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b IncidentCount) int { return cmp.Compare(a.Kind, b.Kind) })
	return all, err
}
