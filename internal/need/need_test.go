package need_test

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/internal/need"
)

// A recorder is a test whose end is recorded instead of taking place.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper()                   { /* nothing to mark */ }
func (r *recorder) Skip(...any)               { r.ended = "skipped" }
func (r *recorder) Skipf(string, ...any)      { r.ended = "skipped" }
func (r *recorder) Fatalf(f string, a ...any) { r.ended = "failed: " + fmt.Sprintf(f, a...) }

func TestLevels(t *testing.T) {
	for name, c := range map[string]struct {
		integration, soak string
		integrationRuns   bool
		fullRuns          bool
		amount            int
	}{
		"make test":               {"", "", false, false, 1},
		"make integration, short": {"short", "", true, false, 1},
		"make integration":        {"1", "", true, true, 2},
		"make soak":               {"1", "1", true, true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("MILLRACE_INTEGRATION", c.integration)
			t.Setenv("MILLRACE_SOAK", c.soak)
			for level, l := range map[string]struct {
				skip func(testing.TB)
				runs bool
			}{
				"Integration": {need.Integration, c.integrationRuns},
				"Full":        {need.Full, c.fullRuns},
			} {
				var r recorder
				l.skip(&r)
				if runs := r.ended == ""; runs != l.runs {
					t.Errorf("%s: runs %v, want %v", level, runs, l.runs)
				}
			}
			if got := need.Amount(1, 2, 3); got != c.amount {
				t.Errorf("Amount: %d, want %d", got, c.amount)
			}
		})
	}
}

func TestImages(t *testing.T) {
	for value, want := range map[string]string{"": "skipped", "1": ""} {
		t.Setenv("MILLRACE_IMAGES", value)
		var r recorder
		if need.Images(&r); r.ended != want {
			t.Errorf("with MILLRACE_IMAGES=%q: %q, want %q", value, r.ended, want)
		}
	}
}

func TestMissing(t *testing.T) {
	for name, c := range map[string]struct {
		ci    string
		thing need.Thing
		want  string
	}{
		"a developer's machine": {"", need.ClickHouse(), "skipped"},
		"CI has it": {"true", need.ClickHouse(),
			"failed: needs ClickHouse, which CI has (npm, or a clickhouse binary on PATH): no route"},
		"CI cannot have it":      {"true", need.Docker(), "skipped"},
		"neither has the kernel": {"true", need.Kernel("O_TMPFILE"), "skipped"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CI", c.ci)
			var r recorder
			need.Missing(&r, c.thing, "no route")
			if r.ended != c.want {
				t.Errorf("%s, want %s", r.ended, c.want)
			}
		})
	}
}
