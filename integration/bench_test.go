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

// A benchRow is what the tests look at of a row of figures.
type benchRow struct {
	Name  string
	Value float64
	Met   *bool
}

// figures takes those of an area over next to nothing, as a person starts them.
func figures(t *testing.T, area string, flags ...string) []benchRow {
	t.Helper()
	millrace := binaries(t)
	program := filepath.Join(filepath.Dir(millrace), "millrace-bench")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/millrace-bench")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // as make build does
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build millrace-bench: %v\n%s", err, out)
	}
	var said strings.Builder
	words := append([]string{"bench", area, "--quick", "-o", "json"}, flags...)
	bench := exec.CommandContext(t.Context(), millrace, words...)
	bench.Stderr = &said
	out, err := bench.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &said)
	}
	var table struct{ Rows []benchRow }
	if err := json.Unmarshal(out, &table); err != nil {
		t.Fatal(err)
	}
	return table.Rows
}

// The sink's figures are all taken: their form, not what they say.
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

// The main job is done by real roles, and its deletes and copies are on record.
func TestBenchMain(t *testing.T) {
	need.Integration(t)
	mainRows(t, 5, "^(main job|deletes|copies)")
}

// The checks of copies are on record, and the size of a row is taken.
func TestBenchChanges(t *testing.T) {
	need.Full(t)
	mainRows(t, 2, "^(changes|disk)")
}

// mainRows takes the rows of the area main whose names match, which are n.
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
