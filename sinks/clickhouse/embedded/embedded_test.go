package embedded

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "millrace-clickhouse")
	cmd := exec.Command("go", "build", "-o", path, "github.com/millrace/millrace/cmd/millrace-clickhouse")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the engine's command: %v\n%s", err, out)
	}
	return path
}

func TestStart(t *testing.T) {
	bin := build(t)
	dir := t.TempDir()
	for range 2 {
		b := time.Now()
		s, err := Start(t.Context(), Config{Dir: dir, Binary: bin, Progress: os.Stderr})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(time.Since(b), s.Addr())
		b = time.Now()
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		t.Log(time.Since(b))
	}
}
