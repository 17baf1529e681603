package read

import (
	"context"
	"fmt"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/ext"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// An ItemQuery selects items of a space by the beginning of their ids.
type ItemQuery struct {
	Account, Space, Prefix string
	Lost                   *Lost  // only items that have lost their content; nil: all
	After                  string // only items after this one
	Limit                  int    // default 1,000
}

// Lost selects items whose content in a store was replaced or deleted after From and until Until, except by a repair,
// and whose deletes or rewrites are on no list since.
type Lost struct {
	Store       string
	From, Until time.Time
}

// ofQuery selects, for SQL, the rows of an ItemQuery without Lost, and lostItems the items of one with it, and when
// each was lost. An item that has no content at first has none to lose before its second change.
const (
	ofQuery = " FROM {db}.audit_log WHERE account = ? AND space = ? AND item >= ? AND item > ?" +
		" AND item != '' AND startsWith(item, ?)"
	lostItems = " FROM (WITH ts > " + milliParam + " AND ts <= " + milliParam + " AND origin != 'repair' AS within," +
		" argMaxIf(op != 'delete', ts, ts <= " + milliParam + ") AS had," +
		" arraySort(groupUniqArrayIf(ts, within)) AS changed" +
		" SELECT item, changed[if(had, 1, 2)] AS lost" + ofQuery + " AND store = ? AND op IN " + contentOps +
		" AND item NOT IN (SELECT item FROM {db}.duplication_log_v WHERE account = ? AND space = ?" +
		" AND result = 'awaiting-approval' AND ts > " + milliParam + ") GROUP BY account, space, item" +
		" HAVING length(changed) > if(had, 0, 1) AND (had OR argMinIf(op != 'delete', ts, within))" +
		aggregateInOrder + ")"
)

func (q ItemQuery) from() (from string, args []any) {
	args = []any{q.Account, q.Space, q.Prefix, q.After, q.Prefix}
	if q.Lost == nil {
		return ofQuery, args
	}
	after := q.Lost.From.UnixMilli()
	args = append([]any{after, q.Lost.Until.UnixMilli(), after}, args...)
	return lostItems, append(args, q.Lost.Store, q.Account, q.Space, after)
}

// CountLost counts the items of a query with Lost. first is when the first of them was lost.
func CountLost(ctx context.Context, db *clickhouse.DB, q ItemQuery) (n uint64, first time.Time, err error) {
	type row struct {
		Items uint64    `ch:"items"`
		First time.Time `ch:"first"`
	}
	from, args := q.from()
	rows, err := clickhouse.Query[row](ctx, db, "count the items that were lost",
		"SELECT count() AS items, min(lost) AS first"+from, args...)
	if err != nil || len(rows) == 0 {
		return 0, first, err
	}
	return rows[0].Items, rows[0].First, nil
}

// EstimateItems estimates the number of items of a space that the audit log knows in any store, to about one per cent.
// An exact count of many items would take more memory than a query may use.
func EstimateItems(ctx context.Context, db *clickhouse.DB, q ItemQuery) (int64, error) {
	from, args := q.from()
	return db.Count(ctx, "estimate the items of a space", "SELECT uniqCombined(item) AS n"+from, args...)
}

// Items returns the items of a space that the audit log knows in any store, in the order of the bytes of their ids. A
// page with fewer than Limit items is the last one.
func Items(ctx context.Context, db *clickhouse.DB, q ItemQuery) ([]string, error) {
	type row struct {
		Item string `ch:"item"`
	}
	from, args := q.from()
	rows, err := clickhouse.Query[row](ctx, db, "list the items of a space", "SELECT DISTINCT item"+from+
		" ORDER BY item LIMIT ? SETTINGS optimize_use_projections = 0, optimize_distinct_in_order = 1",
		append(args, limit(q.Limit))...)
	items := make([]string, len(rows))
	for i, r := range rows {
		items[i] = r.Item
	}
	return items, err
}

// ContentChanges returns the changes of the content of items, deletes included, in all stores: in the order of the
// items, and of each item the oldest first. It omits properties. ahead has the times that order the changes, by their
// ids, where they are earlier than the reported ones.
func ContentChanges(
	ctx context.Context, db *clickhouse.DB, account, space string, items []string,
) (changes []*pb.Change, ahead map[string]time.Time, err error) {
	with, err := withItems(ctx, items)
	if err != nil {
		return nil, nil, err
	}
	type row struct {
		changeRow
		At time.Time `ch:"at"`
	}
	rows, err := clickhouse.Query[row](with, db, "read the contents of items",
		"SELECT id, ts, ns, op, account, store, space, item, version, etag, size, digests, provenance, user, agent, origin,"+
			" source_time, source_ns, modified, source_version, approved, least(ts, first) AS at FROM {db}.audit_log_v"+
			" WHERE account = ? AND space = ? AND item IN (SELECT item FROM keys) AND op IN "+contentOps+
			" ORDER BY item, at, newest SETTINGS optimize_use_projections = 0", account, space)
	changes, ahead = make([]*pb.Change, len(rows)), map[string]time.Time{}
	for i, r := range rows {
		if changes[i] = r.change(); r.At.Before(r.Time) {
			ahead[r.ID] = r.At
		}
	}
	return changes, ahead, err
}

// withItems attaches items to the query as the column item of the external table keys.
func withItems(ctx context.Context, items []string) (context.Context, error) {
	t, err := ext.NewTable("keys", ext.Column("item", "String"))
	if err != nil {
		return nil, fmt.Errorf("make a table of items: %w", err)
	}
	for _, item := range items {
		if err := t.Append(item); err != nil {
			return nil, fmt.Errorf("make a table of items: %w", err)
		}
	}
	return ch.Context(ctx, ch.WithExternalTable(t)), nil
}

// PassedContents returns, by item, the digests of the bytes that checks have read and found to be right, in any store.
func PassedContents(
	ctx context.Context, db *clickhouse.DB, account, space string, items []string,
) (map[string][]map[string]string, error) {
	type row struct {
		Item    string            `ch:"item"`
		Digests map[string]string `ch:"digests"`
	}
	with, err := withItems(ctx, items)
	if err != nil {
		return nil, err
	}
	const ofContent = "(x, places) -> bitAnd(places, 1) > 0"
	rows, err := clickhouse.Query[row](with, db, "read the checked contents of items",
		"SELECT DISTINCT item, mapFromArrays("+
			"arrayFilter("+ofContent+", arrayMap(a -> a::String, `digest.algorithm`), `digest.places`),"+
			" arrayFilter("+ofContent+", `digest.value`, `digest.places`)) AS digests FROM {db}.bit_log_v"+
			" WHERE account = ? AND space = ? AND item IN (SELECT item FROM keys) AND verdict = 'pass'"+
			" AND notEmpty(digests)", account, space)
	passed := map[string][]map[string]string{}
	for _, r := range rows {
		passed[r.Item] = append(passed[r.Item], r.Digests)
	}
	return passed, err
}

// A DamagedVersion is a version of a copy whose bytes a check found to be other than those on record.
type DamagedVersion struct {
	Store   string    `ch:"store"`
	Version string    `ch:"object_version"`
	Found   time.Time `ch:"found"` // by the first such check
}

// DamagedVersions returns the damaged versions of an item in all stores.
func DamagedVersions(ctx context.Context, db *clickhouse.DB, item schemas.Copy) ([]DamagedVersion, error) {
	return clickhouse.Query[DamagedVersion](ctx, db, "read which versions of an item are damaged",
		"SELECT store, object_version, min(ts) AS found FROM {db}.bit_log_v WHERE account = ? AND space = ? AND item = ?"+
			" AND finding = 'content-corrupt' AND object_version != ''"+
			" GROUP BY store, object_version ORDER BY store, object_version",
		item.Account, item.Space, item.Item)
}

// A RestorationQuery selects the orders of one run of an action in a space, to restore items or to remove copies: those
// that were made at a time.
type RestorationQuery struct {
	Account, Space, Action string
	Made                   time.Time
	Limit                  int // of failed orders
}

// A Restoration counts the results of the restore orders of one action.
type Restoration struct {
	Result string `ch:"result"`
	Orders uint64 `ch:"orders"`
}

// ofRun selects, for SQL, the results of a RestorationQuery.
const ofRun = " FROM {db}.duplication_log_v WHERE account = ? AND space = ? AND cause = ?" +
	" AND reason IN ('restore', 'manual') AND change_time = " + milliParam + " GROUP BY command"

// Restorations counts restore orders by result. An order that was executed twice counts with its last result.
func Restorations(ctx context.Context, db *clickhouse.DB, q RestorationQuery) ([]Restoration, error) {
	return clickhouse.Query[Restoration](ctx, db, "count the results of restore orders",
		"SELECT last AS result, count() AS orders FROM"+
			" (SELECT argMax(if(decision = 'dead', 'dead', result::String), ts) AS last"+ofRun+
			") GROUP BY last ORDER BY last", q.Account, q.Space, q.Action, q.Made.UnixMilli())
}

// A FailedRestoration is a restore order that has ended without bringing its content back.
type FailedRestoration struct {
	Item   string `ch:"item" json:"item"`
	Store  string `ch:"store" json:"store"`
	Result string `ch:"last" json:"result"`
	Detail string `ch:"about" json:"detail"`
}

// FailedRestorations returns at most Limit orders that ended without restoring, or holding, anything.
func FailedRestorations(ctx context.Context, db *clickhouse.DB, q RestorationQuery) ([]FailedRestoration, error) {
	return clickhouse.Query[FailedRestoration](ctx, db, "list the restore orders that failed",
		"SELECT any(item) AS item, any(destination_store)::String AS store,"+
			" argMax(if(decision = 'dead', 'dead', result::String), ts) AS last,"+
			" argMax(if(detail = '', error, detail), ts) AS about"+ofRun+
			" HAVING last NOT IN ('restored', 'already-restored', 'awaiting-approval') ORDER BY item, store LIMIT ?",
		q.Account, q.Space, q.Action, q.Made.UnixMilli(), q.Limit)
}
