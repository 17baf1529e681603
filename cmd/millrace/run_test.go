package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const notCompared = "copy only changes that are reported from now on"

// A process with a planner warns at startup that stores are not compared; one without a planner
// does not. Both end here because there is no broker.
func TestRunWarns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("kafka: {brokers: [\"127.0.0.1:1\"]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for roles, want := range map[string]int{"planner,delayer": 1, "delayer": 0} {
		t.Run(roles, func(t *testing.T) {
			stderr := new(bytes.Buffer)
			if code := run(t.Context(), []string{"run", "--config", file, "--roles", roles}, new(bytes.Buffer),
				stderr); code != exitError {
				t.Errorf("exit code %d: %s", code, stderr)
			}
			if got := strings.Count(stderr.String(), notCompared); got != want {
				t.Errorf("warned %d times, want %d: %s", got, want, stderr)
			}
		})
	}
}
