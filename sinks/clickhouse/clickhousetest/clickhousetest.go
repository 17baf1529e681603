// Package clickhousetest gives tests a ClickHouse server: one embedded engine for each test binary, started by the
// first test that needs it, and a separate database for each test.
//
// Without an engine (no clickhouse binary, no library, no network) tests are skipped or fail, as need.Missing
// decides. If MILLRACE_TEST_CLICKHOUSE has the address (host:port) of a server, that server is used.
package clickhousetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
)

// addrEnv is the environment variable with the address of a server.
const addrEnv = "MILLRACE_TEST_CLICKHOUSE"

// engine is the only engine of the test binary. It is a package variable because the first test starts it and Main
// stops it.
var engine struct {
	sync.Mutex
	dir    string
	binary string
	server *embedded.Server
	err    error

	template    *template // nil until the first test calls Open
	templateErr error
}

// A template is a migrated database that others are copied from.
type template struct {
	name     string
	create   []string // statements that create its tables and views, in order of their dependencies
	nonEmpty []string // tables that have rows
}

// Main runs the tests of a package and stops the engine. Call it from TestMain. Every package with tests that call
// Open or Make must do so: Main also drops the template on a server from MILLRACE_TEST_CLICKHOUSE.
func Main(m *testing.M) {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func stop() error {
	engine.Lock()
	defer engine.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var err error
	if addr := os.Getenv(addrEnv); addr != "" && engine.template != nil {
		err = Exec(ctx, addr, "DROP DATABASE IF EXISTS `"+engine.template.name+"` SYNC")
	}
	if engine.server != nil {
		err = engine.server.Close(ctx)
	}
	if engine.dir != "" {
		err = errors.Join(err, os.RemoveAll(engine.dir))
	}
	return err
}

// Addr returns the address of the engine. It starts the engine if necessary.
func Addr(t testing.TB) string {
	t.Helper()
	if addr := os.Getenv(addrEnv); addr != "" {
		return addr
	}
	engine.Lock()
	defer engine.Unlock()
	if engine.server == nil && engine.err == nil {
		engine.err = start()
	}
	requireEngine(t, engine.err)
	return engine.server.Addr()
}

// Binary builds millrace-clickhouse, fetches its library if necessary, and returns the path of the binary.
func Binary(t testing.TB) string {
	t.Helper()
	engine.Lock()
	defer engine.Unlock()
	if engine.err == nil {
		engine.err = build()
	}
	if engine.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if os.Getenv("MILLRACE_LIBCHDB") == "" {
			_, engine.err = embedded.Fetch(ctx, os.Stderr)
		}
	}
	requireEngine(t, engine.err)
	return engine.binary
}

// Start starts a separate engine for a test, and stops it at the end of the test.
func Start(t testing.TB, cfg embedded.Config) *embedded.Server {
	t.Helper()
	cfg.Binary = Binary(t)
	if cfg.Dir == "" {
		cfg.Dir = Dir(t)
	}
	server, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatalf("start an engine: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Close(context.Background()); err != nil {
			t.Errorf("stop the engine: %v", err)
		}
	})
	return server
}

// Dir returns a directory for a separate engine. It is removed at the end of the test.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := makeDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "engine")
}

// Open returns a migrated database. It is dropped at the end of the test.
func Open(t testing.TB) *clickhouse.DB {
	t.Helper()
	db, name := openEmpty(t)
	Make(t, name)
	return db
}

// Make creates a migrated database with a name. Migrations make the first one of a test binary; the others copy its
// tables, which takes a third of the statements.
func Make(t testing.TB, name string) {
	t.Helper()
	addr := Addr(t)
	engine.Lock()
	if engine.template == nil && engine.templateErr == nil {
		engine.template, engine.templateErr = makeTemplate(t.Context(), addr)
	}
	from, err := engine.template, engine.templateErr
	engine.Unlock()
	if err == nil {
		err = from.copyTo(t.Context(), addr, name)
	}
	if err != nil {
		t.Fatalf("make the test's database: %v", err)
	}
}

