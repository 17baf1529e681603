package clickhouse

import (
	"context"
	"fmt"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
)

// A DayQuery selects changes or checks, to be counted per day (UTC).
type DayQuery struct {
	Account      string
	Store, Space string // empty: all
	Span         Span
}

// A DayCount counts the changes or checks of one day and one kind.
type DayCount struct {
	Day   time.Time `ch:"day"`
	What  string    `ch:"what"` // op of the changes, or verdict of the checks
	Count uint64    `ch:"n"`
}

// ChangesPerDay counts changes by day and op, ordered by day.
func (db *DB) ChangesPerDay(ctx context.Context, q DayQuery) ([]DayCount, error) {
	return db.perDay(ctx, q, "count changes", `SELECT day, what, count() AS n FROM (
  SELECT any(toDate32(r.ts)) AS day,
    argMin(r.op, (r.origin != 'client', r.ingested, r.off, r.inc)) AS what
  FROM {db}.audit_log AS r WHERE %s GROUP BY r.id
) GROUP BY day, what ORDER BY day, what`)
}

// ChecksPerDay counts checks by day and verdict, ordered by day.
func (db *DB) ChecksPerDay(ctx context.Context, q DayQuery) ([]DayCount, error) {
	return db.perDay(ctx, q, "count checks",
		"SELECT toDate32(ts) AS day, verdict AS what, count() AS n FROM {db}.bit_log_v WHERE %s"+
			" GROUP BY day, what ORDER BY day, what")
}

// spillToDisk bounds the memory that the server uses for a GROUP BY with very many groups.
func spillToDisk(ctx context.Context) context.Context {
	return ch.Context(ctx, ch.WithSettings(ch.Settings{"max_bytes_before_external_group_by": 512 << 20}))
}

// perDay reads all rows of the selected months and of the account or space. There are no precomputed counts, because
// they would count rows twice that were stored twice.
func (db *DB) perDay(ctx context.Context, q DayQuery, op, statement string) ([]DayCount, error) {
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
	return query[DayCount](spillToDisk(ctx), db, op, fmt.Sprintf(statement, where), args...)
}
