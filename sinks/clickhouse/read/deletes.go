package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// LiveCopies counts the live copies of a space of a store; without a space, those of all its spaces. space is a copy
// without an item.
func LiveCopies(ctx context.Context, db *clickhouse.DB, space schemas.Copy) (int64, error) {
	where, args := inSpace("store", space)
	return db.Count(ctx, "count the live copies of a space",
		"SELECT count() AS n FROM (SELECT max(content.ver) AS written, max(deleted.ver) AS gone FROM {db}.copy_state"+
			" WHERE "+where+" GROUP BY account, store, space, item HAVING written > gone)"+aggregateInOrder, args...)
}

// inSpace selects, for SQL, the rows of a space of a store; without a space, those of all its spaces.
func inSpace(store string, space schemas.Copy) (string, []any) {
	where, args := "account = ? AND "+store+" = ?", []any{space.Account, space.Store}
	if space.Space == "" {
		return where, args
	}
	return where + " AND space = ?", append(args, space.Space)
}

// DeleteCount is the number of deletes, or rewrites, that were executed without an approved list in five minutes.
type DeleteCount struct {
	At    time.Time `ch:"at"` // their begin
	Count uint64    `ch:"done"`
}

// DeletesSince counts the deletes in a space of a store, or in all spaces of it, since a time, oldest first. A copy
// that was absent when its deleter came counts as deleted by it: a deleter that was killed may have deleted it.
func DeletesSince(
	ctx context.Context, db *clickhouse.DB, space schemas.Copy, since time.Time,
) ([]DeleteCount, error) {
	return executedSince(ctx, db, space, since,
		"(result = 'deleted' OR result = 'gone' AND position(worker, '/deleter/') > 0)")
}

// RewritesSince counts the copies in a space of a store, or in all spaces of it, that were replaced with other content
// since a time, oldest first.
func RewritesSince(
	ctx context.Context, db *clickhouse.DB, space schemas.Copy, since time.Time,
) ([]DeleteCount, error) {
	return executedSince(ctx, db, space, since, "decision IN ('C4', 'C4n') AND result = 'copied'")
}

func executedSince(
	ctx context.Context, db *clickhouse.DB, space schemas.Copy, since time.Time, condition string,
) ([]DeleteCount, error) {
	where, args := inSpace("destination_store", space)
	return clickhouse.Query[DeleteCount](ctx, db, "count the deletes or rewrites in a space",
		"SELECT toDateTime64(toStartOfFiveMinutes(ts), 3, 'UTC') AS at, uniqExact(command) AS done"+
			" FROM {db}.duplication_log_v WHERE "+where+
			" AND list = '' AND would_be = '' AND ts >= fromUnixTimestamp64Milli(?, 'UTC') AND "+condition+
			" GROUP BY at ORDER BY at", append(args, since.UnixMilli())...)
}

// heldDeletes selects, for SQL, the rows of a space and a list: those of deletes, or rewrites, that were put on it
// (held), and those of deletes, or rewrites, that were ordered from it, whose cause is the list (ended). Both arguments
// are the list.
const heldDeletes = "WITH list = ? AND result = 'awaiting-approval' AS held, cause = ? AS ended "

// The restores of a refused list go the other way: from the destination of the list.
const fromHeld = " FROM {db}.duplication_log_v WHERE account = ? AND space = ?" +
	" AND if(reason = 'restore', source_store, destination_store) = ? AND would_be = '' AND (held OR ended)"

// A ListQuery selects deletes on a list.
type ListQuery struct {
	Space schemas.Copy // without an item
	List  string
	Until time.Time // deletes that were put on the list later are not approved; zero: none is
	After string    // only items after this one; empty: all, and the space
	// Waiting selects those without a result since they were approved.
	Waiting bool
	Limit   int
}

// A ListedDelete is an item whose delete is, or was, on a list. The delete of the space itself has no item.
type ListedDelete struct {
	Item        string
	SourceStore string
	Deleted     time.Time // of the source: the newest until ListQuery.Until, or else the newest
	Listed      time.Time // when it was first put on the list
	Approved    bool      // it was put on the list until ListQuery.Until
	Reason      pb.DuplicationReason
	Version     string            // of the source's content; of a rewrite, as Deleted is of a delete
	Digests     map[string]string // those known of that content
	Detail      string            // why it waits
	Result      string            // after the decision, also of the restore; empty: none yet
	Why         string            // the detail or the error of that result
}

