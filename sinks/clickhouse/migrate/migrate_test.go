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
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/streams/retry"
)

// schemaOf returns everything that the migrations have created, as the engine reports it.
func schemaOf(t *testing.T, db *clickhouse.DB) []string {
	t.Helper()
	all, err := clickhousetest.Strings(t.Context(), db,
		"SELECT name || ' ' || create_table_query FROM system.tables WHERE database = ? ORDER BY name", db.Config().Database)
	must(t, err)
	for i, s := range all {
		all[i] = strings.ReplaceAll(s, db.Config().Database, "db")
	}
	return all
}

func TestPlan(t *testing.T) {
	t.Parallel()
	db := clickhousetest.OpenEmpty(t)
	empty, err := migrate.NewPlan(t.Context(), db, false)
	must(t, err)
	if len(empty.Prepare) != 2 || !strings.HasPrefix(empty.Prepare[0], "CREATE DATABASE") ||
		empty.Steps[0].Name != "0001_audit_log" {
		t.Errorf("the plan of an empty server prepares %q and begins with %s", empty.Prepare, empty.Steps[0].Name)
	}
	if got := clickhousetest.Value(t, db, "SELECT toString(count()) FROM system.databases WHERE name = ?",
		db.Config().Database); got != "0" {
		t.Fatal("to plan has made the database")
	}
	applied, err := migrate.Run(t.Context(), db, false)
	must(t, err)
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
	if _, err := migrate.Run(t.Context(), db, true); err != nil {
		t.Fatal(err)
	}
	if got := schemaOf(t, db); !slices.Equal(got, want) {
		t.Errorf("all again has changed the schema:\n%q\nwant\n%q", got, want)
	}
}

// Tables of another build are refused, with their database, the migrations that this build does not have, and what to
// do: those of a build whose migrations had other numbers or contents, or no checksums.
func TestOtherBuild(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ found, want string }{
		"one has changed": {"SELECT 3, 'bit_log', repeat('0', 64), now64(3) + 1",
			"1 of its migrations (0003_bit_log)"},
		"one is recorded unsummed": {"SELECT 3, 'bit_log', '', now64(3) + 1", "1 of its migrations (0003_bit_log)"},
		"all are others": {"SELECT number + 1, concat('old_', toString(number)), repeat('0', 64), now64(3) + 1" +
			" FROM numbers(153)", "24 of its migrations (0001_old_0, 0002_old_1, 0003_old_2)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := clickhousetest.Open(t)
			if err := db.Exec(t.Context(), "INSERT INTO {db}.schema_migrations (version, name, checksum, applied) "+
				test.found); err != nil {
				t.Fatal(err)
			}
			_, migrated := migrate.Run(t.Context(), db, false)
			_, planned := migrate.NewPlan(t.Context(), db, true)
			for what, err := range map[string]error{"Check": migrate.Check(t.Context(), db), "Migrate": migrated,
				"Plan": planned} {
				want := "database " + db.Config().Database + ": another build of millrace made its tables: " +
					"this build does not have " + test.want + ": configure a new database"
				if !errors.Is(err, migrate.ErrChanged) || !strings.Contains(err.Error(), want) {
					t.Errorf("%s = %v, want %s", what, err, want)
				}
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
		must(t, db.Exec(t.Context(), s))
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
			"table duplication_log: column position is missing, wanted is UInt64"},
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
			must(t, db.Exec(t.Context(), s))
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
		_, err = migrate.Run(ctx, db, false)
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
	must(t, err)
	const inTheMiddle = "in the middle"
	for name, tc := range map[string]struct {
		nth     int  // record of a migration
		through bool // the record reaches the server before the kill
		noted   int
	}{
		"before the first record": {1, false, 0},
		"behind the first record": {1, true, 1},
		inTheMiddle:               {n / 2, false, n/2 - 1},
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
			if wantMade := max(tc.nth, tc.noted); made != wantMade {
				t.Fatalf("%d tables and views are made, want %d: the kill came at another place", made, wantMade)
			}
			err := migrate.Check(t.Context(), db)
			if tc.noted < n && !errors.Is(err, migrate.ErrMissing) || tc.noted == n && err != nil {
				t.Errorf("Check after the kill = %v", err)
			}
			applied, err := migrate.Run(t.Context(), db, false)
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
	must(t, err)
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
	must(t, cmd.Start())
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

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := clickhousetest.OpenEmpty(t)
	err := migrate.Check(t.Context(), db)
	if !errors.Is(err, migrate.ErrMissing) || !strings.Contains(err.Error(), "0001_audit_log") {
		t.Errorf("Check before Migrate = %v, want a missing 0001_audit_log", err)
	}
	applied, err := migrate.Run(t.Context(), db, false)
	if err != nil || len(applied) < 20 || applied[0] != "0001_audit_log" {
		t.Fatalf("Migrate = %v, %v", applied, err)
	}
	if err := migrate.Check(t.Context(), db); err != nil {
		t.Errorf("Check after Migrate: %v", err)
	}
	if again, err := migrate.Run(t.Context(), db, false); err != nil || len(again) != 0 {
		t.Errorf("Migrate again = %v, %v, want nothing", again, err)
	}
	must(t, db.Exec(t.Context(), "INSERT INTO {db}.schema_migrations (version, name) SELECT 9999, 'newer'"))
	if err := migrate.Check(t.Context(), db); err != nil {
		t.Errorf("Check with a newer migration: %v", err)
	}
	must(t, db.Exec(t.Context(), "TRUNCATE TABLE {db}.schema_migrations"))
	if again, err := migrate.Run(t.Context(), db, false); err != nil || !slices.Equal(again, applied) {
		t.Errorf("Migrate with its ledger lost = %v, %v, want all of them again", again, err)
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(killedAddr) != "" {
		os.Exit(migrateToBeKilled())
	}
	clickhousetest.Main(m)
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
