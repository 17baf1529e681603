package migrate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/streams/retry"
)

// schemaOf returns everything that the migrations have created, as the engine reports it.
func schemaOf(t *testing.T, db *clickhouse.DB) []string {
	t.Helper()
	all, err := clickhousetest.Strings(t.Context(), db,
		"SELECT name || ' ' || create_table_query FROM system.tables WHERE database = ? ORDER BY name", db.Config().Database)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range all {
		all[i] = strings.ReplaceAll(s, db.Config().Database, "db")
	}
	return all
}

func TestPlan(t *testing.T) {
	t.Parallel()
	db := clickhousetest.OpenEmpty(t)
	empty, err := migrate.NewPlan(t.Context(), db, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(empty.Prepare) != 2 || !strings.HasPrefix(empty.Prepare[0], "CREATE DATABASE") ||
		empty.Steps[0].Name != "0001_audit_log" {
		t.Errorf("the plan of an empty server prepares %q and begins with %s", empty.Prepare, empty.Steps[0].Name)
	}
	if got := clickhousetest.Value(t, db, "SELECT toString(count()) FROM system.databases WHERE name = ?",
		db.Config().Database); got != "0" {
		t.Fatal("to plan has made the database")
	}
	applied, err := migrate.Apply(t.Context(), db, empty)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range empty.Steps {
		names = append(names, s.Name)
	}
	if !slices.Equal(applied, names) {
		t.Errorf("applied %v, planned were %v", applied, names)
	}
	if p, err := migrate.NewPlan(t.Context(), db, false); err != nil || !p.Empty() {
		t.Errorf("the plan of an up-to-date database is %v, %v, want nothing", p, err)
	}
	want := schemaOf(t, db)
	again, err := migrate.NewPlan(t.Context(), db, true)
	if err != nil || len(again.Steps) != len(names) {
		t.Fatalf("the plan of all again has %d steps, error %v, want %d", len(again.Steps), err, len(names))
	}
	if _, err := migrate.Apply(t.Context(), db, again); err != nil {
		t.Fatal(err)
	}
	if got := schemaOf(t, db); !slices.Equal(got, want) {
		t.Errorf("all again has changed the schema:\n%q\nwant\n%q", got, want)
	}
}

// A table of migrations without checksums is accepted, and the next migration adds its columns.
func TestOldMigrationTable(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for _, statement := range []string{
		"DROP TABLE {db}.schema_migrations SYNC",
		"CREATE TABLE {db}.schema_migrations (version UInt32, name String, applied DateTime64(3, 'UTC') DEFAULT" +
			" now64(3)) ENGINE = ReplacingMergeTree ORDER BY version",
		"INSERT INTO {db}.schema_migrations (version, name) SELECT number + 1, 'old' FROM numbers(20)",
	} {
		if err := db.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := migrate.Check(t.Context(), db); !errors.Is(err, migrate.ErrMissing) ||
		!strings.Contains(err.Error(), "0021_manifest") {
		t.Errorf("Check = %v, want a missing 0021_manifest", err)
	}
	applied, err := migrate.Run(t.Context(), db)
	if err != nil || len(applied) == 0 || applied[0] != "0021_manifest" {
		t.Fatalf("Migrate = %v, %v", applied, err)
	}
	if err := migrate.Check(t.Context(), db); err != nil {
		t.Error(err)
	}
}

func TestChangedMigration(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	if err := db.Exec(t.Context(), "INSERT INTO {db}.schema_migrations (version, name, checksum, applied) "+
		"SELECT 3, 'bit_log', repeat('0', 64), now64(3) + 1"); err != nil {
		t.Fatal(err)
	}
	_, migrated := migrate.Run(t.Context(), db)
	_, planned := migrate.NewPlan(t.Context(), db, true)
	for what, err := range map[string]error{"Check": migrate.Check(t.Context(), db), "Migrate": migrated,
		"Plan": planned} {
		if !errors.Is(err, migrate.ErrChanged) || !strings.Contains(err.Error(), "0003_bit_log") {
			t.Errorf("%s = %v, want 0003_bit_log changed", what, err)
		}
	}
}

func TestOtherLayout(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	cfg := db.Config()
	cfg.Cluster = "default"
	if err := migrate.Check(t.Context(), clickhousetest.Connect(t, cfg)); !errors.Is(err, migrate.ErrLayout) ||
		!strings.Contains(err.Error(), "the cluster default is configured") {
		t.Errorf("Check of a cluster on a single server = %v", err)
	}
	cfg.Database += "_not_there"
	_, err := migrate.NewPlan(t.Context(), clickhousetest.Connect(t, cfg), false)
	if !errors.Is(err, clickhouse.ErrCluster) ||
		!strings.Contains(err.Error(), `the server knows no cluster "default"`) {
		t.Errorf("Plan for a cluster that there is not = %v", err)
	}
	if err := db.Exec(t.Context(),
		"INSERT INTO {db}.schema_migrations (version, name, cluster, shards, applied) SELECT 1, 'audit_log', 'main', 2,"+
			" now64(3) + 1"); err != nil {
		t.Fatal(err)
	}
	if err := migrate.Check(t.Context(), db); !errors.Is(err, migrate.ErrLayout) ||
		!strings.Contains(err.Error(), "cluster main") {
		t.Errorf("Check of a single server on a cluster = %v", err)
	}
}

// Shards with different numbers of replicas are refused if the quorum is all: the smaller shard could not reach the
// larger number, and the smaller number is not all.
func TestUnevenReplicas(t *testing.T) {
	t.Parallel()
	const replica = "<replica><host>127.0.0.1</host><port>1</port></replica>"
	s := clickhousetest.Start(t,
		embedded.Config{Settings: "<remote_servers><even><shard>" + replica + "</shard><shard>" + replica +
			"</shard></even><uneven><shard>" + replica + replica + "</shard><shard>" +
			replica + "</shard></uneven></remote_servers>"})
	for name, test := range map[string]struct {
		cluster, quorum string
		of              string
		want            error
	}{
		"all, as many":         {"even", "", "1", nil},
		"all, fewer in one":    {"uneven", "", "", clickhouse.ErrReplicas},
		"all, said so":         {"uneven", "all", "", clickhouse.ErrReplicas},
		"auto, fewer in one":   {"uneven", "auto", "auto", nil},
		"1, fewer in one":      {"uneven", "1", "1", nil},
		"all, no such cluster": {"none", "", "", clickhouse.ErrCluster},
	} {
		t.Run(name, func(t *testing.T) {
			db := clickhousetest.Connect(t,
				clickhouse.Config{Addresses: []string{s.Addr()}, Cluster: test.cluster, InsertQuorum: test.quorum})
			if _, err := migrate.NewPlan(t.Context(), db, false); !errors.Is(err, test.want) {
				t.Errorf("Plan = %v, want %v", err, test.want)
			}
			if n, err := db.Quorum(t.Context()); n != test.of && err == nil || !errors.Is(err, test.want) {
				t.Errorf("an insert asks for %s, %v, want %s, %v", n, err, test.of, test.want)
			}
		})
	}
}

// Changes by hand that only add are accepted.
func TestAddedByHand(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for _, s := range []string{
		"ALTER TABLE {db}.audit_log ADD COLUMN newer String",
		"ALTER TABLE {db}.duplication_log ADD COLUMN k UInt8, MODIFY ORDER BY (account, space, item, destination_store," +
			" ts, id, k)",
		"CREATE TABLE {db}.mine (a Int8) ENGINE = Memory",
		"ALTER TABLE {db}.bit_log ADD INDEX newer item TYPE bloom_filter",
	} {
		if err := db.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if err := migrate.Check(t.Context(), db); err != nil {
			t.Errorf("after %s: Check = %v, want none", s, err)
		}
	}
}

// Every other change by hand is reported with the actual and the wanted value, all of them at once.
func TestAlteredByHand(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var want []string
	for _, tc := range []struct {
		statements []string
		want       string
	}{
		{[]string{"ALTER TABLE {db}.bit_log MODIFY COLUMN bytes_read String"},
			"table bit_log: column bytes_read is String, wanted is Int64"},
		{[]string{"ALTER TABLE {db}.job_log DROP COLUMN error"}, "table job_log: column error is missing, wanted is String"},
		{[]string{"ALTER TABLE {db}.duplication_log DROP COLUMN position"},
			"table duplication_log: column position is missing, wanted is UInt64 (millrace migrate --again adds it"},
		{[]string{"ALTER TABLE {db}.copy_state DROP COLUMN acl"}, "table copy_state: column acl is missing"},
		{[]string{"ALTER TABLE {db}.reports MODIFY COLUMN detail String MATERIALIZED round"},
			"table reports: column detail is computed (MATERIALIZED)"},
		{[]string{"DROP VIEW {db}.manifest"}, "manifest is missing"},
		{[]string{"DROP TABLE {db}.policy_history SYNC"},
			"policy_history is missing (millrace migrate --again creates it, empty); "},
		{[]string{"DROP TABLE {db}.job_log SYNC", "CREATE TABLE {db}.job_log AS {db}.reports ENGINE = MergeTree ORDER BY id"},
			"table job_log has the engine MergeTree, wanted is ReplacingMergeTree"},
		{[]string{"RENAME TABLE {db}.admin_log TO {db}.old",
			"CREATE TABLE {db}.admin_log AS {db}.old ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(ts) ORDER BY" +
				" (account, ts)"},
			"table admin_log is sorted by (account, ts), wanted is (account, ts, id)"},
	} {
		for _, s := range tc.statements {
			if err := db.Exec(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		err := migrate.Check(t.Context(), db)
		want = append(want, tc.want)
		for _, w := range want {
			if !errors.Is(err, migrate.ErrAltered) || !strings.Contains(err.Error(), w) {
				t.Errorf("after %s: Check = %v, want %s", tc.statements, err, w)
			}
		}
	}
}

// The environment variables of a process that migrates and is killed.
const (
	killedAddr = "MILLRACE_TEST_MIGRATE_ADDR"
	killedName = "MILLRACE_TEST_MIGRATE_DATABASE"
)

// migrateToBeKilled is the main function of that process. It returns the exit code.
func migrateToBeKilled() int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{os.Getenv(killedAddr)},
		Database: os.Getenv(killedName)}, nil)
	if err == nil {
		_, err = migrate.Run(ctx, db)
	}
	fmt.Println("migrated:", err)
	return 1
}

// After a kill between a statement and its record, or after the record, the next run continues: it repeats what was
// done but not recorded, which changes nothing.
func TestMigrateKilled(t *testing.T) {
	t.Parallel()
	whole := clickhousetest.Open(t)
	want := schemaOf(t, whole)
	steps := clickhousetest.Count(t, whole, "schema_migrations")
	n, err := strconv.Atoi(steps)
	if err != nil {
		t.Fatal(err)
	}
	const inTheMiddle = "in the middle"
	for name, tc := range map[string]struct {
		nth     int  // record of a migration
		through bool // the record reaches the server before the kill
		noted   int
	}{
		"before the first record": {1, false, 0},
		"behind the first record": {1, true, 1},
		inTheMiddle:               {n / 6, false, n/6 - 1}, // of the first ones, each of which makes a table or view
		"before the last record":  {n, false, n - 1},
		"behind the last record":  {n, true, n},
	} {
		t.Run(name, func(t *testing.T) {
			if name != inTheMiddle {
				need.Full(t)
			}
			db := clickhousetest.OpenEmpty(t)
			killMigration(t, db, tc.nth, tc.through)
			if got := clickhousetest.Count(t, db, "schema_migrations"); got != strconv.Itoa(tc.noted) {
				t.Fatalf("%s migrations are noted, want %d", got, tc.noted)
			}
			made := len(schemaOf(t, db)) - 1
			if wantMade := min(max(tc.nth, tc.noted), len(want)-1); made != wantMade { // later ones alter tables
				t.Fatalf("%d tables and views are made, want %d: the kill came at another place", made, wantMade)
			}
			err := migrate.Check(t.Context(), db)
			if tc.noted < n && !errors.Is(err, migrate.ErrMissing) || tc.noted == n && err != nil {
				t.Errorf("Check after the kill = %v", err)
			}
			applied, err := migrate.Run(t.Context(), db)
			if err != nil || len(applied) != n-tc.noted {
				t.Fatalf("Migrate after the kill applied %d, error %v, want %d", len(applied), err, n-tc.noted)
			}
			if got := schemaOf(t, db); !slices.Equal(got, want) {
				t.Errorf("the schema is\n%q\nwant\n%q", got, want)
			}
			if err := migrate.Check(t.Context(), db); err != nil {
				t.Error(err)
			}
		})
	}
}

// killMigration migrates db in a process that is killed (SIGKILL) when its nth record is on its way to the server,
// or after the server has it.
func killMigration(t *testing.T, db *clickhouse.DB, nth int, through bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), killedAddr+"="+l.Addr().String(), killedName+"="+db.Config().Database)
	var seen atomic.Int32
	var quiet atomic.Bool
	started := make(chan struct{})
	go clickhousetest.Relay(l, clickhousetest.Addr(t), &quiet, func(sent string, pass func()) bool {
		if !strings.Contains(sent, "INSERT INTO `"+db.Config().Database+"`.schema_migrations") {
			return true
		}
		if seen.Add(1) < int32(nth) {
			return true
		}
		if through {
			quiet.Store(true) // the response must not arrive
			pass()
			waitFor(t, db, nth)
		}
		<-started
		cmd.Process.Kill()
		return false
	})
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	close(started)
	err = cmd.Wait()
	if err == nil || cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("the process was to be killed, and ended with %v\n%s", err, out.String())
	}
}

