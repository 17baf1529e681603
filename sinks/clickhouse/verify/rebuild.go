package verify

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"strings"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// rebuiltPrefix begins the name of a table with a state made from the logs. It is an ordinary table, because only
// one connection could read a temporary one. Its creator drops it.
const rebuiltPrefix = "copy_state_rebuilt_"

// A stateQuery converts rows of a log to rows of the state, equal to those that State.Store writes for the same
// records. Columns that it does not set are zero, and lose against every other value.
type stateQuery struct {
	key                          string // of the rows; empty: the copies
	log, columns, selects, where string
}

// changesAt is the audit log with the times that order its rows, of the record (at) and of the source content
// (source_at), and the nanoseconds from them to the reported times. A Change that was ever ahead of Kafka's time, or
// whose source content was, is ordered by Kafka's time of its first record.
const changesAt = `(SELECT *, if(ahead, before, ingested) AS kafka, least(ts, kafka) AS at,
    toUInt64(ns) + toUInt64(dateDiff('millisecond', at, ts)) * 1000000 AS nanos,
    if(source_time IS NULL, NULL, least(assumeNotNull(source_time), kafka)) AS source_at,
    toUInt64(source_ns) + toUInt64(ifNull(dateDiff('millisecond', source_at, source_time), 0)) * 1000000 AS source_nanos
  FROM {db}.audit_log AS log LEFT JOIN (
    SELECT id, ts, min(ingested) AS before, true AS ahead FROM {db}.audit_log
    WHERE position = 0 AND ` + isAhead + ` GROUP BY id, ts
  ) AS early USING (id, ts))`

// insertInto returns the statement that converts all rows of the log, and inserts them into a table.
func (r stateQuery) insertInto(table string) string {
	from := "{db}." + r.log
	if r.log == "audit_log" {
		from = changesAt
	}
	return "INSERT INTO {db}." + table + " (account, store, space, item, " + r.columns + ")" +
		" SELECT " + cmp.Or(r.key, "account, store, space, item") + ", " + r.selects +
		" FROM " + from + " WHERE position = 0 AND " + r.where
}

// changeVersion and checkVersion compute Version.Wide of a row.
const (
	versionTail   = "bitShiftLeft(toUInt128(off), 32) + toUInt128(inc)"
	changeRank    = "toUInt64(origin NOT IN ('fixity', 'sweep'))"
	changeTime    = "toUnixTimestamp64Milli(at) + 17592186044416"
	changeVersion = "bitShiftLeft(toUInt128(" + changeTime + "), 83) + bitShiftLeft(toUInt128(" + changeRank +
		"), 82) + bitShiftLeft(toUInt128(" + changePlace + "), 32) + toUInt128(inc)"
	changePlace    = "if(at < least(ts, ingested), 0, off)" // 0 of a repeat of a Change that was ahead
	checkVersion   = "bitShiftLeft(toUInt128(toUnixTimestamp64Milli(ts) + 17592186044416), 83) + " + versionTail
	writesContent  = "item != '' AND op IN ('add', 'update', 'copy')"
	isAhead        = "(ts > ingested OR ifNull(source_time > ingested, false))"
	isCompletion   = "evidence['completes'] = lower(hex(id))"
	movesClock     = "NOT overtaken AND verdict != 'skipped'"
	bigEndian8     = "unhex(leftPad(hex(toUInt64(%s)), 16, '0'))"
	contentDigests = "arrayFilter((x, places) -> bitTest(places, 0), `digest.%s`, `digest.places`)"
)

// stateQueries returns all conversions. TestRebuild compares them with State.Store.
func stateQueries() []stateQuery {
	order := "bitShiftLeft(" + changeRank + " + 1, 62) + " + changePlace
	digest := "concat(" + fmt.Sprintf(bigEndian8, changeTime) +
		", unhex(if(provenance = 'verified', '01', '00')), " +
		fmt.Sprintf(bigEndian8, "if("+isCompletion+", 1125899906842623 - off, "+order+")") + ", id, v)"
	digests := "mapApply((k, v) -> (concat(k, if(provenance = 'verified', '', '?')), " + digest + "), digests)"
	passed := "mapFromArrays(" + fmt.Sprintf(contentDigests, "algorithm") + ", " +
		fmt.Sprintf(contentDigests, "value") + ")"
	return []stateQuery{
		{log: "audit_log", key: "'', '', concat(toString(toUnixTimestamp64Milli(ts)), '/', lower(hex(id))), ''",
			columns: "position", selects: "toUInt64(17592186044416 - toUnixTimestamp64Milli(before))",
			where: "item != '' AND " + isAhead},
		{"", "audit_log", "content, digests",
			"tuple(" + changeVersion + ", nanos, id, size, version, etag, media_type, origin, user," +
				" source_at, source_nanos, source_version)," +
				" " + digests, writesContent + " AND NOT " + isCompletion},
		{"", "audit_log", "digests", digests, writesContent + " AND " + isCompletion},
		{"", "audit_log", "deleted", "tuple(" + changeVersion + ", nanos, id, version, origin, user)",
			"item != '' AND op = 'delete'"},
		{"", "audit_log", "properties", "tuple(" + changeVersion + ", media_type, properties)",
			"item != '' AND NOT properties_unknown AND (op = 'set_properties'" +
				" OR op IN ('add', 'update', 'copy') AND (notEmpty(properties) OR provenance = 'verified'))"},
		{"", "audit_log", "acl", "tuple(" + changeVersion + ", acl)", "item != '' AND (op = 'set_acl'" +
			" OR op IN ('add', 'update', 'copy') AND notEmpty(acl) AND NOT " + isCompletion + ")"},
		{"", "bit_log", "attempt", "tuple(" + checkVersion + ", verdict, row)", movesClock},
		{"", "bit_log", "pass", "tuple(" + checkVersion + ", " + passed + ")",
			movesClock + " AND verdict = 'pass' AND final AND level >= 4"},
		{"", "bit_log", "fail", "tuple(" + checkVersion + ", finding, row)",
			movesClock + " AND verdict IN ('fail', 'missing', 'not_captured')"},
		{"", "bit_log", "asserted", "tuple(" + checkVersion + ", level)", movesClock + " AND verdict = 'pass' AND level < 3"},
	}
}