// ListedDeletes returns the deletes, or the rewrites, on a list, in the order of items.
func ListedDeletes(ctx context.Context, db *clickhouse.DB, q ListQuery) ([]ListedDelete, error) {
	type row struct {
		Item     string            `ch:"item"`
		Source   string            `ch:"source"`
		Deleted  time.Time         `ch:"deleted"`
		Listed   time.Time         `ch:"listed"`
		Approved bool              `ch:"approved"`
		Reason   string            `ch:"why"`
		Version  string            `ch:"version"`
		Digests  map[string]string `ch:"known"`
		Detail   string            `ch:"about"`
		Result   string            `ch:"outcome_of_it"`
		Why      string            `ch:"why_so"`
	}
	until := q.Until.UnixMilli()
	if q.Until.IsZero() {
		until = 0
	}
	having := " HAVING max(held)"
	if q.Waiting {
		having += " AND NOT max(ended)"
	}
	args := []any{q.List, q.List, until, q.Space.Account, q.Space.Space, q.Space.Store, q.After, q.After, q.Limit}
	rows, err := clickhouse.Query[row](ctx, db, "list the deletes that wait for approval",
		heldDeletes+", held AND toUnixTimestamp64Milli(ts) <= ? AS seen, (seen, ts) AS turn"+
			" SELECT item, argMaxIf(source_store::String, turn, held) AS source,"+
			" argMaxIf(assumeNotNull(change_time), turn, held) AS deleted, minIf(ts, held) AS listed,"+
			" toBool(max(seen)) AS approved, argMaxIf(reason::String, turn, held) AS why,"+
			" argMaxIf(source_version, turn, held) AS version, argMaxIf(digests, turn, held) AS known,"+
			" argMaxIf(detail, turn, held) AS about, argMaxIf(result::String, ts, ended) AS outcome_of_it,"+
			" argMaxIf(if(error != '', error, detail), ts, ended) AS why_so"+
			fromHeld+" AND (item > ? OR ? = '') GROUP BY item"+having+" ORDER BY item LIMIT ?", args...)
	all := make([]ListedDelete, len(rows))
	for i, r := range rows {
		all[i] = ListedDelete{r.Item, r.Source, r.Deleted, r.Listed, r.Approved,
			pb.DuplicationReason(enumValue(pb.DuplicationReason_value, "DUPLICATION_REASON_", r.Reason)),
			r.Version, r.Digests, r.Detail, r.Result, r.Why}
	}
	return all, err
}

// ListProgress counts the deletes, or the rewrites, of a list.
type ListProgress struct {
	Items    uint64    `ch:"items"`
	Ended    uint64    `ch:"over"`  // with a result since the decision
	Done     uint64    `ch:"done"`  // with the result deleted or copied since then
	Restored uint64    `ch:"back"`  // of a refused list: whose source is back
	Source   string    `ch:"of"`    // the store whose items were deleted or replaced
	First    time.Time `ch:"first"` // when the first and the last were put on the list
	Last     time.Time `ch:"last"`
}

// ProgressOfList counts the deletes, or the rewrites, of a list. space is a copy without an item.
func ProgressOfList(
	ctx context.Context, db *clickhouse.DB, space schemas.Copy, list string,
) (p ListProgress, err error) {
	rows, err := clickhouse.Query[ListProgress](ctx, db, "count the deletes that wait for approval",
		heldDeletes+"SELECT uniqExactIf(item, held) AS items, uniqExactIf(item, ended) AS over,"+
			" uniqExactIf(item, ended AND result IN ('deleted', 'copied')) AS done,"+
			" uniqExactIf(item, ended AND result IN ('restored', 'already-restored')) AS back,"+
			" anyIf(source_store::String, held) AS of, minIf(ts, held) AS first, maxIf(ts, held) AS last"+
			fromHeld, list, list, space.Account, space.Space, space.Store)
	if err == nil && len(rows) > 0 {
		p = rows[0]
	}
	return p, err
}
