package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// ErrMigration means that the database lacks a migration that this program needs.
var ErrMigration = errors.New("a migration is missing")

type migration struct {
	number    uint32
	name      string // without the number
	statement string
}

func (m migration) String() string { return fmt.Sprintf("%04d_%s", m.number, m.name) }

// readMigrations returns the embedded migrations in the order of their numbers.
func readMigrations(files fs.FS) ([]migration, error) {
	names, err := fs.Glob(files, "*.sql") // sorted
	if err != nil {
		return nil, fmt.Errorf("listing migrations: %w", err)
	}
	var all []migration
	for i, name := range names {
		digits, rest, ok := strings.Cut(strings.TrimSuffix(path.Base(name), ".sql"), "_")
		n, err := strconv.ParseUint(digits, 10, 32)
		if !ok || err != nil || n != uint64(i+1) {
			return nil, fmt.Errorf("migration %s is not number %d in the row", name, i+1)
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("reading migration %s: %w", name, err)
		}
		all = append(all, migration{uint32(n), rest, string(text)})
	}
	return all, nil
}

// Migrate makes the database where it is missing and applies what migrations it lacks; it
// returns those. Two that run at once do no harm: every statement may run twice.
func (db *DB) Migrate(ctx context.Context) (applied []string, err error) {
	all, err := readMigrations(migrations.Files)
	if err != nil {
		return nil, err
	}
	if err := db.makeDatabase(ctx); err != nil {
		return nil, translate(fmt.Errorf("making the database %s: %w", db.cfg.Database, err))
	}
	const ledger = "CREATE TABLE IF NOT EXISTS {db}.schema_migrations (version UInt32, name String, " +
		"applied DateTime64(3, 'UTC') DEFAULT now64(3)) ENGINE = ReplacingMergeTree ORDER BY version " +
		"SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"
	if err := db.exec(ctx, ledger); err != nil {
		return nil, translate(fmt.Errorf("making the table of migrations: %w", err))
	}
	done, err := db.migrated(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if done[m.number] {
			continue
		}
		if err := db.exec(ctx, m.statement); err != nil {
			return applied, translate(fmt.Errorf("applying migration %s: %w", m, err))
		}
		const note = "INSERT INTO {db}.schema_migrations (version, name) SELECT {version:UInt32}, {name:String}"
		if err := db.exec(ctx, note, ch.Named("version", strconv.Itoa(int(m.number))), ch.Named("name", m.name)); err != nil {
			return applied, translate(fmt.Errorf("noting migration %s: %w", m, err))
		}
		applied = append(applied, m.String())
	}
	return applied, nil
}

// makeDatabase asks for the database only where it is missing: its user may have no
// right to make one.
func (db *DB) makeDatabase(ctx context.Context) error {
	var n uint64
	row := db.conn.QueryRow(ctx, "SELECT count() FROM system.databases WHERE name = ?", db.cfg.Database)
	if err := row.Scan(&n); err != nil || n > 0 {
		return err
	}
	return db.exec(ctx, "CREATE DATABASE IF NOT EXISTS {db}")
}

// Check says whether the database has every migration that this program needs; the
// error names the first that is missing and wraps ErrMigration. Newer ones are accepted.
func (db *DB) Check(ctx context.Context) error {
	all, err := readMigrations(migrations.Files)
	if err != nil {
		return err
	}
	done, err := db.migrated(ctx)
	if hasCode(err, codeUnknownTable) || hasCode(err, codeUnknownDatabase) {
		done, err = nil, nil
	}
	if err != nil {
		return err
	}
	for _, m := range all {
		if !done[m.number] {
			return fmt.Errorf("checking database %s: %w: %s (run millrace migrate)", db.cfg.Database, ErrMigration, m)
		}
	}
	return nil
}

func (db *DB) migrated(ctx context.Context) (map[uint32]bool, error) {
	type entry struct {
		Version uint32 `ch:"version"`
	}
	rows, err := query[entry](ctx, db, "reading the table of migrations", "SELECT DISTINCT version FROM {db}.schema_migrations")
	if err != nil {
		return nil, err
	}
	done := map[uint32]bool{}
	for _, r := range rows {
		done[r.Version] = true
	}
	return done, nil
}

func quoteName(s string) string {
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`").Replace(s) + "`"
}

// Drop removes the database with all its tables. It is for tests and for databases that
// were made to be thrown away.
func (db *DB) Drop(ctx context.Context) error {
	if err := db.exec(ctx, "DROP DATABASE IF EXISTS {db} SYNC"); err != nil {
		return translate(fmt.Errorf("dropping the database %s: %w", db.cfg.Database, err))
	}
	return nil
}