// makeTemplate creates and migrates the template.
func makeTemplate(ctx context.Context, addr string) (made *template, err error) {
	made = &template{name: newName()}
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{addr}, Database: made.name}, nil)
	if err != nil {
		return nil, err
	}
	_, err = migrate.Run(ctx, db, false)
	if err := errors.Join(err, db.Close()); err != nil {
		return nil, err
	}
	conn, err := ch.Open(&ch.Options{Addr: []string{addr}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var tables []struct {
		Name   string `ch:"name"`
		Create string `ch:"create_table_query"`
		Rows   uint64 `ch:"rows"`
	}
	err = conn.Select(ctx, &tables, "SELECT name, create_table_query, ifNull(total_rows, 0) AS rows FROM system.tables"+
		" WHERE database = ? ORDER BY endsWith(engine, 'View'), name", made.name)
	for _, t := range tables {
		made.create = append(made.create, t.Create)
		if t.Rows > 0 {
			made.nonEmpty = append(made.nonEmpty, t.Name)
		}
	}
	return made, err
}

// copyTo creates a database like the template.
func (from *template) copyTo(ctx context.Context, addr, name string) (err error) {
	conn, err := ch.Open(&ch.Options{Addr: []string{addr}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	statements := []string{"CREATE DATABASE `" + name + "`"}
	for _, s := range from.create {
		statements = append(statements, strings.ReplaceAll(s, from.name, name))
	}
	for _, table := range from.nonEmpty {
		statements = append(statements, "INSERT INTO `"+name+"`."+table+" SELECT * FROM `"+from.name+"`."+table)
	}
	for _, s := range statements {
		if err := conn.Exec(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// newName returns a random name for a database.
func newName() string { return "test_" + schemas.NewID() }

// OpenEmpty returns a database that does not exist yet. It is dropped at the end of the test.
func OpenEmpty(t testing.TB) *clickhouse.DB {
	t.Helper()
	db, _ := openEmpty(t)
	return db
}

func openEmpty(t testing.TB) (db *clickhouse.DB, name string) {
	t.Helper()
	name = newName()
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{Addr(t)}, Database: name}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Drop(context.Background()); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("close the test's database: %v", err)
		}
	})
	return db, name
}

// Exec runs a statement on the engine at addr, for changes that millrace does not know of.
func Exec(ctx context.Context, addr, statement string) error {
	conn, err := ch.Open(&ch.Options{Addr: []string{addr}})
	if err != nil {
		return err
	}
	return errors.Join(conn.Exec(ctx, statement), conn.Close())
}

// A ViewCount is the number of rows in the view of a log, and the number of distinct messages.
type ViewCount struct {
	Rows uint64 `ch:"n"`
	IDs  uint64 `ch:"ids"`
}

// Views counts the rows in the views of those logs that have one row for each message. If a view has more rows than
// messages, it shows a message twice.
func Views(ctx context.Context, addr, database string) (views map[string]ViewCount, err error) {
	conn, err := ch.Open(&ch.Options{Addr: []string{addr}, Auth: ch.Auth{Database: database},
		Settings: ch.Settings{"distributed_group_by_no_merge": 0}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	views = map[string]ViewCount{}
	for _, log := range []string{"audit_log", "duplication_log", "bit_log", "admin_log", "policy_history"} {
		var n ViewCount
		if err := conn.QueryRow(ctx, "SELECT count() AS n, uniqExact(id) AS ids FROM "+log+"_v").ScanStruct(&n); err != nil {
			return nil, err
		}
		views[log] = n
	}
	return views, nil
}

// requireEngine skips or fails a test without an engine.
func requireEngine(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		need.Missing(t, need.ClickHouse(), err)
	}
}

func start() error {
	if err := build(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	server, err := embedded.Start(ctx, embedded.Config{
		Dir: filepath.Join(engine.dir, "engine"), Binary: engine.binary, Progress: os.Stderr,
	})
	engine.server = server
	return err
}

func build() error {
	if engine.binary != "" {
		return nil
	}
	dir, err := makeDir()
	if err != nil {
		return err
	}
	engine.dir = dir
	binary := filepath.Join(dir, "millrace-clickhouse")
	cmd := exec.Command("go", "build", "-o", binary, "github.com/millrace/millrace/cmd/millrace-clickhouse")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // as make build does
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the engine's command: %w\n%s", err, out)
	}
	engine.binary = binary
	return nil
}

// memoryDir is a file system in memory, on Linux. An engine syncs files after each insert and each change of a
// table, which would take most of the time of a test on a disk. Files of a killed engine stay there, as on a disk.
const (
	memoryDir  = "/dev/shm"
	minFree    = 2 << 30 // bytes
	namePrefix = "millrace-clickhousetest-"
)

// makeDir creates a directory for an engine, in memory if there is enough of it.
func makeDir() (string, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryDir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < minFree {
		return os.MkdirTemp("", namePrefix)
	}
	removeStale()
	return os.MkdirTemp(memoryDir, namePrefix)
}

// removeStale removes the directories in memory of test binaries that were killed at least an hour ago. A running
// engine holds the lock in its directory.
func removeStale() {
	dirs, err := filepath.Glob(filepath.Join(memoryDir, namePrefix+"*"))
	if err != nil {
		panic(err) // the pattern is a constant
	}
	for _, dir := range dirs {
		lock := filepath.Join(dir, "engine", "engine.lock")
		st, err := os.Stat(lock)
		if errors.Is(err, fs.ErrNotExist) { // no engine was started in it
			st, err = os.Stat(dir)
		}
		if err != nil || time.Since(st.ModTime()) < time.Hour { // an engine may be about to start
			continue
		}
		if f, err := os.Open(lock); err == nil {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
			f.Close()
			if err != nil {
				continue
			}
		}
		_ = os.RemoveAll(dir) // the next run tries again
	}
}
