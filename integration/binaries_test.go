package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
)

// commands is the directory of millrace and millrace-clickhouse after a test has built them.
var commands struct {
	once sync.Once
	dir  string
	err  error
}

// binaries builds the commands once per test run and returns the path of millrace, which finds millrace-clickhouse in
// the same directory.
func binaries(t *testing.T) string {
	t.Helper()
	commands.once.Do(build)
	if commands.err != nil {
		t.Fatal(commands.err)
	}
	if _, err := embedded.Fetch(t.Context(), t.Output()); err != nil {
		need.Missing(t, need.ClickHouse(), err)
	}
	return filepath.Join(commands.dir, "millrace")
}

func build() {
	if commands.dir, commands.err = os.MkdirTemp("", "millrace-bin-"); commands.err != nil {
		return
	}
	cmd := exec.CommandContext(context.Background(), "go", "build", "-ldflags", "-s -w", "-o", commands.dir,
		"../cmd/millrace", "../cmd/millrace-clickhouse")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // as make build does
	if out, err := cmd.CombinedOutput(); err != nil {
		commands.err = fmt.Errorf("build the commands: %w\n%s", err, out)
	}
}

func TestMain(m *testing.M) {
	if spec := os.Getenv(memberEnv); spec != "" {
		os.Exit(member(spec))
	}
	if spec := os.Getenv(emitterEnv); spec != "" {
		os.Exit(emitter(spec))
	}
	// Each case of a property takes seconds with a real server.
	if err := flag.Set("rapid.checks", "10"); err != nil {
		panic(err)
	}
	code := m.Run()
	if commands.dir != "" {
		os.RemoveAll(commands.dir)
	}
	os.Exit(code)
}

// tree creates a directory with n files, some with unusual names, and returns its path.
func tree(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(content), 0o644))
	}
	odd := []string{"empty", "with space", "percent%2Fslash", "%", "über/straße.txt", "emoji/🌊.md", "new\nline",
		"-dash", "dots/...", "tilde~", ".hidden", "a.d/b", "a/b", "a-b"}
	for i, name := range odd {
		content := fmt.Sprintf("odd file %d\n", i)
		if name == "empty" {
			content = ""
		}
		write(name, content)
	}
	for i := len(odd); i < n; i++ {
		content := fmt.Sprintf("file %d of the tree\n", i)
		for range i % 50 {
			content += content[:min(len(content), 400)]
		}
		write(fmt.Sprintf("d%d/file-%d.txt", i%7, i), content)
	}
	return dir
}

// must fails the test with an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
