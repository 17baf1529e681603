package read

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

const failed = "verdict IN ('fail', 'missing', 'not_captured')"

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
		copyKey
		FinalCheck
	}
	all := map[schemas.Copy]FinalCheck{}
	for part := range slices.Chunk(copies, finalCopies) {
		args := make([]any, 0, 4*len(part)+2)
		for _, c := range part {
			args = append(args, c.Account, c.Space, c.Item, c.Store)
		}
		from, _ := Span{From: since}.millis()
		rows, err := clickhouse.Query[row](ctx, db, "read the results of checks",
			"SELECT account, store, space, item, verdict, finding, level, metadata, detail FROM {db}.bit_log_v"+
				" WHERE (account, space, item, store) IN ("+strings.Repeat("(?, ?, ?, ?),", len(part)-1)+"(?, ?, ?, ?))"+
				" AND ts >= "+milliParam+" AND cause = ? AND final ORDER BY ts, id", append(args, from, cause)...)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			all[r.copy()] = r.FinalCheck
		}
	}
	return all, nil
}

// A FailureQuery selects checks.
type FailureQuery struct {
	Account      string
	Store, Space string // empty: all
	Span         Span   // of the starts of the checks
}
