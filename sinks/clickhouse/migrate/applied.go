package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// appliedMigrations is the content of the table schema_migrations.
type appliedMigrations struct {
	exists  bool // the table exists
	entries map[uint32]appliedMigration
}

type appliedMigration struct {
	Version  uint32 `ch:"version"`
	Name     string `ch:"name"`
	Checksum string `ch:"checksum"`
}

// readApplied reads the table of migrations. If it does not exist, no migration was applied.
func readApplied(ctx context.Context, db *clickhouse.DB, conn driver.Conn) (appliedMigrations, error) {
	l := appliedMigrations{exists: true, entries: map[uint32]appliedMigration{}}
	entries, err := clickhouse.QueryOn[appliedMigration](ctx, conn, "read the table of migrations",
		db.Name("SELECT version, argMax(name, applied) AS name, argMax(checksum, applied) AS checksum"+
			" FROM {db}.schema_migrations AS m GROUP BY version"))
	switch {
	case clickhouse.HasCode(err, clickhouse.CodeUnknownTable), clickhouse.HasCode(err, clickhouse.CodeUnknownDatabase):
		return appliedMigrations{}, nil
	case err != nil:
		return l, err
	}
	for _, e := range entries {
		l.entries[e.Version] = e
	}
	return l, nil
}

// prepareStatements returns the statements that create the database and its table of migrations.
func prepareStatements(ctx context.Context, db *clickhouse.DB, l appliedMigrations) ([]string, error) {
	if l.exists {
		return nil, nil
	}
	var statements []string
	var n uint64
	// CREATE DATABASE only if it is missing: the user may lack the right to create one.
	const count = "SELECT count() FROM system.databases WHERE name = ?"
	if err := db.Writer().QueryRow(ctx, count, db.Config().Database).Scan(&n); err != nil {
		return nil, clickhouse.Classify(fmt.Errorf("look for the database: %w", err))
	}
	if n == 0 {
		statements = append(statements, "CREATE DATABASE IF NOT EXISTS {db}")
	}
	return append(statements, "CREATE TABLE IF NOT EXISTS {db}.schema_migrations (\n"+
		"  version UInt32,\n  name String,\n  checksum String,\n  applied DateTime64(3, 'UTC') DEFAULT now64(3)\n"+
		") ENGINE = ReplacingMergeTree\nORDER BY version\n"+
		"SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"), nil
}

// recordMigration records in the database that a migration was applied.
func recordMigration(ctx context.Context, db *clickhouse.DB, m migrations.Migration) error {
	const statement = "INSERT INTO {db}.schema_migrations (version, name, checksum)" +
		" SELECT {version:UInt32}, {name:String}, {checksum:String}"
	err := db.Exec(ctx, statement, ch.Named("version", strconv.Itoa(int(m.Number))), ch.Named("name", m.Name),
		ch.Named("checksum", m.Checksum()))
	if err != nil {
		return clickhouse.Classify(fmt.Errorf("record migration %s: %w", m, err))
	}
	return nil
}

// checkApplied returns ErrChanged if another build made the tables: if a migration with a number of this program was
// applied with another content. Migrations that follow those of this program are accepted: a newer program applied
// them.
func checkApplied(db *clickhouse.DB, all []migrations.Migration, l appliedMigrations) error {
	known := map[uint32]string{}
	for _, m := range all {
		known[m.Number] = m.Checksum()
	}
	var others []string
	for _, n := range slices.Sorted(maps.Keys(l.entries)) {
		if e := l.entries[n]; n <= all[len(all)-1].Number && e.Checksum != known[n] {
			others = append(others, fmt.Sprintf("%04d_%s", n, e.Name))
		}
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("database %s: %w: this build does not have %d of its migrations (%s): "+
		"configure a new database (clickhouse.database) and run millrace migrate and millrace rebuild; "+
		"for a state directory, start with a new one", db.Config().Database, ErrChanged, len(others),
		strings.Join(others[:min(3, len(others))], ", "))
}
