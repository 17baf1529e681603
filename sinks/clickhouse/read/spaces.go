package read

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
)

// A SpaceSummary is what is on record of a space in one store.
type SpaceSummary struct {
	Space   string `json:"space"`
	Store   string `json:"store"`
	Items   uint64 `json:"items"`   // live copies
	Bytes   int64  `json:"bytes"`   // of those with a known size
	Unsized uint64 `json:"unsized"` // live copies with an unknown size
	// First is Kafka's time of the first Change about the space or an item in it; nil: there is none.
	First *time.Time `json:"first_seen"`
	// Created and Deleted are the times of the last Changes that say so; nil: there is none. A space may exist without
	// either: some stores make a space with its first item.
	Created *time.Time `json:"created"`
	Deleted *time.Time `json:"deleted"`
	// Gone is when an operator declared the space gone, if that is the last declaration about it; else nil.
	Gone *time.Time `json:"gone"`
}

// Spaces summarises the spaces of an account in each store, ordered by space and store. If space is not empty, only
// that one is summarised. It reads what the tables have, for display.
func Spaces(ctx context.Context, db *clickhouse.DB, account, space string) ([]SpaceSummary, error) {
	type key struct{ space, store string }
	found := map[key]*SpaceSummary{}
	at := func(space, store string) *SpaceSummary {
		k := key{space, store}
		if found[k] == nil {
			found[k] = &SpaceSummary{Space: space, Store: store}
		}
		return found[k]
	}
	status, err := FixityStatus(ctx, db, StatusQuery{Account: account, Space: space})
	if err != nil {
		return nil, err
	}
	for _, s := range status {
		f := at(s.Space, s.Store)
		f.Items, f.Bytes, f.Unsized = s.Live, s.Bytes, s.Unsized
	}
	type row struct {
		Space string `ch:"space"`
		Store string `ch:"in_store"`
		What  string `ch:"what"`
		At    int64  `ch:"at"`
	}
	const of = " WHERE account = ? AND (? = '' OR space = ?)"
	rows, err := clickhouse.Query[row](ctx, db, "read the changes of spaces",
		"SELECT space, store::String AS in_store, 'first' AS what, toUnixTimestamp64Milli(min(ingested)) AS at"+
			" FROM {db}.audit_log"+of+" GROUP BY space, store"+
			" UNION ALL SELECT space, store::String, op::String, toUnixTimestamp64Milli(max(least(ts, first)))"+
			" FROM {db}.audit_log_v"+of+
			" AND item = '' AND op IN ('create_space', 'delete_space') GROUP BY space, store, op"+
			" UNION ALL SELECT space, store::String, argMax(action::String, ts), toUnixTimestamp64Milli(max(ts))"+
			" FROM {db}.admin_log_v"+of+" AND action IN ('space-gone', 'space-back') GROUP BY space, store",
		account, space, space, account, space, space, account, space, space)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		f, t := at(r.Space, r.Store), time.UnixMilli(r.At).UTC()
		switch r.What {
		case "first":
			f.First = &t
		case "create_space":
			f.Created = &t
		case "delete_space":
			f.Deleted = &t
		case "space-gone":
			f.Gone = &t
		}
	}
	all := make([]SpaceSummary, 0, len(found))
	for _, f := range found {
		all = append(all, *f)
	}
	slices.SortFunc(all, func(a, b SpaceSummary) int {
		return cmp.Or(cmp.Compare(a.Space, b.Space), cmp.Compare(a.Store, b.Store))
	})
	return all, nil
}
