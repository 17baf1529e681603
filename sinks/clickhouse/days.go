package clickhouse

import (
	"context"
	"fmt"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
)

// A DayQuery asks for counts per day (UTC).
type DayQuery struct {
	Account      string
	Store, Space string // empty: every one
	Span         Span
}

// A DayCount counts what happened on one day in one way.
type DayCount struct {
	Day   time.Time `ch:"day"`
	What  string    `ch:"what"` // the op of changes, the verdict of checks
	Count uint64    `ch:"n"`
}

// ChangesPerDay counts the changes of each day and op, in the order of days.
func (db *DB) ChangesPerDay(ctx context.Context, q DayQuery) ([]DayCount, error) {
	return db.perDay(ctx, q, "count changes", `SELECT day, what, count() AS n FROM (
  SELECT any(toDate32(r.ts)) AS day,
    argMin(r.op, (r.origin != 'client', r.ingested, r.off, r.inc)) AS what
  FROM {db}.audit_log AS r WHERE %s GROUP BY r.id
) GROUP BY day, what ORDER BY day, what`)
}

// ChecksPerDay counts the checks of each day and verdict, in the order of days.
func (db *DB) ChecksPerDay(ctx context.Context, q DayQuery) ([]DayCount, error) {
	return db.perDay(ctx, q, "count checks",
		"SELECT toDate32(ts) AS day, verdict AS what, count() AS n FROM {db}.bit_log_v WHERE %s"+
			" GROUP BY day, what ORDER BY day, what")
}

// spilling bounds what the engine holds in memory of a question that groups as many rows as there are.
func spillToDisk(ctx context.Context) context.Context {
	return ch.Context(ctx, ch.WithSettings(ch.Settings{"max_bytes_before_external_group_by": 512 << 20}))
}

// perDay reads the months asked for, and of those the account or the space. No counts are kept
// beside the tables: what landed twice would count twice in them.
func (db *DB) perDay(ctx context.Context, q DayQuery, what, statement string) ([]DayCount, error) {
	from, to := q.Span.millis(time.Time{})
	where, args := "account = ? AND ts BETWEEN "+milliParam+" AND "+milliParam, []any{q.Account, from, to}
	if q.Store != "" {
		where += " AND store = ?"
		args = append(args, q.Store)
	}
	if q.Space != "" {
		where += " AND space = ?"
		args = append(args, q.Space)
	}
	return query[DayCount](spillToDisk(ctx), db, what, fmt.Sprintf(statement, where), args...)
}
