package clickhouse

import (
	"context"
	"time"
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
	return db.perDay(ctx, q, "count changes", "op", "audit_log_v")
}

// ChecksPerDay counts the checks of each day and verdict, in the order of days.
func (db *DB) ChecksPerDay(ctx context.Context, q DayQuery) ([]DayCount, error) {
	return db.perDay(ctx, q, "count checks", "verdict", "bit_log_v")
}

// perDay reads the months asked for, and of those the account or the space. No counts are kept
// beside the tables: what landed twice would count twice in them.
func (db *DB) perDay(ctx context.Context, q DayQuery, what, column, view string) ([]DayCount, error) {
	from, to := q.Span.millis(time.Time{})
	statement := "SELECT toDate32(ts) AS day, " + column + " AS what, count() AS n FROM {db}." + view +
		" WHERE account = ? AND ts BETWEEN " + milli + " AND " + milli
	args := []any{q.Account, from, to}
	if q.Store != "" {
		statement += " AND store = ?"
		args = append(args, q.Store)
	}
	if q.Space != "" {
		statement += " AND space = ?"
		args = append(args, q.Space)
	}
	return query[DayCount](ctx, db, what, statement+" GROUP BY day, what ORDER BY day, what", args...)
}
