package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
)

// A SpaceSize is the size of a space in a store, as the stats sweep has counted it.
type SpaceSize struct {
	Store string    `ch:"in_store"`
	At    time.Time `ch:"at"`
	Items int64     `ch:"oldest_items"`
	Bytes int64     `ch:"oldest_bytes"` // of the copies with a known size
}

// SizesSince returns the oldest count of a space in each store since a time, ordered by store. A store without a count
// is absent.
func SizesSince(
	ctx context.Context, db *clickhouse.DB, account, space string, since time.Time,
) ([]SpaceSize, error) {
	return clickhouse.Query[SpaceSize](ctx, db, "read the sizes of a space",
		"SELECT store::String AS in_store, min(ts) AS at, argMin(items, ts) AS oldest_items,"+
			" argMin(bytes, ts) AS oldest_bytes FROM {db}.space_stats WHERE account = ? AND space = ? AND ts >= "+milliParam+
			" GROUP BY store ORDER BY in_store", account, space, since.UnixMilli())
}

// A CheckRate is how fast a store has been checked: the fastest minute.
type CheckRate struct {
	Store  string  `ch:"in_store"`
	Checks float64 `ch:"checks"` // per second, in the minute with most checks
	Bytes  float64 `ch:"bytes"`  // read per second, in the minute with most bytes
}

// CheckRates returns the rates of the checks of an account that have read bytes and began since a time, ordered by
// store. A store without such checks is absent. Checks that took longer than a minute are spread over their time.
func CheckRates(ctx context.Context, db *clickhouse.DB, account string, since time.Time) ([]CheckRate, error) {
	return clickhouse.Query[CheckRate](ctx, db, "read the rates of checks",
		"SELECT store::String AS in_store, max(n / span) AS checks, max(amount / span) AS bytes FROM ("+
			"SELECT store, count() AS n, sum(bytes_read) AS amount,"+
			" greatest(60, dateDiff('second', min(ts), max(finished))) AS span"+
			" FROM {db}.bit_log_v WHERE account = ? AND ts >= "+milliParam+" AND bytes_read > 0"+
			" GROUP BY store, toStartOfMinute(finished)) GROUP BY store ORDER BY in_store", account, since.UnixMilli())
}
