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
