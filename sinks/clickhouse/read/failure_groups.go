package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
)

// A FailureGroup counts the checked copies that have something in common, and those of them that failed.
type FailureGroup struct {
	Dimension string
	Value     string
	Total     uint64
	Failed    uint64
}

// The dimensions of failures. The last four are those of the first check of a copy that failed, or of the first one if
// none did: a copy that fails again and again counts once.
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
	Bytes  int64  `ch:"bytes"` // that were read
	First  int64  `ch:"first"` // when the first check began that failed, in ms; 0: none did
}

// FirstFailed returns when the first check began that failed; the zero time: none did.
func (t FailureTotals) FirstFailed() time.Time { return timeOfMillis(t.First) }

// failuresIn is the condition of the checks that count: final ones with a verdict. An unknown or undecided check is no
// failure and no pass.
func failuresIn(q FailureQuery) (where string, args []any) {
	from, to := q.Span.millis(time.Time{})
	where = "account = ? AND ts BETWEEN " + milliParam + " AND " + milliParam +
		" AND final AND verdict IN ('pass', 'fail', 'missing', 'not_captured')" +
		" AND (? = '' OR store = ?) AND (? = '' OR space = ?)"
	return where, []any{q.Account, from, to, q.Store, q.Store, q.Space, q.Space}
}

// Failures returns what the checks that q selects have found, with up to 1,000 groups of each dimension, those with
// most failures first. After and Limit of q are not used.
func Failures(
	ctx context.Context, db *clickhouse.DB, q FailureQuery,
) (t FailureTotals, groups []FailureGroup, err error) {
	where, args := failuresIn(q)
	totals, err := clickhouse.Query[FailureTotals](ctx, db, "count the failures of checks",
		"SELECT count() AS copies, countIf(worst) AS failed, sum(n) AS checks, sum(amount) AS bytes,"+
			" minIf(began, worst) AS first FROM (SELECT count() AS n, sum(bytes_read) AS amount, max("+failed+") AS worst,"+
			" minIf(toUnixTimestamp64Milli(ts), "+failed+") AS began FROM {db}.bit_log WHERE "+where+
			" GROUP BY account, space, item, store)"+aggregateInOrder, args...)
	if err != nil || len(totals) == 0 {
		return t, nil, err
	}
	t = totals[0]
	type row struct {
		Dimension string `ch:"dimension"`
		Value     string `ch:"of_value"`
		Total     uint64 `ch:"total"`
		Failed    uint64 `ch:"failures"`
	}
	rows, err := clickhouse.Query[row](ctx, db, "group the failures of checks",
		"SELECT pair.1 AS dimension, pair.2 AS of_value, count() AS total, countIf(worst) AS failures FROM ("+
			"SELECT max("+failed+") AS worst, store::String AS in_store,"+
			" minIf(object_modified, object_modified IS NOT NULL) AS written,"+
			" argMin((worker::String, host::String, software::String, ts), (NOT ("+failed+"), ts)) AS one,"+
			" [('"+ByStore+"', in_store), ('"+BySpace+"', space),"+
			" ('"+ByPrefix+"', concat(space, '/', if(position(item, '/') > 0, splitByChar('/', item)[1], ''))),"+
			" ('"+ByMonth+"', ifNull(formatDateTime(written, '%Y-%m'), 'unknown')),"+
			" ('"+ByWorker+"', one.1), ('"+ByHost+"', one.2), ('"+BySoftware+"', one.3),"+
			" ('"+ByHour+"', formatDateTime(one.4, '%Y-%m-%dT%H'))] AS pairs"+
			" FROM {db}.bit_log WHERE "+where+" GROUP BY account, space, item, store)"+
			" ARRAY JOIN pairs AS pair GROUP BY dimension, of_value"+
			" ORDER BY dimension, failures DESC, total DESC, of_value LIMIT 1000 BY dimension"+aggregateInOrder, args...)
	for _, r := range rows {
		groups = append(groups, FailureGroup(r))
	}
	return t, groups, err
}
