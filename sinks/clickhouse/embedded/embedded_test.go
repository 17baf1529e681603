package embedded

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/internal/need"
)

// holdEnv makes the test binary a process that starts an engine and does nothing else.
const holdEnv = "MILLRACE_TEST_HOLD_ENGINE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		s, err := Start(context.Background(), Config{Dir: dir, Binary: os.Getenv(holdEnv + "_BINARY")})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(s.Pid(), s.Addr())
		select {}
	}
	dir, err := os.MkdirTemp("", "millrace-embedded-")
	if err != nil {
		panic(err)
	}
	built = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// built is the directory of the engine's command.
var built string

// binary returns the engine's command, after fetching its library if necessary.
func binary(t *testing.T) string {
	t.Helper()
	if os.Getenv("MILLRACE_LIBCHDB") == "" {
		if _, err := exec.LookPath("clickhouse"); err != nil {
			if _, err := Fetch(t.Context(), os.Stderr); err != nil {
				need.Missing(t, need.ClickHouse(), err)
			}
		}
	}
	path, err := build()
	must(t, err)
	return path
}

// build builds the engine's command once, in the directory that TestMain has created.
var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(built, "millrace-clickhouse")
	cmd := exec.Command("go", "build", "-o", path, "github.com/millrace/millrace/cmd/millrace-clickhouse")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // as make build does
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the engine's command: %w\n%s", err, out)
	}
	return path, nil
})

func ask(t *testing.T, addr, statement string) string {
	t.Helper()
	conn, err := ch.Open(&ch.Options{Addr: []string{addr}})
	must(t, err)
	defer conn.Close()
	var s string
	if err := conn.QueryRow(t.Context(), statement).Scan(&s); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return s
}

func do(t *testing.T, addr, statement string) {
	t.Helper()
	conn, err := ch.Open(&ch.Options{Addr: []string{addr}})
	must(t, err)
	defer conn.Close()
	if err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func TestStart(t *testing.T) {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "a b"), Binary: binary(t)}
	s, err := Start(t.Context(), cfg)
	must(t, err)
	do(t, s.Addr(), "CREATE DATABASE d")
	do(t, s.Addr(), "CREATE TABLE d.t (a String) ENGINE = MergeTree ORDER BY a SETTINGS fsync_after_insert = 1,"+
		" fsync_part_directory = 1")
	do(t, s.Addr(), "INSERT INTO d.t SELECT 'kept'")
	began := time.Now()
	must(t, s.Close(t.Context()))
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("Close took %v, want less than 3 s", took)
	}
	s, err = Start(t.Context(), cfg)
	must(t, err)
	if got := ask(t, s.Addr(), "SELECT a FROM d.t"); got != "kept" {
		t.Errorf("after a restart the table has %q, want kept", got)
	}
	must(t, syscall.Kill(s.Pid(), syscall.SIGKILL))
	if err := s.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Wait for a killed engine = %v, want an error that says so", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("Close of a killed engine: %v", err)
	}
	s, err = Start(t.Context(), cfg)
	must(t, err)
	defer s.Close(t.Context())
	if got := ask(t, s.Addr(), "SELECT a FROM d.t"); got != "kept" {
		t.Errorf("after kill -9 the table has %q, want kept", got)
	}
	if got := ask(t, s.Addr(),
		"SELECT toString(count()) FROM system.tables WHERE database = 'system' AND engine LIKE '%MergeTree'"); got != "0" {
		t.Errorf("%s system tables take disk space, want none", got)
	}
}

