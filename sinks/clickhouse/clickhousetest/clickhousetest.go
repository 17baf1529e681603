// Package clickhousetest gives tests a ClickHouse: one embedded engine for a test
// binary, started when the first test asks, and a database of its own for each test.
//
// If no engine can be had (no clickhouse binary, no library, no network) a test is skipped
// as need.Missing says. A server named in MILLRACE_TEST_CLICKHOUSE (host:port) is taken
// before all else.
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
)

// addrEnv names a server, as host:port.
const addrEnv = "MILLRACE_TEST_CLICKHOUSE"

// engine is the one engine of the test binary. It is a package variable because Main stops
// the engine that the first test started.
var engine struct {
	sync.Mutex
	dir    string
	binary string
	server *embedded.Server
	err    error

	template    *template // nil until the first test calls Open
	templateErr error
}

// A template is a migrated database.
type template struct {
	name     string
	create   []string // statements that make its tables and views, in an order that works
	nonEmpty []string // tables that have rows
}

// Main runs the tests of a package and then stops the engine; call it from TestMain. A package whose tests call Open
// or Make must call it: it drops what they keep on a server that was named.
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

// Addr returns the address of the engine, which it starts if need be.
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

// Binary returns the path of millrace-clickhouse, built for this test binary, and makes
// sure that its library is there.
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

// Start starts an engine of the test's own, with settings and users of its own, and ends it with the test.
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

// Dir returns a directory for an engine of the test's own. It is removed when the test ends.
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

// Open returns a migrated database of the test's own, which goes when the test ends.
func Open(t testing.TB) *clickhouse.DB {
	t.Helper()
	db, name := openEmpty(t)
	Make(t, name)
	return db
}

// Make makes a migrated database of a name. The first of a test binary is made by the migrations, and the others are made
// like it, with a third of the statements.
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

// makeTemplate migrates a database.
func makeTemplate(ctx context.Context, addr string) (made *template, err error) {
	made = &template{name: newName()}
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{addr}, Database: made.name}, nil)
	if err != nil {
		return nil, err
	}
	_, err = db.Migrate(ctx)
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

// copyTo makes a database like the template.
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

// newName returns a name for a database.
func newName() string { return "test_" + schemas.NewID() }

// OpenEmpty returns a database of the test's own that does not exist yet.
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

// Exec runs a statement on the engine at addr, as somebody might who goes behind millrace's back.
func Exec(ctx context.Context, addr, statement string) error {
	conn, err := ch.Open(&ch.Options{Addr: []string{addr}})
	if err != nil {
		return err
	}
	return errors.Join(conn.Exec(ctx, statement), conn.Close())
}

// A ViewCount is how many rows the view of a log shows, and of how many messages.
type ViewCount struct {
	Rows uint64 `ch:"n"`
	IDs  uint64 `ch:"ids"`
}

// Views counts what the views of a database show of the logs whose rows are one message each. A view with more rows
// than messages shows one twice.
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

// give ends a test that cannot have an engine.
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

// memory is a file system in memory, on Linux. An engine syncs files at every insert and every change of a table, which
// takes most of the time of a test on a disk. What an engine that is killed has written there stays, as on a disk.
const (
	memoryDir  = "/dev/shm"
	minFree    = 2 << 30 // bytes that must be free there
	namePrefix = "millrace-clickhousetest-"
)

// makeDir makes a directory for an engine, in memory if there is enough of it.
func makeDir() (string, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryDir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < minFree {
		return os.MkdirTemp("", namePrefix)
	}
	removeStale()
	return os.MkdirTemp(memoryDir, namePrefix)
}

// removeLeft removes the directories in memory of test binaries that were killed an hour ago or earlier. The engine
// holds the lock in its directory for as long as it runs.
func removeStale() {
	dirs, err := filepath.Glob(filepath.Join(memoryDir, namePrefix+"*"))
	if err != nil {
		panic(err) // the pattern is a constant
	}
	for _, dir := range dirs {
		lock := filepath.Join(dir, "engine", "engine.lock")
		st, err := os.Stat(lock)
		if errors.Is(err, fs.ErrNotExist) { // no engine has started in it
			st, err = os.Stat(dir)
		}
		if err != nil || time.Since(st.ModTime()) < time.Hour { // one may be about to start
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
