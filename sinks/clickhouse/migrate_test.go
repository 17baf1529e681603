package clickhouse_test

import (
	"bytes"
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

// schemaOf is all that the migrations have made, as the engine tells it.
func schemaOf(t *testing.T, db *clickhouse.DB) []string {
	t.Helper()
	all, err := db.Strings(t.Context(), "SELECT name || ' ' || create_table_query FROM system.tables WHERE database = ? ORDER BY name", db.Config().Database)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range all {
		all[i] = strings.ReplaceAll(s, db.Config().Database, "db")
	}
	return all
}

func TestPlan(t *testing.T) {
	db := clickhousetest.OpenEmpty(t)
	empty, err := db.Plan(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(empty.Prepare) != 2 || !strings.HasPrefix(empty.Prepare[0], "CREATE DATABASE") || empty.Steps[0].Name != "0001_audit_log" {
		t.Errorf("the plan of an empty server prepares %q and begins with %s", empty.Prepare, empty.Steps[0].Name)
	}
	if got := one(t, db, "SELECT toString(count()) FROM system.databases WHERE name = ?", db.Config().Database); got != "0" {
		t.Fatal("to plan has made the database")
	}
	applied, err := db.Apply(t.Context(), empty)
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
	if p, err := db.Plan(t.Context(), false); err != nil || !p.Empty() {
		t.Errorf("the plan of an up-to-date database is %v, %v, want nothing", p, err)
	}
	want := schemaOf(t, db)
	again, err := db.Plan(t.Context(), true)
	if err != nil || len(again.Steps) != len(names) {
		t.Fatalf("the plan of all again has %d steps, error %v, want %d", len(again.Steps), err, len(names))
	}
	if _, err := db.Apply(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if got := schemaOf(t, db); !slices.Equal(got, want) {
		t.Errorf("all again has changed the schema:\n%q\nwant\n%q", got, want)
	}
}

// A ledger of before there were checksums is taken over, and completed with the next migration.
func TestOldLedger(t *testing.T) {
	db := clickhousetest.Open(t)
	for _, statement := range []string{
		"DROP TABLE {db}.schema_migrations SYNC",
		"CREATE TABLE {db}.schema_migrations (version UInt32, name String, applied DateTime64(3, 'UTC') DEFAULT now64(3)) ENGINE = ReplacingMergeTree ORDER BY version",
		"INSERT INTO {db}.schema_migrations (version, name) SELECT number + 1, 'old' FROM numbers(20)",
	} {
		if err := db.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Check(t.Context()); !errors.Is(err, clickhouse.ErrMigration) || !strings.Contains(err.Error(), "0021_manifest") {
		t.Errorf("Check = %v, want a missing 0021_manifest", err)
	}
	applied, err := db.Migrate(t.Context())
	if err != nil || len(applied) == 0 || applied[0] != "0021_manifest" {
		t.Fatalf("Migrate = %v, %v", applied, err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestChangedMigration(t *testing.T) {
	db := clickhousetest.Open(t)
	if err := db.Exec(t.Context(), "INSERT INTO {db}.schema_migrations (version, name, checksum, applied) "+
		"SELECT 3, 'bit_log', repeat('0', 64), now64(3) + 1"); err != nil {
		t.Fatal(err)
	}
	_, migrated := db.Migrate(t.Context())
	_, planned := db.Plan(t.Context(), true)
	for what, err := range map[string]error{"Check": db.Check(t.Context()), "Migrate": migrated, "Plan": planned} {
		if !errors.Is(err, clickhouse.ErrChanged) || !strings.Contains(err.Error(), "0003_bit_log") {
			t.Errorf("%s = %v, want 0003_bit_log changed", what, err)
		}
	}
}

func TestOtherForm(t *testing.T) {
	db := clickhousetest.Open(t)
	cfg := db.Config()
	cfg.Cluster = "default"
	if err := open(t, cfg).Check(t.Context()); !errors.Is(err, clickhouse.ErrForm) || !strings.Contains(err.Error(), "the cluster default is configured") {
		t.Errorf("Check of a cluster where there is one server = %v", err)
	}
	cfg.Database += "_not_there"
	if _, err := open(t, cfg).Plan(t.Context(), false); !errors.Is(err, clickhouse.ErrCluster) || !strings.Contains(err.Error(), `the server knows no cluster "default"`) {
		t.Errorf("Plan for a cluster that there is not = %v", err)
	}
	if err := db.Exec(t.Context(), "INSERT INTO {db}.schema_migrations (version, name, cluster, shards, applied) SELECT 1, 'audit_log', 'main', 2, now64(3) + 1"); err != nil {
		t.Fatal(err)
	}
	if err := db.Check(t.Context()); !errors.Is(err, clickhouse.ErrForm) || !strings.Contains(err.Error(), "cluster main") {
		t.Errorf("Check of one server where there is a cluster = %v", err)
	}
}

// What is altered by hand is named, with what is and what is wanted; what only adds is accepted.
func TestAlteredByHand(t *testing.T) {
	for name, tc := range map[string]struct {
		statements []string
		want       string // empty: accepted
	}{
		"a column added":    {[]string{"ALTER TABLE {db}.audit_log ADD COLUMN newer String"}, ""},
		"a key added":       {[]string{"ALTER TABLE {db}.audit_log ADD COLUMN k UInt8, MODIFY ORDER BY (account, space, item, store, ts, id, k)"}, ""},
		"a table added":     {[]string{"CREATE TABLE {db}.mine (a Int8) ENGINE = Memory"}, ""},
		"an index added":    {[]string{"ALTER TABLE {db}.bit_log ADD INDEX newer item TYPE bloom_filter"}, ""},
		"a type":            {[]string{"ALTER TABLE {db}.bit_log MODIFY COLUMN bytes_read String"}, "table bit_log: column bytes_read is String, wanted is Int64"},
		"a column gone":     {[]string{"ALTER TABLE {db}.job_log DROP COLUMN error"}, "table job_log: column error is missing, wanted is String"},
		"a column of state": {[]string{"ALTER TABLE {db}.copy_state DROP COLUMN acl"}, "table copy_state: column acl is missing"},
		"a computed column": {[]string{"ALTER TABLE {db}.reports MODIFY COLUMN detail String MATERIALIZED round"}, "table reports: column detail is computed (MATERIALIZED)"},
		"a view gone":       {[]string{"DROP VIEW {db}.manifest"}, "manifest is missing"},
		"two things": {[]string{"ALTER TABLE {db}.job_log DROP COLUMN error", "DROP TABLE {db}.admin_log SYNC"},
			"admin_log is missing (millrace migrate --again makes it anew, empty); table job_log: column error is missing"},
		"another engine": {[]string{"DROP TABLE {db}.admin_log SYNC", "CREATE TABLE {db}.admin_log AS {db}.job_log ENGINE = MergeTree ORDER BY id"},
			"table admin_log has the engine MergeTree, wanted is ReplacingMergeTree"},
		"a key without the id": {[]string{"RENAME TABLE {db}.admin_log TO {db}.old",
			"CREATE TABLE {db}.admin_log AS {db}.old ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(ts) ORDER BY (account, ts)"},
			"table admin_log is sorted by (account, ts), wanted is (account, ts, id)"},
	} {
		t.Run(name, func(t *testing.T) {
			db := clickhousetest.Open(t)
			for _, s := range tc.statements {
				if err := db.Exec(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			err := db.Check(t.Context())
			if tc.want == "" {
				if err != nil {
					t.Errorf("Check = %v, want none", err)
				}
				return
			}
			if !errors.Is(err, clickhouse.ErrAltered) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Check = %v, want %s", err, tc.want)
			}
		})
	}
}

// The environment of a process that migrates and is killed meanwhile.
const (
	killedAddr = "MILLRACE_TEST_MIGRATE_ADDR"
	killedName = "MILLRACE_TEST_MIGRATE_DATABASE"
)

// TestMigrateProcess is that process; by itself it is no test.
func TestMigrateProcess(t *testing.T) {
	if os.Getenv(killedAddr) == "" {
		t.Skip("is run by TestMigrateKilled")
	}
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{os.Getenv(killedAddr)}, Database: os.Getenv(killedName)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A migration that is killed between a statement and its record, or behind the record, is
// gone on with: what was done and not noted is done again, and changes nothing.
func TestMigrateKilled(t *testing.T) {
	whole := clickhousetest.Open(t)
	want := schemaOf(t, whole)
	steps := count(t, whole, "schema_migrations")
	n, err := strconv.Atoi(steps)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		nth     int  // record
		through bool // to the server, before the kill
		noted   int
	}{
		"before the first record": {1, false, 0},
		"behind the first record": {1, true, 1},
		"in the middle":           {n / 2, false, n/2 - 1},
		"before the last record":  {n, false, n - 1},
		"behind the last record":  {n, true, n},
	} {
		t.Run(name, func(t *testing.T) {
			db := clickhousetest.OpenEmpty(t)
			killMigration(t, db, tc.nth, tc.through)
			if got := count(t, db, "schema_migrations"); got != strconv.Itoa(tc.noted) {
				t.Fatalf("%s migrations are noted, want %d", got, tc.noted)
			}
			made := len(schemaOf(t, db)) - 1
			if wantMade := min(max(tc.nth, tc.noted), len(want)-1); made != wantMade { // the last ones alter tables
				t.Fatalf("%d tables and views are made, want %d: the kill came at another place", made, wantMade)
			}
			err := db.Check(t.Context())
			if tc.noted < n && !errors.Is(err, clickhouse.ErrMigration) || tc.noted == n && err != nil {
				t.Errorf("Check after the kill = %v", err)
			}
			applied, err := db.Migrate(t.Context())
			if err != nil || len(applied) != n-tc.noted {
				t.Fatalf("Migrate after the kill applied %d, error %v, want %d", len(applied), err, n-tc.noted)
			}
			if got := schemaOf(t, db); !slices.Equal(got, want) {
				t.Errorf("the schema is\n%q\nwant\n%q", got, want)
			}
			if err := db.Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// killMigration migrates db in a process of its own, which is killed (SIGKILL) when its nth record
// is on its way to the server, or once it has arrived there.
func killMigration(t *testing.T, db *clickhouse.DB, nth int, through bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMigrateProcess$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), killedAddr+"="+l.Addr().String(), killedName+"="+db.Config().Database)
	var seen atomic.Int32
	var quiet atomic.Bool
	started := make(chan struct{})
	go relay(l, clickhousetest.Addr(t), &quiet, func(sent string, pass func()) bool {
		if !strings.Contains(sent, "INSERT INTO `"+db.Config().Database+"`.schema_migrations") {
			return true
		}
		if seen.Add(1) < int32(nth) {
			return true
		}
		if through {
			quiet.Store(true) // the answer is not seen any more
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

// waitFor returns when n migrations are noted.
func waitFor(t *testing.T, db *clickhouse.DB, n int) {
	for range 1000 {
		if all, err := db.Strings(t.Context(), "SELECT toString(count()) FROM {db}.schema_migrations"); err == nil && all[0] == strconv.Itoa(n) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// relay passes connections on to a server. see is asked about each piece that a client sends; after
// false the connection is cut. While it is quiet, nothing of what the server says comes through.
func relay(l net.Listener, server string, quiet *atomic.Bool, see func(sent string, pass func()) bool) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			up, err := net.Dial("tcp", server)
			if err != nil {
				return
			}
			defer up.Close()
			go func() {
				defer client.Close()
				buf := make([]byte, 1<<16)
				for {
					n, err := up.Read(buf)
					if err != nil {
						return
					}
					if !quiet.Load() {
						if _, err := client.Write(buf[:n]); err != nil {
							return
						}
					}
				}
			}()
			buf := make([]byte, 1<<20)
			for {
				n, err := client.Read(buf)
				if err != nil || !see(string(buf[:n]), func() { _, _ = up.Write(buf[:n]) }) {
					return
				}
				if _, err := up.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	}
}

func TestWrittenTablesAreMade(t *testing.T) {
	db := clickhousetest.Open(t)
	names, err := db.Strings(t.Context(), "SELECT name FROM system.tables WHERE database = ?", db.Config().Database)
	if err != nil {
		t.Fatal(err)
	}
	for table := range maps.Keys(clickhouse.TableColumns()) {
		if !slices.Contains(names, table) {
			t.Errorf("rows are written to %s, which no migration makes", table)
		}
	}
}
