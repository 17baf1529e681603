package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
)

// An IncidentCount counts the open incidents of one kind.
type IncidentCount struct {
	Kind    string
	Open    int64
	Waiting int64     // for a decision of an operator: all lists do, and held repairs once, not each of them
	Oldest  time.Time // when the oldest one was opened
}

// CountIncidents counts the open incidents of an account, or of all accounts for "", by kind.
func CountIncidents(ctx context.Context, db *clickhouse.DB, account string) ([]IncidentCount, error) {
	type row struct {
		Kind    string `ch:"of_kind"`
		Open    int64  `ch:"open"`
		Waiting int64  `ch:"waiting"`
		Oldest  int64  `ch:"oldest"`
	}
	const current = "SELECT id, kind, state, ts, parent FROM (" +
		"SELECT id, account, store, space, item, kind, subject, state, ts, ns, parent FROM {db}.incidents_v" +
		" WHERE (? = '' OR account = ?) ORDER BY id, step_count DESC, revision DESC LIMIT 1 BY id)" +
		" ORDER BY ts DESC, ns DESC, id LIMIT 1 BY account, store, space, item, kind, subject"
	rows, err := clickhouse.Query[row](ctx, db, "count the open incidents",
		"SELECT kind::String AS of_kind, toInt64(count()) AS open,"+
			" toInt64(countIf(kind IN ('deletes-held', 'rewrites-held')"+
			" OR (kind = 'repairs-held' AND state = 'open' OR state = 'awaiting_approval') AND parent NOT IN ("+
			"SELECT id FROM ("+current+") WHERE kind = 'repairs-held' AND state != 'closed'))) AS waiting,"+
			" min(toUnixTimestamp64Milli(ts)) AS oldest FROM ("+current+")"+
			" WHERE state != 'closed' GROUP BY of_kind ORDER BY of_kind", account, account, account, account)
	all := make([]IncidentCount, len(rows))
	for i, r := range rows {
		all[i] = IncidentCount{r.Kind, r.Open, r.Waiting, timeOfMillis(r.Oldest)}
	}
	return all, err
}
