package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
)

// A FailureGroup counts the checked copies that have something in common, and those of them that failed. By what a
// check has, it counts the checks of each copy until the first one that failed: a copy that fails again and again
// counts once, and a group has no more failures than its share because copies fail late.
type FailureGroup struct {
	Dimension string `ch:"dimension" json:"dimension"`
	Value     string `ch:"of_value" json:"value"`
	Total     uint64 `ch:"total" json:"total"` // copies, or checks
	Failed    uint64 `ch:"failures" json:"failed"`
	All       uint64 `ch:"of_all" json:"-"`    // the sum of Total in the dimension
	AllFailed uint64 `ch:"of_failed" json:"-"` // the sum of Failed in the dimension
}

// The dimensions of failures. The last four are of checks.
const (
	ByStore    = "store"
	BySpace    = "space"
	ByPrefix   = "prefix" // of the item until its first slash, after the space
	ByMonth    = "month"  // in which the content was written
	ByWorker   = "worker"
	ByHost     = "host"
	BySoftware = "software"
	ByHour     = "hour" // in which the check began
)

// A FailureTotals is what the checks of a time have found.
type FailureTotals struct {
	Copies uint64 `ch:"copies"` // that were checked
	Failed uint64 `ch:"failed"` // copies with a failed check
	Checks uint64 `ch:"checks"`
	Bytes  int64  `ch:"bytes"`  // that were read
	First  int64  `ch:"first"`  // when the first check began that failed, in ms; 0: none did
	Groups uint64 `ch:"groups"` // of all dimensions, also those that Failures does not return
}

// FirstFailed returns when the first check began that failed; the zero time: none did.
func (t FailureTotals) FirstFailed() time.Time { return timeOfMillis(t.First) }

// failuresIn is the condition of the checks that count: final ones with a verdict. An unknown or undecided check is no
// failure and no pass.
func failuresIn(q FailureQuery) (where string, args []any) {
	from, to := q.Span.millis()
	where = "account = ? AND ts BETWEEN " + milliParam + " AND " + milliParam +
		" AND final AND verdict IN ('pass', 'fail', 'missing', 'not_captured')" +
		" AND (? = '' OR store = ?) AND (? = '' OR space = ?)"
	return where, []any{q.Account, from, to, q.Store, q.Store, q.Space, q.Space}
}

// checksOfCopies selects the checks of each copy in their order, each once although it may be stored twice, and the
// number of the first one that failed; 0: none did.
const checksOfCopies = "SELECT store::String AS in_store, space, item," +
	" minIf(object_modified, object_modified IS NOT NULL) AS written," +
	" arraySort(groupUniqArray((ts, id, " + failed + ", bytes_read, worker::String, host::String, software::String)))" +
	" AS results, arrayFirstIndex(c -> c.3, results) AS bad FROM {db}.bit_log WHERE "

// Failures returns what the checks that q selects have found, with up to 1,000 groups of each dimension, those with
// most failures first, and the smallest of these.
func Failures(
	ctx context.Context, db *clickhouse.DB, q FailureQuery,
) (t FailureTotals, groups []FailureGroup, err error) {
	where, args := failuresIn(q)
	copies := " FROM (" + checksOfCopies + where + " GROUP BY account, space, item, store)"
	totals, err := clickhouse.Query[FailureTotals](ctx, db, "count the failures of checks",
		"SELECT count() AS copies, countIf(bad > 0) AS failed, sum(length(results)) AS checks,"+
			" sum(arraySum(c -> c.4, results)) AS bytes, minIf(toUnixTimestamp64Milli(results[bad].1), bad > 0) AS first,"+
			" 0::UInt64 AS groups"+copies+aggregateInOrder, args...)
	if err != nil || len(totals) == 0 {
		return t, nil, err
	}
	t = totals[0]
	type row struct {
		FailureGroup
		Groups uint64 `ch:"groups"`
	}
	rows, err := clickhouse.Query[row](ctx, db, "group the failures of checks",
		"SELECT *, sum(total) OVER (PARTITION BY dimension) AS of_all,"+
			" sum(failures) OVER (PARTITION BY dimension) AS of_failed, count() OVER () AS groups FROM ("+
			"SELECT pair.1 AS dimension, pair.2 AS of_value, count() AS total, countIf(pair.3) AS failures FROM ("+
			"SELECT arrayConcat([('"+ByStore+"', in_store, bad > 0), ('"+BySpace+"', space, bad > 0),"+
			" ('"+ByPrefix+"', concat(space, '/', if(position(item, '/') > 0, splitByChar('/', item)[1], '')), bad > 0),"+
			" ('"+ByMonth+"', ifNull(formatDateTime(written, '%Y-%m'), 'unknown'), bad > 0)],"+
			" arrayFlatten(arrayMap(c -> [('"+ByWorker+"', c.5, c.3), ('"+ByHost+"', c.6, c.3), ('"+BySoftware+"', c.7, c.3),"+
			" ('"+ByHour+"', formatDateTime(c.1, '%Y-%m-%dT%H'), c.3)],"+
			" arraySlice(results, 1, if(bad > 0, bad, length(results)))))) AS pairs"+copies+
			") ARRAY JOIN pairs AS pair GROUP BY dimension, of_value)"+
			" ORDER BY dimension, failures DESC, total, of_value LIMIT 1000 BY dimension"+aggregateInOrder, args...)
	for _, r := range rows {
		groups = append(groups, r.FailureGroup)
		t.Groups = r.Groups
	}
	return t, groups, err
}
