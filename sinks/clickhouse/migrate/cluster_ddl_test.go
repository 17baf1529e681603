package migrate_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
)

var update = flag.Bool("update", false, "write testdata/cluster")

// testdata/cluster has the statements of each migration on a cluster. The engine's own parser accepts all of them.
func TestClusterDDL(t *testing.T) {
	t.Parallel()
	db := clickhousetest.OpenEmpty(t)
	steps, err := migrate.ClusterDDL("main", "millrace")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for _, s := range steps {
		t.Run(s.Name, func(t *testing.T) {
			name := filepath.Join("testdata", "cluster", s.Name+".sql")
			made[name] = true
			got := strings.Join(s.Statements, ";\n\n") + ";\n"
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s\n(go test ./sinks/clickhouse/migrate -run TestClusterDDL -update, once it is meant)",
					got, want)
			}
			for _, statement := range s.Statements {
				if !strings.Contains(statement, " ON CLUSTER `main`") {
					t.Errorf("not on the cluster: %s", statement)
				}
				if lines, err := clickhousetest.Strings(t.Context(), db, "EXPLAIN AST "+statement); err != nil || len(lines) == 0 {
					t.Errorf("the engine cannot read it: %v\n%s", err, statement)
				}
			}
		})
	}
	files, err := filepath.Glob(filepath.Join("testdata", "cluster", "*.sql"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !made[f] {
			t.Errorf("%s belongs to no migration", f)
		}
	}
}

// Forms that no migration uses yet, and those that are impossible on a cluster.
func TestLastClusterDDL(t *testing.T) {
	t.Parallel()
	const table = "CREATE TABLE IF NOT EXISTS {db}.t (\n  topic String,\n  part UInt16,\n  off UInt64\n)" +
		" ENGINE = MergeTree\nORDER BY off"
	const state = "CREATE TABLE IF NOT EXISTS {db}.s (\n" +
		"  account String,\n  store String,\n  space String,\n  item String\n) ENGINE = Null"
	for name, tc := range map[string]struct {
		before []string
		is     string
		want   string // the statements, or a part of the error
	}{
		"a column": {[]string{table}, "ALTER TABLE {db}.t ADD COLUMN IF NOT EXISTS n Int8 CODEC(Delta, ZSTD(1)) AFTER off",
			"ALTER TABLE {db}.t_local ON CLUSTER `c` ADD COLUMN IF NOT EXISTS n Int8 CODEC(Delta, ZSTD(1)) AFTER off|" +
				"ALTER TABLE {db}.t ON CLUSTER `c` ADD COLUMN IF NOT EXISTS n Int8 AFTER off"},
		"a column that ends the key": {[]string{table},
			"ALTER TABLE {db}.t ADD COLUMN IF NOT EXISTS n Int8 CODEC(Delta, ZSTD(1)),\n  MODIFY ORDER BY (off, n)",
			"ALTER TABLE {db}.t_local ON CLUSTER `c` ADD COLUMN IF NOT EXISTS n Int8 CODEC(Delta, ZSTD(1)),\n" +
				"  MODIFY ORDER BY (off, n)|" +
				"ALTER TABLE {db}.t ON CLUSTER `c` ADD COLUMN IF NOT EXISTS n Int8"},
		"an index": {[]string{table}, "ALTER TABLE {db}.t ADD INDEX IF NOT EXISTS i off TYPE minmax",
			"ALTER TABLE {db}.t_local ON CLUSTER `c` ADD INDEX IF NOT EXISTS i off TYPE minmax"},
		"a drop": {[]string{table}, "DROP TABLE IF EXISTS {db}.t SYNC",
			"DROP TABLE IF EXISTS {db}.t ON CLUSTER `c` SYNC|DROP TABLE IF EXISTS {db}.t_local ON CLUSTER `c` SYNC"},
		"a materialized view": {[]string{state, strings.Replace(state, "{db}.s", "{db}.u", 1)},
			"CREATE MATERIALIZED VIEW IF NOT EXISTS {db}.f TO {db}.u AS SELECT * FROM {db}.s",
			"CREATE MATERIALIZED VIEW IF NOT EXISTS {db}.f_local ON CLUSTER `c` TO {db}.u_local AS SELECT * FROM {db}.s_local"},
		"a table that takes no rows to keep": {nil, state,
			"CREATE TABLE IF NOT EXISTS {db}.s_local ON CLUSTER `c` (\n" +
				"  account String,\n  store String,\n  space String,\n  item String\n) ENGINE = Null|" +
				"CREATE TABLE IF NOT EXISTS {db}.s ON CLUSTER `c` AS {db}.s_local\n" +
				"ENGINE = Distributed('c', 'd', 's_local', cityHash64(account, store, space, item))"},
		"a materialized view across shards": {[]string{table, state},
			"CREATE MATERIALIZED VIEW IF NOT EXISTS {db}.f TO {db}.t AS SELECT * FROM {db}.s",
			"t has another sharding key than the table that fills it"},
		"a view across shards": {[]string{table, state}, "CREATE OR REPLACE VIEW {db}.v AS SELECT * FROM {db}.s JOIN {db}.t",
			"tables with different sharding keys"},
		"a view of an unknown": {nil, "CREATE OR REPLACE VIEW {db}.v AS SELECT * FROM {db}.t",
			"reads t, which no earlier migration creates"},
		"no sharding key": {nil,
			"CREATE TABLE IF NOT EXISTS {db}.t (\n  off UInt64\n) ENGINE = MergeTree\nORDER BY off", "it has no sharding key"},
		"not to be run again":  {nil, "CREATE VIEW {db}.v AS SELECT 1", "cannot be run again"},
		"two statements":       {nil, "DROP TABLE IF EXISTS {db}.a; DROP TABLE IF EXISTS {db}.b", "cannot be run again"},
		"a drop that may fail": {nil, "DROP TABLE {db}.a", "cannot be run again"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := migrate.LastClusterDDL("c", "d", append(tc.before, tc.is))
			if err != nil {
				if !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got the error %v, want %s", err, tc.want)
				}
			} else if strings.Join(got, "|") != tc.want {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "|"), tc.want)
			}
		})
	}
}
