package clickhouse

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// rebuiltPrefix begins the names of tables that hold a state made from the logs. They are
// ordinary tables, since a temporary one is seen by one connection only; whoever made one drops it.
const rebuiltPrefix = "copy_state_rebuilt_"

// A rebuild is one way in which rows of a log become rows of the state: what State.Store writes of
// the same record. What a statement does not name is zero, and loses against every other.
type stateQuery struct {
	log, columns, selects, where string
}

// insertInto is the statement that makes rows of a table of states out of all rows of the log.
func (r stateQuery) insertInto(table string) string {
	return "INSERT INTO {db}." + table + " (account, store, space, item, " + r.columns + ") SELECT account, store, space, item, " + r.selects +
		" FROM {db}." + r.log + " WHERE position = 0 AND " + r.where
}

// changeVersion and checkVersion are version.wide of a row.
const (
	versionTail    = "bitShiftLeft(toUInt128(off), 32) + toUInt128(inc)"
	versionTime    = "bitShiftLeft(toUInt128(toUnixTimestamp64Milli(ts) + 17592186044416), 83)"
	changeRank     = "toUInt64(origin NOT IN ('fixity', 'sweep'))"
	changeVersion  = versionTime + " + bitShiftLeft(toUInt128(" + changeRank + "), 82) + " + versionTail
	checkVersion   = versionTime + " + " + versionTail
	writesContent  = "item != '' AND op IN ('add', 'update', 'copy')"
	movesClock     = "NOT overtaken AND verdict != 'skipped'"
	bigEndian8     = "unhex(leftPad(hex(toUInt64(%s)), 16, '0'))"
	contentDigests = "arrayFilter((x, places) -> bitTest(places, 0), `digest.%s`, `digest.places`)"
)

// rebuilds are all of them. TestRebuild holds them to State.Store.
func stateQueries() []stateQuery {
	digest := "concat(" + fmt.Sprintf(bigEndian8, "toUnixTimestamp64Milli(ts) + 17592186044416") +
		", unhex(if(provenance = 'verified', '01', '00')), " +
		fmt.Sprintf(bigEndian8, "bitShiftLeft("+changeRank+", 62) + off") + ", id, v)"
	passed := "mapFromArrays(" + fmt.Sprintf(contentDigests, "algorithm") + ", " + fmt.Sprintf(contentDigests, "value") + ")"
	return []stateQuery{
		{"audit_log", "content, digests",
			"tuple(" + changeVersion + ", ns, id, size, version, etag, media_type, origin, user, source_time, source_ns, source_version)," +
				" mapApply((k, v) -> (toString(k), " + digest + "), digests)", writesContent},
		{"audit_log", "deleted", "tuple(" + changeVersion + ", ns, id, origin, user)", "item != '' AND op = 'delete'"},
		{"audit_log", "properties", "tuple(" + changeVersion + ", media_type, properties)", "item != '' AND NOT properties_unknown" +
			" AND (op = 'set_properties' OR op IN ('add', 'update', 'copy') AND (notEmpty(properties) OR provenance = 'verified'))"},
		{"audit_log", "acl", "tuple(" + changeVersion + ", acl)", "item != '' AND (op = 'set_acl'" +
			" OR op IN ('add', 'update', 'copy') AND notEmpty(acl))"},
		{"bit_log", "attempt", "tuple(" + checkVersion + ", verdict, row)", movesClock},
		{"bit_log", "pass", "tuple(" + checkVersion + ", " + passed + ")", movesClock + " AND verdict = 'pass' AND final AND level >= 4"},
		{"bit_log", "fail", "tuple(" + checkVersion + ", finding, row)", movesClock + " AND verdict IN ('fail', 'missing', 'not_captured')"},
		{"bit_log", "asserted", "tuple(" + checkVersion + ", level)", movesClock + " AND verdict = 'pass' AND level < 4"},
	}
}

// rebuild makes the state once more, out of the logs, and returns the table that it is in.
// The logs are read as they lie: rows that the views leave out are tellings of messages that
// the state was told of too. drop is to be called whatever else happens.
func (db *DB) rebuild(ctx context.Context, told func(step string, done, total int64)) (table string, drop func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, longQuery)
	defer cancel()
	if err := db.dropLeftovers(ctx); err != nil {
		return "", nil, err
	}
	table = rebuiltPrefix + schemas.NewID()
	clean := context.WithoutCancel(ctx)
	drop = func() error {
		ctx, cancel := context.WithTimeout(clean, queryTimeout)
		defer cancel()
		if err := db.exec(ctx, "DROP TABLE IF EXISTS {db}."+table+" SYNC"); err != nil {
			return translate(fmt.Errorf("drop the rebuilt state %s: %w", table, err))
		}
		return nil
	}
	if err := db.exec(ctx, "CREATE TABLE {db}."+table+" AS {db}.copy_state ENGINE = AggregatingMergeTree"+
		" ORDER BY (account, store, space, item)"); err != nil {
		return "", drop, translate(fmt.Errorf("make a table for the rebuilt state: %w", err))
	}
	for _, r := range stateQueries() {
		total, err := db.count(ctx, "count "+r.log, "SELECT count() AS n FROM {db}."+r.log+" WHERE position = 0")
		if err != nil {
			return "", drop, err
		}
		step, read := "rebuild "+r.columns, uint64(0)
		told(step, 0, total)
		watched := ch.Context(ctx, ch.WithProgress(func(p *ch.Progress) {
			read += p.Rows
			told(step, min(int64(read), total-1), total)
		}))
		if err := db.exec(watched, r.insertInto(table)); err != nil {
			return "", drop, translate(fmt.Errorf("rebuild the state from %s: %w", r.log, err))
		}
		told(step, total, total)
	}
	return table, drop, nil
}

// dropLeftovers drops what killed processes left: tables older than any rebuild takes.
func (db *DB) dropLeftovers(ctx context.Context) error {
	type table struct {
		Name string `ch:"name"`
	}
	old, err := query[table](ctx, db, "look for rebuilt states that were left", "SELECT name FROM system.tables WHERE database = ?"+
		" AND startsWith(name, ?) AND metadata_modification_time < now() - INTERVAL 2 DAY", db.cfg.Database, rebuiltPrefix)
	if err != nil {
		return err
	}
	for _, t := range old {
		if err := db.exec(ctx, "DROP TABLE IF EXISTS {db}."+quoteName(t.Name)+" SYNC"); err != nil {
			return translate(fmt.Errorf("drop a rebuilt state that was left: %w", err))
		}
	}
	return nil
}

// merged returns the newest migration's text of the view copy_merged, of another table than
// copy_state: the rebuilt state is merged by the same words as the real one.
func mergedState(table string) (string, error) {
	all, err := readMigrations(migrations.Files)
	if err != nil {
		return "", err
	}
	text := ""
	for _, m := range all {
		if strings.HasPrefix(m.name, "copy_merged") {
			text = m.statement
		}
	}
	_, body, ok := strings.Cut(text, " AS\n")
	if !ok || !strings.Contains(body, "{db}.copy_state\n") {
		return "", fmt.Errorf("the view copy_merged is not as expected: %w", fs.ErrInvalid)
	}
	return "(" + strings.ReplaceAll(body, "{db}.copy_state\n", "{db}."+table+"\n") + ")", nil
}
