package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain ends the child processes of a test that started an area by mistake: they would run all tests again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		os.Exit(exitError)
	}
	os.Exit(m.Run())
}

// A wrong command line fails with a usage error before any process starts.
func TestUsage(t *testing.T) {
	for name, tt := range map[string]struct {
		args string
		code int
		text string // on standard error, or on standard output if the code is 0
	}{
		"an unknown form":    {"runtime -o xml", exitUsage, `table, json or markdown, not "xml"`},
		"an invalid pattern": {"runtime --row (", exitUsage, "--row: error parsing regexp"},
		"no matching row":    {"all --row nosuchrow --files .", exitUsage, `no row matches "nosuchrow"`},
		"an unknown area":    {"runtme", exitUsage, `did you mean "runtime"`},
		"too few rows":       {"sink --rows 5", exitUsage, "a multiple of 1,000 and at least 10,000, not 5"},
		"a flag of another area": {"runtime --rows 10000", exitUsage,
			"unknown flag: --rows; see 'millrace bench runtime --help'"},
		"missing files":  {"main --files nowhere", exitUsage, "list the files to store: "},
		"an unknown job": {"child nothing {}", exitUsage, `"nothing" is not the job of a child process`},
		"no completion": {"completion bash", exitUsage,
			`millrace bench: "completion" is not a command of 'millrace bench'`},
		"no arguments":    {"", exitFine, "Exit codes: 0 all benchmarks ran"},
		"usage line":      {"", exitFine, "millrace bench AREA [flags]"},
		"help of an area": {"all --help", exitFine, "Other load on the machine distorts the results"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, stderr bytes.Buffer
			code := run(t.Context(), strings.Fields(tt.args), &out, &stderr)
			text := &stderr
			if code == exitFine {
				text = &out
			}
			if code != tt.code || !strings.Contains(text.String(), tt.text) {
				t.Errorf("exit code %d, output %q; want %d, %q", code, text, tt.code, tt.text)
			}
		})
	}
}

// The programs of a directory are not looked up on PATH, however the directory is named.
func TestPeersAbsolute(t *testing.T) {
	f := flags{output: "table"}
	f.cfg.Peers = "."
	if err := f.check(); err != nil {
		t.Fatal(err)
	}
	if !filepath.IsAbs(f.cfg.Peers) {
		t.Errorf("got %q", f.cfg.Peers)
	}
}
