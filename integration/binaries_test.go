package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/millrace/millrace/sinks/clickhouse/embedded"
)

// binaries builds the commands once per test run and returns the path of millrace, which
// finds millrace-clickhouse beside it. Where the embedded ClickHouse cannot be had, the
// test is skipped on a person's machine and fails in CI.
func binaries(t *testing.T) string {
	t.Helper()
	b, err := built()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Fetch(t.Context(), t.Output()); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("the embedded ClickHouse must be there in CI: %v", err)
		}
		t.Skipf("no embedded ClickHouse: %v", err)
	}
	return b
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "millrace-bin-")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"millrace", "millrace-clickhouse"} {
		build := exec.CommandContext(context.Background(), "go", "build", "-o", filepath.Join(dir, name), "../cmd/"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // as make build does
		if out, err := build.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return filepath.Join(dir, "millrace"), nil
})

func TestMain(m *testing.M) {
	if spec := os.Getenv(memberEnv); spec != "" {
		os.Exit(member(spec))
	}
	if spec := os.Getenv(emitterEnv); spec != "" {
		os.Exit(emitter(spec))
	}
	code := m.Run()
	if b, err := built(); err == nil {
		os.RemoveAll(filepath.Dir(b))
	}
	os.Exit(code)
}

// tree writes a folder of n files with odd names among them, and returns it.
func tree(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	odd := []string{"empty", "with space", "percent%2Fslash", "%", "über/straße.txt", "emoji/🌊.md", "new\nline", "-dash", "dots/...", "tilde~",
		".hidden", "a.d/b", "a/b", "a-b"}
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