// rebuildState makes the state from the logs in a new table, and returns the name of the table. It reads the tables of
// the logs, not their views: the rows that views leave out are further reports of messages, which the state has
// stored, too. The caller must call drop, if it is not nil, even after an error.
func rebuildState(
	ctx context.Context, db *clickhouse.DB, progress func(step string, done, total int64),
) (table string, drop func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, clickhouse.ScanTimeout)
	defer cancel()
	if err := dropLeftovers(ctx, db); err != nil {
		return "", nil, err
	}
	table = rebuiltPrefix + schemas.NewID()
	clean := context.WithoutCancel(ctx)
	drop = func() error {
		ctx, cancel := context.WithTimeout(clean, clickhouse.QueryTimeout)
		defer cancel()
		if err := db.Exec(ctx, "DROP TABLE IF EXISTS {db}."+table+" SYNC"); err != nil {
			return clickhouse.Classify(fmt.Errorf("drop the rebuilt state %s: %w", table, err))
		}
		return nil
	}
	if err := db.Exec(ctx, "CREATE TABLE {db}."+table+" AS {db}.copy_state ENGINE = AggregatingMergeTree"+
		" ORDER BY (account, store, space, item)"); err != nil {
		return "", drop, clickhouse.Classify(fmt.Errorf("make a table for the rebuilt state: %w", err))
	}
	for _, r := range stateQueries() {
		total, err := db.Count(ctx, "count "+r.log, "SELECT count() AS n FROM {db}."+r.log+" WHERE position = 0")
		if err != nil {
			return "", drop, err
		}
		step, read := "rebuild "+r.columns, uint64(0)
		progress(step, 0, total)
		watched := ch.Context(ctx, ch.WithProgress(func(p *ch.Progress) {
			read += p.Rows
			progress(step, min(int64(read), total-1), total)
		}))
		if err := db.Exec(watched, r.insertInto(table)); err != nil {
			return "", drop, clickhouse.Classify(fmt.Errorf("rebuild the state from %s: %w", r.log, err))
		}
		progress(step, total, total)
	}
	return table, drop, nil
}

// dropLeftovers drops the tables of killed processes: those that are older than any rebuild can take.
func dropLeftovers(ctx context.Context, db *clickhouse.DB) error {
	type table struct {
		Name string `ch:"name"`
	}
	old, err := clickhouse.Query[table](ctx, db, "list rebuilt states that were left",
		"SELECT name FROM system.tables WHERE database = ?"+
			" AND startsWith(name, ?) AND metadata_modification_time < now() - INTERVAL 2 DAY",
		db.Config().Database, rebuiltPrefix)
	if err != nil {
		return err
	}
	for _, t := range old {
		if err := db.Exec(ctx, "DROP TABLE IF EXISTS {db}."+clickhouse.QuoteName(t.Name)+" SYNC"); err != nil {
			return clickhouse.Classify(fmt.Errorf("drop a rebuilt state that was left: %w", err))
		}
	}
	return nil
}

// mergedState returns a subquery that merges a table like copy_state. It uses the newest migration of the view
// copy_merged, so that the rebuilt state is merged in the same way as the real one.
func mergedState(table string) (string, error) {
	all, err := migrations.All()
	if err != nil {
		return "", err
	}
	text := ""
	for _, m := range all {
		if strings.HasPrefix(m.Name, "copy_merged") {
			text = m.Statement
		}
	}
	_, body, ok := strings.Cut(text, " AS\n")
	if !ok || !strings.Contains(body, "{db}.copy_state\n") {
		return "", fmt.Errorf("the view copy_merged is not as expected: %w", fs.ErrInvalid)
	}
	return "(" + strings.ReplaceAll(body, "{db}.copy_state\n", "{db}."+table+"\n") + ")", nil
}
