package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/version"
)

// A manifestQuery selects live copies of one space in one store.
type manifestQuery struct {
	Account, Store, Space string
	After                 string // item ids greater than this
	Limit                 int
}

// manifestPage returns live copies with their manifest record and the times of their checks, ordered by the bytes of
// the item ids. The audit record is nil. A page with fewer than Limit copies is the last one.
func manifestPage(ctx context.Context, db *clickhouse.DB, q manifestQuery) ([]schemas.KnownCopy, error) {
	rows, err := clickhouse.Query[stateRecord](ctx, db, "read the manifest",
		"SELECT "+stateFields+" FROM {db}.copy_merged WHERE account = ? AND store = ? AND space = ? AND item > ?"+
			" AND content.ver > deleted.ver ORDER BY item LIMIT ?",
		q.Account, q.Store, q.Space, q.After, q.Limit)
	if err != nil {
		return nil, err
	}
	known := make([]schemas.KnownCopy, len(rows))
	for i := range rows {
		known[i] = schemas.KnownCopy{Copy: rows[i].copy(), Record: &pb.CopyRecord{}}
		rows[i].fill(known[i].Record)
	}
	return known, nil
}

// FixityDue returns due copies with their record: first the copies that never passed, then by their last pass,
// oldest first. It also returns the cursor of the next page. Each page reads the keys and versions of all selected
// copies, so pages should be large.
func FixityDue(
	ctx context.Context, db *clickhouse.DB, q schemas.DueQuery,
) ([]schemas.KnownCopy, schemas.DueCursor, error) {
	where, args := "account = ? AND store = ?", []any{q.Account, q.Store}
	if q.Space != "" {
		where, args = where+" AND space = ?", append(args, q.Space)
	}
	statement := "SELECT space, item, effective FROM (" + copySummary + where +
		" GROUP BY account, store, space, item) WHERE live"
	if !q.PassedBefore.IsZero() {
		statement += " AND effective < ?"
		args = append(args, shifted(q.PassedBefore))
	}
	if q.After != (schemas.DueCursor{}) {
		statement += " AND (effective, space, item) > (?, ?, ?)"
		args = append(args, shifted(q.After.LastPass), q.After.Space, q.After.Item)
	}
	type due struct {
		Space     string `ch:"space"`
		Item      string `ch:"item"`
		Effective int64  `ch:"effective"`
	}
	rows, err := clickhouse.Query[due](ctx, db, "read the copies due for a check",
		statement+" ORDER BY effective, space, item LIMIT ?"+aggregateInOrder, append(args, limit(q.Limit))...)
	if err != nil || len(rows) == 0 {
		return nil, q.After, err
	}
	copies := make([]schemas.Copy, len(rows))
	for i, r := range rows {
		copies[i] = schemas.Copy{Account: q.Account, Store: q.Store, Space: r.Space, Item: r.Item}
	}
	records, err := Records(ctx, db, copies)
	if err != nil {
		return nil, q.After, err
	}
	known := make([]schemas.KnownCopy, len(rows))
	for i, c := range copies {
		known[i] = schemas.KnownCopy{Copy: c, Record: records[i]}
	}
	last := rows[len(rows)-1]
	return known, schemas.DueCursor{LastPass: unshiftTime(last.Effective), Space: last.Space, Item: last.Item}, nil
}

// A CopyCount counts the copies of an account in one store.
type CopyCount struct {
	Store      string `ch:"store"`
	Live       uint64 `ch:"live_copies"`
	Tombstones uint64 `ch:"tombstones"`
	Bytes      int64  `ch:"bytes"`    // of the live copies with a known size
	Unsized    uint64 `ch:"unsized"`  // live copies with an unknown size
	Verified   uint64 `ch:"verified"` // live copies with a pass of the bytes of their current content
}

// CopyCounts counts the copies of an account in each store, ordered by store id.
func CopyCounts(ctx context.Context, db *clickhouse.DB, account string) ([]CopyCount, error) {
	return clickhouse.Query[CopyCount](ctx, db, "count copies",
		"SELECT store, countIf(live) AS live_copies, countIf(NOT live AND gone > 0) AS tombstones,"+
			" sumIf(size, live AND size >= 0) AS bytes,"+
			" countIf(live AND size < 0) AS unsized, countIf(live AND effective > 0) AS verified"+
			" FROM ("+copySummary+"account = ? GROUP BY account, store, space, item)"+
			" GROUP BY store ORDER BY store"+aggregateInOrder, account)
}

func limit(n int) int {
	if n <= 0 {
		return 1000
	}
	return n
}

// shifted returns a time as the shifted milliseconds of a version; 0 for the zero time.
func shifted(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli() + version.Shift
}
