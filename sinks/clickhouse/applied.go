package clickhouse

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// A ledger is what the database says of the migrations that were applied to it.
type appliedMigrations struct {
	exists  bool            // the table of migrations
	columns map[string]bool // of it
	entries map[uint32]appliedMigration
}

// has reports whether a migration of a name was applied.
func (l appliedMigrations) has(name string) bool {
	for _, e := range l.entries {
		if e.Name == name {
			return true
		}
	}
	return false
}

type appliedMigration struct {
	Version  uint32 `ch:"version"`
	Name     string `ch:"name"`
	Checksum string `ch:"checksum"` // empty: noted before there were checksums
	Cluster  string `ch:"cluster"`  // empty: one server
	Shards   uint32 `ch:"shards"`
}

// checksum is that of the file as it is, comments and all.
func (m migration) checksum() string {
	sum := sha256.Sum256([]byte(m.statement))
	return hex.EncodeToString(sum[:])
}

// readLedger reads what was noted. No table is no entry.
func (db *DB) readApplied(ctx context.Context, conn driver.Conn) (appliedMigrations, error) {
	const what = "read the table of migrations"
	l := appliedMigrations{columns: map[string]bool{}, entries: map[uint32]appliedMigration{}}
	rows, err := conn.Query(ctx, db.name("SELECT * FROM {db}.schema_migrations LIMIT 0"))
	switch {
	case hasCode(err, codeUnknownTable), hasCode(err, codeUnknownDatabase):
		return l, nil
	case err != nil:
		return l, translate(fmt.Errorf("%s: %w", what, err))
	}
	l.exists = true
	fields := "version, argMax(name, applied) AS name"
	for _, c := range rows.Columns() {
		l.columns[c] = true
		if c == "checksum" || c == "cluster" || c == "shards" {
			fields += fmt.Sprintf(", argMax(%[1]s, applied) AS %[1]s", c)
		}
	}
	if err := errors.Join(rows.Close(), rows.Err()); err != nil {
		return l, translate(fmt.Errorf("%s: %w", what, err))
	}
	entries, err := queryOn[appliedMigration](ctx, conn, what, db.name("SELECT "+fields+" FROM {db}.schema_migrations AS m GROUP BY version ORDER BY version"))
	for _, e := range entries {
		l.entries[e.Version] = e
	}
	return l, err
}

// prepare returns the statements that make the database and the ledger what they should be.
func (db *DB) prepare(ctx context.Context, l appliedMigrations) ([]string, error) {
	var statements []string
	if !l.exists {
		var n uint64
		// Asked for only where it is missing: who migrates may have no right to make one.
		if err := db.conn.QueryRow(ctx, "SELECT count() FROM system.databases WHERE name = ?", db.cfg.Database).Scan(&n); err != nil {
			return nil, translate(fmt.Errorf("look for the database: %w", err))
		}
		on, engine := "", "ReplacingMergeTree"
		if db.cfg.Cluster != "" {
			on = " ON CLUSTER " + quoteName(db.cfg.Cluster)
			// Every server holds all of it, whatever its shard.
			engine = "ReplicatedReplacingMergeTree(" + quoteText("/clickhouse/tables/"+db.cfg.Database+"/schema_migrations") + ", '{shard}-{replica}')"
		}
		if n == 0 {
			statements = append(statements, "CREATE DATABASE IF NOT EXISTS {db}"+on)
		}
		return append(statements, "CREATE TABLE IF NOT EXISTS {db}.schema_migrations"+on+" (\n  version UInt32,\n  name String,\n  checksum String,\n"+
			"  cluster String,\n  shards UInt32,\n  applied DateTime64(3, 'UTC') DEFAULT now64(3)\n) ENGINE = "+engine+
			"\nORDER BY version\nSETTINGS fsync_after_insert = 1, fsync_part_directory = 1"), nil
	}
	for _, c := range []string{"checksum String", "cluster String", "shards UInt32"} {
		if name, _, _ := strings.Cut(c, " "); !l.columns[name] {
			statements = append(statements, "ALTER TABLE {db}.schema_migrations ADD COLUMN IF NOT EXISTS "+c)
		}
	}
	return statements, nil
}

// note says in the ledger that a migration was applied.
func (db *DB) recordMigration(ctx context.Context, m migration) error {
	var now clusterLayout
	if db.cfg.Cluster != "" {
		var err error
		if now, err = db.readLayout(ctx); err != nil {
			return err
		}
	}
	const statement = "INSERT INTO {db}.schema_migrations (version, name, checksum, cluster, shards)" +
		" SELECT {version:UInt32}, {name:String}, {checksum:String}, {cluster:String}, {shards:UInt32}"
	err := db.exec(ctx, statement, ch.Named("version", strconv.Itoa(int(m.number))), ch.Named("name", m.name),
		ch.Named("checksum", m.checksum()), ch.Named("cluster", db.cfg.Cluster), ch.Named("shards", strconv.Itoa(int(now.Shards))))
	if err != nil {
		return translate(fmt.Errorf("note migration %s: %w", m, err))
	}
	return nil
}

// agree says whether what was applied is what this program has, in the form that it is to have.
// Migrations that only the database knows are accepted: a newer program applied them.
func (db *DB) checkApplied(ctx context.Context, all []migration, l appliedMigrations) error {
	want := db.cfg.Cluster
	for _, e := range l.entries {
		switch {
		case e.Cluster == want:
		case e.Cluster == "":
			return fmt.Errorf("%w: its tables are those of one server, and the cluster %s is configured: name another database for it", ErrForm, want)
		case want == "":
			return fmt.Errorf("%w: its tables are spread over the cluster %s, and no cluster is configured", ErrForm, e.Cluster)
		default:
			return fmt.Errorf("%w: its tables are spread over the cluster %s, and the cluster %s is configured", ErrForm, e.Cluster, want)
		}
	}
	if want != "" {
		now, err := db.readLayout(ctx)
		if err == nil {
			err = db.checkEvenReplicas(now)
		}
		if err != nil {
			return err
		}
		for _, e := range l.entries {
			if uint64(e.Shards) != now.Shards {
				return fmt.Errorf("%w: its tables were spread over %d shards, and the cluster %s has %d now: the rows of a partition would go elsewhere "+
					"than those before them; give the cluster that number again, or read the logs into another database", ErrForm, e.Shards, want, now.Shards)
			}
		}
	}
	var errs []error
	for _, m := range all {
		if e, ok := l.entries[m.number]; ok && e.Checksum != "" && e.Checksum != m.checksum() {
			errs = append(errs, fmt.Errorf("%w: %s was applied with the checksum %.12s, this program has %.12s",
				ErrChanged, m, e.Checksum, m.checksum()))
		}
	}
	return errors.Join(errs...)
}