// When its parent is killed, the engine ends, and the directory is free again.
func TestEngineDiesWithItsOwner(t *testing.T) {
	dir, bin := t.TempDir(), binary(t)
	self, err := os.Executable()
	must(t, err)
	owner := exec.Command(self)
	owner.Env = append(os.Environ(), holdEnv+"="+dir, holdEnv+"_BINARY="+bin)
	out, err := owner.StdoutPipe()
	must(t, err)
	must(t, owner.Start())
	var engine, addr string
	if _, err := fmt.Fscan(out, &engine, &addr); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(engine)
	if err != nil {
		rest, _ := io.ReadAll(out)
		t.Fatalf("the owner says %s %s%s", engine, addr, rest)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := lockDir(ctx, filepath.Join(dir, "engine.lock")); err == nil {
		t.Error("a second owner could lock the directory of a running engine")
	}
	must(t, owner.Process.Kill())
	owner.Wait()
	began := time.Now()
	s, err := Start(t.Context(), Config{Dir: dir, Binary: bin})
	if err != nil {
		t.Fatalf("starting again after its owner was killed: %v", err)
	}
	defer s.Close(t.Context())
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the directory was free only after %v", took)
	}
	// Without a process that reaps orphans, it stays as a zombie.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, state, _ := strings.Cut(string(stat), ") "); err == nil && !strings.HasPrefix(state, "Z") {
		t.Errorf("the engine of the killed owner is still there: %s", stat)
	}
}

// The engine ends when the pipe is closed, even without a signal about its parent's death.
func TestEngineEndsWithItsPipe(t *testing.T) {
	s, err := Start(t.Context(), Config{Dir: t.TempDir(), Binary: binary(t)})
	must(t, err)
	if s.cmd.Args[len(s.cmd.Args)-1] != "-parent-pipe" {
		need.Missing(t, need.Behaviour("an engine that ends with a pipe"), "a clickhouse binary knows no such pipe")
	}
	s.pipe.Close()
	select {
	case <-s.done:
	case <-time.After(5 * time.Second):
		t.Error("the engine runs on")
		s.Close(t.Context())
	}
}

func TestStartErrors(t *testing.T) {
	t.Setenv("MILLRACE_LIBCHDB", "")
	empty := t.TempDir()
	script := func(text string) string {
		path := filepath.Join(t.TempDir(), "engine")
		must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
		return path
	}
	library := filepath.Join(t.TempDir(), "libchdb.so")
	must(t, os.WriteFile(library, []byte("none"), 0o644))
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	for name, tc := range map[string]struct {
		cfg  Config
		want []string
	}{
		"no directory":       {Config{}, []string{"no directory"}},
		"directory is file":  {Config{Dir: file}, []string{"not a directory"}},
		"no command":         {Config{Dir: empty, library: library}, []string{"millrace-clickhouse is neither", "PATH"}},
		"command is missing": {Config{Dir: empty, library: library, Binary: empty + "/none"}, []string{"none: no such file"}},
		"library is missing": {Config{Dir: empty, library: empty + "/none.so", Binary: script("exit 1")},
			[]string{"libchdb", "none.so"}},
		"engine gives up": {Config{Dir: empty, library: library, Binary: script("echo it is too cold >&2; exit 3")},
			[]string{"exit status 3", "it is too cold", "engine.log"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", "/bin:/usr/bin")
			s, err := Start(t.Context(), tc.cfg)
			if err == nil {
				s.Close(t.Context())
				t.Fatal("it has started")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %q, want %q in it", err, want)
				}
			}
		})
	}
	t.Run("wrong library", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Dir: empty, library: library, Binary: binary(t)})
		if err == nil || !strings.Contains(err.Error(), "load the library "+library) {
			t.Errorf("Start = %v, want it to name the library", err)
		}
	})
}

// A clickhouse binary on PATH is used before the library, in server mode.
func TestServerModeIsPreferred(t *testing.T) {
	t.Setenv("MILLRACE_LIBCHDB", "")
	dir, bin := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "clickhouse"),
		[]byte("#!/bin/sh\necho \"asked to $*\" >&2; cat engine.xml >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	_, err := Start(t.Context(), Config{Dir: dir})
	for _, want := range []string{"asked to server --config-file=" + filepath.Join(dir, "engine.xml"),
		"background_pool_size", "</clickhouse>"} {
		log, _ := os.ReadFile(filepath.Join(dir, "engine.log"))
		if err == nil || !strings.Contains(string(log), want) {
			t.Errorf("Start = %v with log %q, want %q in it", err, log, want)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
