package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/need"
)

// TestBench runs all benchmarks with minimal amounts and without peers, started as a user does. It checks the form of
// the rows, not their values: a round that finds other items than there are makes the run fail.
func TestBench(t *testing.T) {
	need.Full(t)
	millrace := binaries(t)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(filepath.Dir(millrace), "millrace-bench"),
		"./millrace-bench")
	build.Dir = "../bench"
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // as make build does
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build millrace-bench: %v\n%s", err, out)
	}
	var stderr strings.Builder
	bench := exec.CommandContext(t.Context(), millrace, "bench", "all", "--quick", "-o", "json",
		"--files", tree(t, 60), "--peers", t.TempDir())
	bench.Stderr = &stderr
	out, err := bench.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	var table struct {
		Rows []struct {
			Name   string
			Value  float64
			Target string
		}
	}
	must(t, json.Unmarshal(out, &table))
	if len(table.Rows) != 18 {
		t.Errorf("%d rows, want 18", len(table.Rows))
	}
	for _, r := range table.Rows {
		if r.Value <= 0 || r.Target == "" {
			t.Errorf("%s: value %v, target %q", r.Name, r.Value, r.Target)
		}
	}
}
