package read

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A CheckQuery selects checks of one copy.
type CheckQuery struct {
	Copy  schemas.Copy
	Span  Span // of the starts of the checks
	After CheckCursor
	Limit int // default 1,000
}

// A CheckCursor is the end of a page of checks. The zero cursor is the start.
type CheckCursor struct {
	Started time.Time
	ID      string
}

// Checks returns checks of a copy, oldest first, and the cursor of the next page. A page with fewer than Limit
// checks is the last one.
func Checks(ctx context.Context, db *clickhouse.DB, q CheckQuery) ([]Check, CheckCursor, error) {
	from, to := q.Span.millis(q.After.Started)
	checks, err := clickhouse.Query[Check](ctx, db, "read the checks of a copy",
		"SELECT "+checkFields+" FROM {db}.bit_log_v WHERE "+ofCopy+" AND ts BETWEEN "+milliParam+" AND "+milliParam+
			" AND (ts, id) > ("+milliParam+", ?) ORDER BY ts, id LIMIT ?",
		q.Copy.Account, q.Copy.Store, q.Copy.Space, q.Copy.Item, from, to,
		afterMillis(q.After.Started), q.After.ID, limit(q.Limit))
	if err != nil || len(checks) == 0 {
		return nil, q.After, err
	}
	last := checks[len(checks)-1]
	return checks, CheckCursor{last.Started, last.ID}, nil
}

const (
	checkFields = "id, task, round, ts, finished, reason, verdict, row, finding, final, level, recheck, detail"
	ofCopy      = "account = ? AND store = ? AND space = ? AND item = ?"
	failed      = "verdict IN ('fail', 'missing', 'not_captured')"
)

// A FinalCheck is the final result of a check that was asked for.
type FinalCheck struct {
	Verdict  string `ch:"verdict"`
	Finding  string `ch:"finding"`
	Level    uint8  `ch:"level"`
	Metadata string `ch:"metadata"`
	Detail   string `ch:"detail"`
}

// finalCopies is the number of copies in one query of FinalChecks.
const finalCopies = 500

// FinalChecks returns the final results of the checks of copies that have a cause and began at since or later. Copies
// without one are absent.
func FinalChecks(
	ctx context.Context, db *clickhouse.DB, cause string, since time.Time, copies []schemas.Copy,
) (map[schemas.Copy]FinalCheck, error) {
	type row struct {
		Account string `ch:"account"`
		Store   string `ch:"store"`
		Space   string `ch:"space"`
		Item    string `ch:"item"`
		FinalCheck
	}
	all := map[schemas.Copy]FinalCheck{}
	for part := range slices.Chunk(copies, finalCopies) {
		args := make([]any, 0, 4*len(part)+2)
		for _, c := range part {
			args = append(args, c.Account, c.Space, c.Item, c.Store)
		}
		from, _ := Span{From: since}.millis(time.Time{})
		rows, err := clickhouse.Query[row](ctx, db, "read the results of checks",
			"SELECT account, store, space, item, verdict, finding, level, metadata, detail FROM {db}.bit_log_v"+
				" WHERE (account, space, item, store) IN ("+strings.Repeat("(?, ?, ?, ?),", len(part)-1)+"(?, ?, ?, ?))"+
				" AND ts >= "+milliParam+" AND cause = ? AND final ORDER BY ts, id", append(args, from, cause)...)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			all[schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item}] = r.FinalCheck
		}
	}
	return all, nil
}

// A Failure is the first failed check of a copy, and the last pass before it.
type Failure struct {
	Check
	LastPass *time.Time // start of the last pass before the failure; nil: none
}

// FirstFailure returns the first failed check of a copy that began at since or later, or nil.
func FirstFailure(ctx context.Context, db *clickhouse.DB, c schemas.Copy, since time.Time) (*Failure, error) {
	key := []any{c.Account, c.Store, c.Space, c.Item}
	from, _ := Span{From: since}.millis(time.Time{})
	checks, err := clickhouse.Query[Check](ctx, db, "read the first failure of a copy",
		"SELECT "+checkFields+" FROM {db}.bit_log_v WHERE "+ofCopy+" AND ts >= "+milliParam+
			" AND "+failed+" ORDER BY ts, id LIMIT 1",
		append(key, from)...)
	if err != nil || len(checks) == 0 {
		return nil, err
	}
	type good struct {
		Started time.Time `ch:"ts"`
	}
	passes, err := clickhouse.Query[good](ctx, db, "read the last pass of a copy",
		"SELECT ts FROM {db}.bit_log_v WHERE "+ofCopy+" AND ts < "+milliParam+
			" AND verdict = 'pass' ORDER BY ts DESC LIMIT 1",
		append(key, checks[0].Started.UnixMilli())...)
	if err != nil {
		return nil, err
	}
	f := &Failure{Check: checks[0]}
	if len(passes) > 0 {
		f.LastPass = &passes[0].Started
	}
	return f, nil
}

// A FailureQuery selects copies with failed checks.
type FailureQuery struct {
	Account      string
	Store, Space string // empty: all
	Span         Span   // of the starts of the checks
	After        schemas.Copy
	Limit        int // default 1,000
}

// A FailedCopy is a copy with failed checks.
type FailedCopy struct {
	schemas.Copy
	First, Last time.Time // starts of the first and the last failed check
	Finding     string    // of the first failed check
	Row         uint8
	Checks      uint64 // number of failed checks
}

// FailedCopies returns the copies with failed checks, ordered by space, item and store. A page with fewer than Limit
// copies is the last one; the After of the next page is the Copy of the last one.
func FailedCopies(ctx context.Context, db *clickhouse.DB, q FailureQuery) ([]FailedCopy, error) {
	from, to := q.Span.millis(time.Time{})
	// The table is faster than its view. Rows that were stored twice only change the count, which therefore counts ids.
	statement := "SELECT store, space, item, min(ts) AS first, max(ts) AS last," +
		" argMin(finding, (ts, id)) AS found, argMin(row, (ts, id)) AS as_row, uniqExact(id) AS checks" +
		" FROM {db}.bit_log WHERE account = ? AND ts BETWEEN " + milliParam + " AND " + milliParam + " AND " + failed
	args := []any{q.Account, from, to}
	if q.Store != "" {
		statement += " AND store = ?"
		args = append(args, q.Store)
	}
	if q.Space != "" {
		statement += " AND space = ?"
		args = append(args, q.Space)
	}
	if q.After != (schemas.Copy{}) {
		statement += " AND (space, item, store) > (?, ?, ?) AND space >= ?"
		args = append(args, q.After.Space, q.After.Item, q.After.Store, q.After.Space)
	}
	type row struct {
		Store   string    `ch:"store"`
		Space   string    `ch:"space"`
		Item    string    `ch:"item"`
		First   time.Time `ch:"first"`
		Last    time.Time `ch:"last"`
		Finding string    `ch:"found"`
		Row     uint8     `ch:"as_row"`
		Checks  uint64    `ch:"checks"`
	}
	rows, err := clickhouse.Query[row](ctx, db, "list the copies that failed",
		statement+" GROUP BY store, space, item ORDER BY space, item, store LIMIT ?", append(args, limit(q.Limit))...)
	copies := make([]FailedCopy, len(rows))
	for i, r := range rows {
		c := schemas.Copy{Account: q.Account, Store: r.Store, Space: r.Space, Item: r.Item}
		copies[i] = FailedCopy{c, r.First, r.Last, r.Finding, r.Row, r.Checks}
	}
	return copies, err
}
