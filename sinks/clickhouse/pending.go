package clickhouse

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
)

// A Pending copy is one whose newest check has concluded nothing: it is checked again before anything is done about it.
type Pending struct {
	schemas.Copy
	Verdict string // undecided, or unknown
	Finding string // what it will be if nothing changes
	Row     uint8
	Since   time.Time // start of the first check since the last one that concluded something
	Next    time.Time // when it is checked again
	Checks  uint64    // since then
}

// pendingLimit bounds how many pending copies are returned.
const pendingLimit = 10_000

// Pending returns the pending copies of an account, or of all with "", that were checked since a time: those that are
// checked again first come first, and at most 10,000.
func (db *DB) Pending(ctx context.Context, account string, since time.Time) ([]Pending, error) {
	type row struct {
		Account string    `ch:"account"`
		Store   string    `ch:"store"`
		Space   string    `ch:"space"`
		Item    string    `ch:"item"`
		Verdict string    `ch:"last_verdict"`
		Finding string    `ch:"last_finding"`
		Row     uint8     `ch:"last_row"`
		Since   time.Time `ch:"since"`
		Next    time.Time `ch:"due"`
		Checks  uint64    `ch:"checks"`
	}
	// Checks without a conclusion are rare, and found by the index of verdicts; only their copies are then looked at,
	// on each shard of a cluster.
	const undecided = "verdict IN ('undecided', 'unknown') AND NOT final AND ts >= fromUnixTimestamp64Milli(?, 'UTC') AND (? = '' OR account = ?)"
	args := []any{since.UnixMilli(), account, account, since.UnixMilli(), pendingLimit}
	rows, err := query[row](ctx, db, "list what is not decided",
		"SELECT account, store, space, item, argMax(verdict, (ts, off)) AS last_verdict, argMax(finding, (ts, off)) AS last_finding,"+
			" argMax(row, (ts, off)) AS last_row, min(ts) AS since, assumeNotNull(argMax(next, (ts, off))) AS due, count() AS checks FROM ("+
			"SELECT account, store, space, item, ts, off, verdict, finding, row, final, next,"+
			" maxIf(ts, final AND verdict != 'skipped') OVER (PARTITION BY account, store, space, item) AS concluded FROM {db}.bit_log_v"+
			" WHERE (account, space, item, store) GLOBAL IN (SELECT account, space, item, store FROM {db}.bit_log WHERE "+undecided+")"+
			" AND ts >= fromUnixTimestamp64Milli(?, 'UTC')"+
			") WHERE NOT final AND ts > concluded GROUP BY account, store, space, item ORDER BY due, account, space, item, store LIMIT ?", args...)
	all := make([]Pending, len(rows))
	for i, r := range rows {
		all[i] = Pending{schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item},
			r.Verdict, r.Finding, r.Row, r.Since, r.Next, r.Checks}
	}
	return all, err
}
