package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
)

// A PairDelay says how long the copies of one pair of stores took, from Kafka's time of a Change to the end of the
// command that copied its content.
type PairDelay struct {
	Source      string  `ch:"source"`
	Destination string  `ch:"destination"`
	Copies      uint64  `ch:"copies"`
	P50         float64 `ch:"p50"` // seconds
	P99         float64 `ch:"p99"` // seconds
}

// copiesOfChanges selects the results of commands of an account that copied the content of a Change. Commands that
// found a newer content than that of their Change are left out: Kafka's time of that content is not on record.
const copiesOfChanges = " FROM {db}.duplication_log_v WHERE account = ? AND ts >= fromUnixTimestamp64Milli(?, 'UTC')" +
	" AND result = 'copied' AND reason = 'change' AND item != '' AND NOT newer AND planned IS NOT NULL"

// PairDelays returns the delays of the copies of an account that ended since a time, ordered by source and destination.
// A pair without such copies is absent. The query reads the parts of the log that have rows since then.
func PairDelays(ctx context.Context, db *clickhouse.DB, account string, since time.Time) ([]PairDelay, error) {
	return clickhouse.Query[PairDelay](ctx, db, "read the delays of copies",
		"SELECT source_store::String AS source, destination_store::String AS destination, count() AS copies,"+
			" quantileTDigest(0.5)(delay)::Float64 AS p50, quantileTDigest(0.99)(delay)::Float64 AS p99 FROM ("+
			"SELECT source_store, destination_store,"+
			" greatest(0, dateDiff('millisecond', assumeNotNull(planned), ts)) / 1000 AS delay"+copiesOfChanges+
			") GROUP BY source_store, destination_store ORDER BY source, destination", account, since.UnixMilli())
}

// A PairRate is the rate at which one pair of stores has copied in its fastest minutes.
type PairRate struct {
	Source      string  `ch:"source"`
	Destination string  `ch:"destination"`
	Items       float64 `ch:"items"` // per second, in the minute with most items
	Bytes       float64 `ch:"bytes"` // per second, in the minute with most bytes
	Copies      uint64  `ch:"copies"`
}

// PairRates returns the rates of the copies of an account that ended since a time, ordered by source and destination.
// A pair without such copies is absent. Copies that took longer than a minute are spread over their time.
func PairRates(ctx context.Context, db *clickhouse.DB, account string, since time.Time) ([]PairRate, error) {
	return clickhouse.Query[PairRate](ctx, db, "read the rates of copies",
		"SELECT source_store::String AS source, destination_store::String AS destination, sum(n) AS copies,"+
			" max(n / span) AS items, max(sum_bytes / span) AS bytes FROM ("+
			"SELECT source_store, destination_store, count() AS n, sum(copied) AS sum_bytes,"+
			" greatest(60, dateDiff('second', min(begun), max(ts))) AS span FROM ("+
			"SELECT source_store, destination_store, ts, ifNull(started, ts) AS begun, duplication_log_v.bytes AS copied"+
			" FROM {db}.duplication_log_v WHERE account = ? AND ts >= fromUnixTimestamp64Milli(?, 'UTC')"+
			" AND result IN ('copied', 'was-lost', 'repaired') AND item != '')"+
			" GROUP BY source_store, destination_store, toStartOfMinute(ts))"+
			" GROUP BY source_store, destination_store ORDER BY source, destination", account, since.UnixMilli())
}
