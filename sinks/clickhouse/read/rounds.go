package read

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
)

// A RoundReport is the report of a round of a sweep.
type RoundReport struct {
	Kind        string           `ch:"kind" json:"kind"`
	Account     string           `ch:"account" json:"account"`
	Store       string           `ch:"store" json:"store"`
	Space       string           `ch:"space" json:"space"`
	Destination string           `ch:"destination_store" json:"destination"` // of a pair; else empty
	Round       string           `ch:"round" json:"round"`
	Started     time.Time        `ch:"began" json:"started"`
	Finished    time.Time        `ch:"ts" json:"finished"`
	Complete    bool             `ch:"complete" json:"complete"`
	Counts      map[string]int64 `ch:"counts" json:"counts"`
	Detail      string           `ch:"detail" json:"detail"`
}

// A ReportQuery selects reports. Empty fields select all. A kind also selects the kinds that begin with it and a slash.
type ReportQuery struct {
	Kind, Account, Store, Space string
	Also                        string // another kind, beside Kind; empty: none
	Round                       string
	Since                       time.Time // of their ends
	// Newest selects the newest report of each kind, account, store, space and destination.
	Newest bool
	Limit  int // 0: none
}

// Reports returns reports, newest first. It reads what the tables have, for display.
func Reports(ctx context.Context, db *clickhouse.DB, q ReportQuery) ([]RoundReport, error) {
	// A store also selects the pairs that have it as their destination.
	where := " WHERE (? = '' OR kind IN (?, ?) OR startsWith(kind, concat(?, '/'))) AND (? = '' OR account = ?)" +
		" AND (? = '' OR store = ? OR destination_store = ?) AND (? = '' OR space = ?)" +
		" AND (? = '' OR round = ?) AND ts >= fromUnixTimestamp64Milli(?, 'UTC')"
	args := []any{q.Kind, q.Kind, cmp.Or(q.Also, q.Kind), q.Kind, q.Account, q.Account, q.Store, q.Store, q.Store, q.Space,
		q.Space, q.Round, q.Round, max(0, q.Since.UnixMilli())}
	if q.Newest {
		where += " AND id IN (SELECT argMax(id, (ts, id)) FROM {db}.reports_v" + where +
			" GROUP BY kind, account, store, space, destination_store)"
		args = append(args, args...)
	}
	all, err := clickhouse.Query[RoundReport](ctx, db, "read the reports of rounds",
		"SELECT kind, account, store, space, destination_store, round, ifNull(started, "+noTime+") AS began, ts, counts,"+
			" complete, detail FROM {db}.reports_v"+where+
			" ORDER BY ts DESC, account, space, kind, store, destination_store, id DESC LIMIT ?",
		append(args, limitOf(q.Limit))...)
	for i := range all {
		all[i].Started = timeOrZero(all[i].Started)
	}
	return all, err
}

// An Iteration is the end of an iteration of a job: of a round of a sweep, or of another recurring task. A round that
// fails and goes on later has several.
type Iteration struct {
	ID       string           `ch:"id" json:"id"`
	Name     string           `ch:"name" json:"name"`
	Started  time.Time        `ch:"ts" json:"started"`
	Finished time.Time        `ch:"ended" json:"finished"`
	Counts   map[string]int64 `ch:"counts" json:"counts"`
	Error    string           `ch:"error" json:"error"` // empty: it has ended
}

// A JobQuery selects iterations.
type JobQuery struct {
	Name  string    // that of the job, or the part of names before a slash; empty: all
	Since time.Time // of their starts
	// Newest selects the iteration of each name that ended last.
	Newest bool
	Limit  int // 0: none
}

// Iterations returns iterations, newest first. It reads what the tables have, for display.
func Iterations(ctx context.Context, db *clickhouse.DB, q JobQuery) ([]Iteration, error) {
	where := " WHERE (? = '' OR name = ? OR startsWith(name, concat(?, '/')))" +
		" AND ts >= fromUnixTimestamp64Milli(?, 'UTC')"
	args := []any{q.Name, q.Name, q.Name, max(0, q.Since.UnixMilli())}
	if q.Newest {
		where += " AND id IN (SELECT argMax(id, (ifNull(finished, ts), ts, id)) FROM {db}.job_log_v" + where +
			" GROUP BY name)"
		args = append(args, args...)
	}
	all, err := clickhouse.Query[Iteration](ctx, db, "read the iterations of jobs",
		"SELECT id, name, ts, ifNull(finished, "+noTime+") AS ended, counts, error FROM {db}.job_log_v"+where+
			" ORDER BY ifNull(finished, ts) DESC, ts DESC, id DESC LIMIT ?", append(args, limitOf(q.Limit))...)
	for i := range all {
		all[i].Finished = timeOrZero(all[i].Finished)
	}
	return all, err
}

// LastEnd returns when an iteration of a job ended last that has not failed; the zero time: none is on record.
func LastEnd(ctx context.Context, db *clickhouse.DB, name string) (time.Time, error) {
	type row struct {
		Ended int64 `ch:"ended"`
	}
	rows, err := clickhouse.Query[row](ctx, db, "read the last end of a job",
		"SELECT ifNull(max(toUnixTimestamp64Milli(finished)), 0) AS ended FROM {db}.job_log_v"+
			" WHERE name = ? AND error = ''", name)
	if err != nil || len(rows) == 0 {
		return time.Time{}, err
	}
	return timeOfMillis(rows[0].Ended), nil
}

// JobFailures are the failures in a row of the iterations of a job.
type JobFailures struct {
	Name string `ch:"name"`
	// Count is the number of failures of the newest iteration that have ended at the same place: with the same counts.
	Count int64  `ch:"failures"`
	Error string `ch:"reason"` // of the newest
}

// longestIteration is how long before its failure an iteration has started at most: those of others are not found.
const longestIteration = 60 * 24 * time.Hour

// FailuresOfJobs returns the failures, since some time, of the jobs that have failed at last, sorted by name.
func FailuresOfJobs(ctx context.Context, db *clickhouse.DB, since time.Time) ([]JobFailures, error) {
	return clickhouse.Query[JobFailures](ctx, db, "read the failures of jobs",
		"WITH argMax(place, at) AS newest SELECT name, argMax(error, at) AS reason,"+
			" toInt64(arrayCount(x -> x = newest, groupArrayIf(place, error != ''))) AS failures FROM ("+
			"SELECT name, error, toUnixTimestamp64Milli(ifNull(finished, ts)) AS at, (ts, toString(mapSort(counts))) AS place"+
			" FROM {db}.job_log_v WHERE ts >= "+milliParam+" AND ifNull(finished, ts) >= "+milliParam+")"+
			" GROUP BY name HAVING reason != '' ORDER BY name", since.Add(-longestIteration).UnixMilli(), since.UnixMilli())
}

// limitOf returns the value of LIMIT; 0 is none.
func limitOf(n int) int {
	if n == 0 {
		return math.MaxInt64
	}
	return n
}

// noTime is SQL for a time that is not on record.
const noTime = "toDateTime64(0, 3, 'UTC')"

// timeOrZero returns a time; zero for noTime.
func timeOrZero(t time.Time) time.Time { return timeOfMillis(t.UnixMilli()) }

// timeOfMillis returns the time of milliseconds since 1970; zero for 0.
func timeOfMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
