package clickhouse

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A manifestQuery asks for the live copies of one space of one store.
type manifestQuery struct {
	Account, Store, Space string
	After                 string // item ids greater than this
	Limit                 int
}

// manifest returns live copies in the order of the bytes of their item ids, with their
// manifest and clocks; their audit record is not asked for (nil). Fewer than Limit: there are no more.
func (db *DB) manifest(ctx context.Context, q manifestQuery) ([]schemas.KnownCopy, error) {
	rows, err := query[stateRecord](ctx, db, "read the manifest",
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

// A DueQuery asks for the live copies of one store that are to be checked.
type DueQuery struct {
	Account, Store string
	Space          string    // empty: every space
	PassedBefore   time.Time // whose current content last passed before this, or never
	After          DueCursor
	Limit          int // default 1,000
}

// A DueCursor is where a page of due copies ended. The zero cursor is before all.
type DueCursor struct {
	Passed      time.Time // zero: never
	Space, Item string
}

// FixityDue returns copies that are due, with manifest, audit record and clocks: those never
// checked first, then by their last pass, oldest first. The cursor goes on after the last one.
// Each page reads the keys and versions of all copies asked for, so pages should be large.
func (db *DB) FixityDue(ctx context.Context, q DueQuery) ([]schemas.KnownCopy, DueCursor, error) {
	where, args := "account = ? AND store = ?", []any{q.Account, q.Store}
	if q.Space != "" {
		where, args = where+" AND space = ?", append(args, q.Space)
	}
	statement := "SELECT space, item, effective FROM (" + copySummary + where + " GROUP BY account, store, space, item) WHERE live"
	if !q.PassedBefore.IsZero() {
		statement += " AND effective < ?"
		args = append(args, shifted(q.PassedBefore))
	}
	if q.After != (DueCursor{}) {
		statement += " AND (effective, space, item) > (?, ?, ?)"
		args = append(args, shifted(q.After.Passed), q.After.Space, q.After.Item)
	}
	type due struct {
		Space     string `ch:"space"`
		Item      string `ch:"item"`
		Effective int64  `ch:"effective"`
	}
	rows, err := query[due](ctx, db, "read the copies due for a check",
		statement+" ORDER BY effective, space, item LIMIT ?"+aggregateInOrder, append(args, limit(q.Limit))...)
	if err != nil || len(rows) == 0 {
		return nil, q.After, err
	}
	copies := make([]schemas.Copy, len(rows))
	for i, r := range rows {
		copies[i] = schemas.Copy{Account: q.Account, Store: q.Store, Space: r.Space, Item: r.Item}
	}
	records, err := db.Records(ctx, copies)
	if err != nil {
		return nil, q.After, err
	}
	known := make([]schemas.KnownCopy, len(rows))
	for i, c := range copies {
		known[i] = schemas.KnownCopy{Copy: c, Record: records[i]}
	}
	last := rows[len(rows)-1]
	return known, DueCursor{unshiftTime(last.Effective), last.Space, last.Item}, nil
}

// A CopyCount counts the copies of one store.
type CopyCount struct {
	Store      string `ch:"store"`
	Live       uint64 `ch:"live_copies"`
	Tombstones uint64 `ch:"tombstones"`
	Bytes      int64  `ch:"bytes"`    // of live copies whose size is known
	Unsized    uint64 `ch:"unsized"`  // live copies whose size is not known
	Verified   uint64 `ch:"verified"` // live copies whose current content has passed a check of its bytes
}

// CopyCounts counts the copies of each store of an account, in the order of the stores' ids.
func (db *DB) CopyCounts(ctx context.Context, account string) ([]CopyCount, error) {
	return query[CopyCount](ctx, db, "count copies",
		"SELECT store, countIf(live) AS live_copies, countIf(NOT live AND gone > 0) AS tombstones, sumIf(size, live AND size >= 0) AS bytes,"+
			" countIf(live AND size < 0) AS unsized, countIf(live AND effective > 0) AS verified FROM ("+copySummary+"account = ? GROUP BY account, store, space, item)"+
			" GROUP BY store ORDER BY store"+aggregateInOrder, account)
}

func limit(n int) int {
	if n <= 0 {
		return 1000
	}
	return n
}

// shifted returns a time as a version's milliseconds; 0 for the zero time.
func shifted(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli() + millisShift
}
