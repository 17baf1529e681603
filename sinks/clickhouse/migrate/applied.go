package migrate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// appliedMigrations is the content of the table schema_migrations.
type appliedMigrations struct {
	exists  bool            // the table exists
	columns map[string]bool // of the table
	entries map[uint32]appliedMigration
}

// has reports whether the migration with a name was applied.
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
	Checksum string `ch:"checksum"` // empty: applied before checksums were stored
	Cluster  string `ch:"cluster"`  // empty: one server
	Shards   uint32 `ch:"shards"`
}

// readApplied reads the table of migrations. If it does not exist, no migration was applied.
func readApplied(ctx context.Context, db *clickhouse.DB, conn driver.Conn) (appliedMigrations, error) {
	const op = "read the table of migrations"
	l := appliedMigrations{columns: map[string]bool{}, entries: map[uint32]appliedMigration{}}
	rows, err := conn.Query(ctx, db.Name("SELECT * FROM {db}.schema_migrations LIMIT 0"))
	switch {
	case clickhouse.HasCode(err, clickhouse.CodeUnknownTable), clickhouse.HasCode(err, clickhouse.CodeUnknownDatabase):
		return l, nil
	case err != nil:
		return l, clickhouse.Classify(fmt.Errorf("%s: %w", op, err))
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
		return l, clickhouse.Classify(fmt.Errorf("%s: %w", op, err))
	}
	entries, err := clickhouse.QueryOn[appliedMigration](ctx, conn, op,
		db.Name("SELECT "+fields+" FROM {db}.schema_migrations AS m GROUP BY version ORDER BY version"))
	for _, e := range entries {
		l.entries[e.Version] = e
	}
	return l, err
}

// prepareStatements returns the statements that create the database and its table of migrations, or add missing
// columns.
func prepareStatements(ctx context.Context, db *clickhouse.DB, l appliedMigrations) ([]string, error) {
	var statements []string
	if !l.exists {
		var n uint64
		// CREATE DATABASE only if it is missing: the user may lack the right to create one.
		const count = "SELECT count() FROM system.databases WHERE name = ?"
		if err := db.Writer().QueryRow(ctx, count, db.Config().Database).Scan(&n); err != nil {
			return nil, clickhouse.Classify(fmt.Errorf("look for the database: %w", err))
		}
		on, engine := "", "ReplacingMergeTree"
		if db.Config().Cluster != "" {
			on = " ON CLUSTER " + clickhouse.QuoteName(db.Config().Cluster)
			// Every server has the whole table, whatever its shard.
			path := "/clickhouse/tables/" + db.Config().Database + "/schema_migrations"
			engine = "ReplicatedReplacingMergeTree(" + clickhouse.QuoteText(path) + ", '{shard}-{replica}')"
		}
		if n == 0 {
			statements = append(statements, "CREATE DATABASE IF NOT EXISTS {db}"+on)
		}
		return append(statements, "CREATE TABLE IF NOT EXISTS {db}.schema_migrations"+on+" (\n"+
			"  version UInt32,\n  name String,\n  checksum String,\n"+
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

// recordMigration records in the database that a migration was applied.
func recordMigration(ctx context.Context, db *clickhouse.DB, m migrations.Migration) error {
	var layout clickhouse.Layout
	if db.Config().Cluster != "" {
		var err error
		if layout, err = db.ReadLayout(ctx); err != nil {
			return err
		}
	}
	const statement = "INSERT INTO {db}.schema_migrations (version, name, checksum, cluster, shards)" +
		" SELECT {version:UInt32}, {name:String}, {checksum:String}, {cluster:String}, {shards:UInt32}"
	err := db.Exec(ctx, statement, ch.Named("version", strconv.Itoa(int(m.Number))), ch.Named("name", m.Name),
		ch.Named("checksum", m.Checksum()), ch.Named("cluster", db.Config().Cluster),
		ch.Named("shards", strconv.Itoa(int(layout.Shards))))
	if err != nil {
		return clickhouse.Classify(fmt.Errorf("record migration %s: %w", m, err))
	}
	return nil
}

// checkApplied checks that the applied migrations are unchanged and were applied for the configured layout.
// Migrations that only the database has are accepted: a newer program applied them.
func checkApplied(ctx context.Context, db *clickhouse.DB, all []migrations.Migration, l appliedMigrations) error {
	want := db.Config().Cluster
	for _, e := range l.entries {
		switch {
		case e.Cluster == want:
		case e.Cluster == "":
			return fmt.Errorf("%w: its tables are those of one server, and the cluster %s is configured: "+
				"configure another database for the cluster", ErrLayout, want)
		case want == "":
			return fmt.Errorf("%w: its tables are spread over the cluster %s, and no cluster is configured",
				ErrLayout, e.Cluster)
		default:
			return fmt.Errorf("%w: its tables are spread over the cluster %s, and the cluster %s is configured",
				ErrLayout, e.Cluster, want)
		}
	}
	if want != "" {
		now, err := db.ReadLayout(ctx)
		if err == nil {
			err = db.CheckReplicas(now)
		}
		if err != nil {
			return err
		}
		for _, e := range l.entries {
			if uint64(e.Shards) != now.Shards {
				return fmt.Errorf("%w: its tables were spread over %d shards, and the cluster %s has %d now: "+
					"new rows of a partition would be stored on another shard than its old rows; restore the number of shards, "+
					"or read the logs into another database", ErrLayout, e.Shards, want, now.Shards)
			}
		}
	}
	var errs []error
	for _, m := range all {
		if e, ok := l.entries[m.Number]; ok && e.Checksum != "" && e.Checksum != m.Checksum() {
			errs = append(errs, fmt.Errorf("%w: %s was applied with the checksum %.12s, this program has %.12s",
				ErrChanged, m, e.Checksum, m.Checksum()))
		}
	}
	return errors.Join(errs...)
}
