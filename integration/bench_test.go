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

// benchRow holds the tested fields of a row of figures.
type benchRow struct {
	Name  string
	Value float64
	Met   *bool
}

// figures runs the benchmarks of an area with minimal amounts, started as a user does.
func figures(t *testing.T, area string, flags ...string) []benchRow {
	t.Helper()
	millrace := binaries(t)
	program := filepath.Join(filepath.Dir(millrace), "millrace-bench")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./millrace-bench")
	build.Dir = "../bench"
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // as make build does
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build millrace-bench: %v\n%s", err, out)
	}
	var stderr strings.Builder
	args := append([]string{"bench", area, "--quick", "-o", "json"}, flags...)
	bench := exec.CommandContext(t.Context(), millrace, args...)
	bench.Stderr = &stderr
	out, err := bench.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	var table struct{ Rows []benchRow }
	if err := json.Unmarshal(out, &table); err != nil {
		t.Fatal(err)
	}
	return table.Rows
}

// TestBenchSink runs all figures of the sink. It checks their form, not their values.
func TestBenchSink(t *testing.T) {
	need.Full(t)
	rows := figures(t, "sink")
	if len(rows) != 10 {
		t.Errorf("%d rows, want 10", len(rows))
	}
	for _, r := range rows {
		if r.Value <= 0 || r.Met == nil {
			t.Errorf("%s: %v, met %v", r.Name, r.Value, r.Met)
		}
	}
}

// positive checks that there are n rows with values.
func positive(t *testing.T, n int, rows []benchRow) {
	t.Helper()
	if len(rows) != n {
		t.Errorf("%d rows, want %d", len(rows), n)
	}
	for _, r := range rows {
		if r.Value <= 0 {
			t.Errorf("%s: %v", r.Name, r.Value)
		}
	}
}

// TestBenchDuplicate runs all figures of the area duplicate, without the peer. It checks their form, not their values.
func TestBenchDuplicate(t *testing.T) {
	need.Full(t)
	positive(t, 4, figures(t, "duplicate", "--peers", t.TempDir()))
}

// TestBenchSweep runs all figures of the sweeps, without the peer. It checks their form, not their values: those that
// are wrong, as a round that finds other differences than there are, make the run fail.
func TestBenchSweep(t *testing.T) {
	need.Full(t)
	positive(t, 12, figures(t, "sweep", "--peers", t.TempDir()))
}

// TestBenchFixity runs all figures of checks, without the peer of the S3 server.
func TestBenchFixity(t *testing.T) {
	need.Full(t)
	positive(t, 4, figures(t, "fixity", "--peers", t.TempDir()))
}

// TestBenchMain runs the main job with the real roles and checks that its deletes and copies are recorded.
func TestBenchMain(t *testing.T) {
	need.Full(t)
	mainRows(t, 5, "^(main job|deletes|copies)")
}

// TestBenchChanges checks that the checks of copies are recorded and that the row size is measured.
func TestBenchChanges(t *testing.T) {
	need.Full(t)
	mainRows(t, 2, "^(changes|disk)")
}

// mainRows runs the n rows of the area main with names that match.
func mainRows(t *testing.T, n int, names string) {
	t.Helper()
	rows := figures(t, "main", "--files", tree(t, 60), "--peers", t.TempDir(), "--row", names)
	if len(rows) != n {
		t.Errorf("%d rows, want %d", len(rows), n)
	}
	for _, r := range rows {
		if r.Value <= 0 {
			t.Errorf("%s: %v", r.Name, r.Value)
		}
	}
}
