package integration

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// The sink's figures are all taken, over next to nothing: their form, not what they say.
func TestBenchSink(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), binaries(t), "bench", "sink", "--quick", "-o", "json").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var table struct {
		Rows []struct {
			Name  string
			Value float64
			Met   *bool
		}
	}
	if err := json.Unmarshal(out, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 11 {
		t.Errorf("%d rows, want 11", len(table.Rows))
	}
	for _, r := range table.Rows {
		if r.Value <= 0 || r.Met == nil {
			t.Errorf("%s: %v, met %v", r.Name, r.Value, r.Met)
		}
	}
}
