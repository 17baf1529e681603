package read

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/version"
)

// copySummary selects the columns that counts and selections of copies need. It does not read whole groups as
// copy_merged does, because comparing tuples costs several times as much as comparing their versions.
const copySummary = `SELECT account, store, space, item, max(content.ver) AS written, max(deleted.ver) AS gone,
  written > gone AS live,
  argMax(content.size, content.ver) AS size, argMax(content.change, content.ver) AS written_by,
  maxMap(digests) AS reported,
  max(pass.ver) AS passed_ver, argMax(pass.digests, pass.ver) AS passed_digests, max(asserted.ver) AS asserted_ver,
  max(fail.ver) AS failed_ver, max(attempt.ver) AS attempted_ver, argMax(attempt.verdict, attempt.ver) AS attempted_as,
  mapFilter((k, v) -> substring(v, 18, 16) = written_by AND mapContains(passed_digests, k), reported) AS shared,
  if(notEmpty(shared)
      AND NOT arrayExists((k, v) -> passed_digests[k] != substring(v, 34), mapKeys(shared), mapValues(shared)),
    toInt64(bitShiftRight(passed_ver, 83)), 0) AS effective
FROM {db}.copy_state WHERE `

// aggregateInOrder groups copies in the order of the table, which needs little memory.
const aggregateInOrder = " SETTINGS optimize_aggregation_in_order = 1"

// A StatusQuery selects live copies of an account, to be counted by the results of their checks.
type StatusQuery struct {
	Account      string
	Store, Space string    // empty: all
	PassedBefore time.Time // copies without a pass since then are overdue; zero: copies that never passed
	Asserted     bool      // a pass counts for Overdue, too, that rests on what the store asserts
	Emptied      bool      // also spaces that have no live copies any more
}

// A SpaceStatus counts the live copies of one space in one store by the results of their checks.
type SpaceStatus struct {
	Store    string    `ch:"store"`
	Space    string    `ch:"space"`
	Live     uint64    `ch:"live_copies"`
	Bytes    int64     `ch:"bytes"`    // of the copies with a known size
	Unsized  uint64    `ch:"unsized"`  // copies with an unknown size
	Verified uint64    `ch:"verified"` // copies with a pass of the bytes of their current content
	Overdue  uint64    `ch:"overdue"`
	Failing  uint64    `ch:"failing"`      // copies with a failed check that began after their newest pass
	Unknown  uint64    `ch:"inconclusive"` // copies whose newest check is repeated, as when the store did not answer
	Oldest   time.Time `ch:"oldest"`       // the oldest of the last passes of verified copies; zero: none is verified
	Newest   time.Time `ch:"newest"`       // start of the newest check; zero: there was none
}

// FixityStatus returns the status of each space in each store, ordered by store and space.
func FixityStatus(ctx context.Context, db *clickhouse.DB, q StatusQuery) ([]SpaceStatus, error) {
	where, args := "account = ?", []any{q.Account}
	if q.Store != "" {
		where, args = where+" AND store = ?", append(args, q.Store)
	}
	if q.Space != "" {
		where, args = where+" AND space = ?", append(args, q.Space)
	}
	having := " HAVING live_copies > 0"
	if q.Emptied {
		having = ""
	}
	all, err := clickhouse.Query[SpaceStatus](ctx, db, "count copies by their checks",
		"SELECT store, space, countIf(live) AS live_copies, sumIf(size, live AND size >= 0) AS bytes,"+
			" countIf(live AND size < 0) AS unsized, countIf(live AND effective > 0) AS verified,"+
			" countIf(live AND "+lastPass(q.Asserted)+" < greatest(?, 1)) AS overdue,"+
			" countIf(live AND failed_ver > passed_ver) AS failing,"+
			" countIf(live AND attempted_ver > written AND attempted_as IN ('unknown', 'undecided')) AS inconclusive,"+
			" "+unshifted("minIf(effective, live AND effective > 0)")+" AS oldest,"+
			" "+unshifted("toInt64(bitShiftRight(maxIf(attempted_ver, live), 83))")+" AS newest"+
			" FROM ("+copySummary+where+" GROUP BY account, store, space, item)"+
			" GROUP BY store, space"+having+" ORDER BY store, space"+aggregateInOrder,
		append([]any{shifted(q.PassedBefore)}, args...)...)
	for i := range all {
		all[i].Oldest, all[i].Newest = timeOrZero(all[i].Oldest), timeOrZero(all[i].Newest)
	}
	return all, err
}

// unshifted is SQL for the time of the shifted milliseconds of a version; noTime for 0.
func unshifted(of string) string {
	return fmt.Sprintf("fromUnixTimestamp64Milli(greatest(%s - %d, 0), 'UTC')", of, version.Shift)
}

// unshiftTime returns the time of the shifted milliseconds of a version; zero for 0.
func unshiftTime(shifted int64) time.Time {
	if shifted == 0 {
		return time.Time{}
	}
	return time.UnixMilli(shifted - version.Shift).UTC()
}