// waitFor returns when n migrations are recorded, or after a minute.
func waitFor(t *testing.T, db *clickhouse.DB, n int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		all, err := clickhousetest.Strings(ctx, db, "SELECT toString(count()) FROM {db}.schema_migrations")
		if err == nil && all[0] == strconv.Itoa(n) || retry.Sleep(ctx, 10*time.Millisecond) != nil {
			return
		}
	}
}

// Rows from before every report was kept, and before rows had hashes, stay as they are. Later reports join them.
func TestMigrateRows(t *testing.T) {
	t.Parallel()
	db := clickhousetest.OpenEmpty(t)
	plan, err := migrate.NewPlan(t.Context(), db, false)
	if err != nil {
		t.Fatal(err)
	}
	before := slices.IndexFunc(plan.Steps, func(s migrate.Step) bool { return s.Name == "0050_audit_log_report" })
	if before < 0 {
		t.Fatal("the migration is not there")
	}
	if _, err := migrate.Apply(t.Context(), db,
		migrate.Plan{Prepare: plan.Prepare, Steps: plan.Steps[:before]}); err != nil {
		t.Fatal(err)
	}
	client, _, checked := clickhousetest.Reported("a")
	const insert = "INSERT INTO {db}.audit_log (id, ts, ns, topic, inc, part, off, op, account, store, space, item," +
		" version, size, user, origin, richness)" +
		" SELECT unhex(?), fromUnixTimestamp64Milli(?, 'UTC'), 234567, 'changes', 7, 3, ?, 'add', 'acme', '1', 'photos'," +
		" 'a', 'v0s', 1000, 'ann', 'client', 1"
	for offset := range 2 { // published twice, in two parts
		if err := db.Exec(t.Context(), insert, client.GetId(), client.GetTime().AsTime().UnixMilli(), offset); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := migrate.Run(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if err := migrate.Check(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	records := clickhousetest.Deliver(schemas.Changes, 0, client, client, checked)
	check := func(when, want string) {
		t.Helper()
		got, err := clickhousetest.Verify(t, db, schemas.Changes,
			clickhousetest.KafkaTopic{Records: records, End: 3, Committed: 3})
		if err != nil || clickhousetest.Describe(got[0]) != "audit_log: "+want {
			t.Errorf("%s: %v\n got %s\nwant audit_log: %s", when, err, clickhousetest.Describe(got[0]), want)
		}
		if got, want := clickhousetest.Value(t, db,
			"SELECT concat(user, ' ', origin, ' ', provenance) FROM {db}.audit_log_v"), "ann client verified"; got != want {
			t.Errorf("%s: the row says %s, want %s", when, got, want)
		}
	}
	if err := clickhouse.NewSink(db).Store(t.Context(), records[2:]); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"OPTIMIZE TABLE {db}.audit_log FINAL", "SYSTEM STOP MERGES {db}.audit_log"} {
		if err := db.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	check("merged", "3 records, 1 messages, 1 rows; unhashed 1")
	if err := clickhouse.NewSink(db).Store(t.Context(), records); err != nil { // as if read again
		t.Fatal(err)
	}
	check("read again", "3 records, 1 messages, 1 rows; unhashed 1")
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := clickhousetest.OpenEmpty(t)
	err := migrate.Check(t.Context(), db)
	if !errors.Is(err, migrate.ErrMissing) || !strings.Contains(err.Error(), "0001_audit_log") {
		t.Errorf("Check before Migrate = %v, want a missing 0001_audit_log", err)
	}
	applied, err := migrate.Run(t.Context(), db)
	if err != nil || len(applied) < 20 || applied[0] != "0001_audit_log" {
		t.Fatalf("Migrate = %v, %v", applied, err)
	}
	if err := migrate.Check(t.Context(), db); err != nil {
		t.Errorf("Check after Migrate: %v", err)
	}
	if again, err := migrate.Run(t.Context(), db); err != nil || len(again) != 0 {
		t.Errorf("Migrate again = %v, %v, want nothing", again, err)
	}
	if err := db.Exec(t.Context(), "INSERT INTO {db}.schema_migrations (version, name) SELECT 9999, 'newer'"); err != nil {
		t.Fatal(err)
	}
	if err := migrate.Check(t.Context(), db); err != nil {
		t.Errorf("Check with a newer migration: %v", err)
	}
	if err := db.Exec(t.Context(), "TRUNCATE TABLE {db}.schema_migrations"); err != nil {
		t.Fatal(err)
	}
	if again, err := migrate.Run(t.Context(), db); err != nil || !slices.Equal(again, applied) {
		t.Errorf("Migrate with its ledger lost = %v, %v, want all of them again", again, err)
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(killedAddr) != "" {
		os.Exit(migrateToBeKilled())
	}
	clickhousetest.Main(m)
}
