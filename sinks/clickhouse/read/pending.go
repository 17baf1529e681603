package read

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A PendingCopy is one with an inconclusive newest check. It is checked again before any other action.
type PendingCopy struct {
	schemas.Copy
	Verdict string // undecided or unknown
	Finding string // the finding if the next checks find the same
	Row     uint8
	Since   time.Time // start of the first check after the last conclusive one
	Next    time.Time // time of the next check
	Checks  uint64    // number of checks since then
}

// pendingLimit bounds the result of Pending.
const pendingLimit = 10_000

// Pending returns the pending copies of an account, a store and a space, each of which may be empty, for all, that were
// checked at or after since, ordered by the time of their next check. It returns at most 10,000.
func Pending(ctx context.Context, db *clickhouse.DB, of schemas.Copy, since time.Time) ([]PendingCopy, error) {
	type row struct {
		copyKey
		Verdict string    `ch:"last_verdict"`
		Finding string    `ch:"last_finding"`
		Row     uint8     `ch:"last_row"`
		Since   time.Time `ch:"since"`
		Next    time.Time `ch:"due"`
		Checks  uint64    `ch:"checks"`
	}
	// Inconclusive checks are rare, and the index of verdicts finds them. Only their copies are then read.
	const undecided = "verdict IN ('undecided', 'unknown') AND NOT final" +
		" AND ts >= fromUnixTimestamp64Milli(?, 'UTC') AND " + whereSpace
	args := append([]any{since.UnixMilli()}, spaceArgs(of)...)
	args = append(args, since.UnixMilli(), pendingLimit)
	rows, err := clickhouse.Query[row](ctx, db, "list pending copies",
		"SELECT account, store, space, item, argMax(verdict, (ts, off)) AS last_verdict,"+
			" argMax(finding, (ts, off)) AS last_finding, argMax(row, (ts, off)) AS last_row, min(ts) AS since,"+
			" assumeNotNull(argMax(next, (ts, off))) AS due, count() AS checks FROM ("+
			"SELECT account, store, space, item, ts, off, verdict, finding, row, final, next,"+
			" maxIf(ts, final AND verdict != 'skipped') OVER (PARTITION BY account, store, space, item) AS concluded"+
			" FROM {db}.bit_log_v WHERE (account, space, item, store)"+
			" IN (SELECT account, space, item, store FROM {db}.bit_log WHERE "+undecided+")"+
			" AND ts >= fromUnixTimestamp64Milli(?, 'UTC')"+
			") WHERE NOT final AND ts > concluded GROUP BY account, store, space, item"+
			" ORDER BY due, account, space, item, store LIMIT ?", args...)
	all := make([]PendingCopy, len(rows))
	for i, r := range rows {
		all[i] = PendingCopy{r.copy(), r.Verdict, r.Finding, r.Row, r.Since, r.Next, r.Checks}
	}
	return all, err
}
