package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/millrace/millrace/internal/need"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"millrace-bench": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
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
		"missing files":             {"main --files nowhere", exitUsage, "list the files to store: "},
		"a side without a broker":   {"side", exitUsage, "--broker, --group and --records are required"},
		"a sink without a database": {"sinkside", exitUsage, "--broker, --clickhouse, --database and --records are required"},
		"a job without items": {"rolesside --do delete --dir d", exitUsage,
			"or --do delete or import with --items and --window"},
		"a round without items": {"sweepside --do pairs --space s", exitUsage, "--space, --items and --differing"},
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

// TestFigures runs the scripts in testdata/figures, which take figures over next to nothing. "exits N CMD ..." runs a
// command and wants its exit code.
func TestFigures(t *testing.T) {
	need.Integration(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/figures",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: exits N command ...")
				}
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				got := 0
				var exit *exec.ExitError
				if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
					got = exit.ExitCode()
				} else if err != nil {
					ts.Fatalf("run %s: %v", args[1], err)
				}
				if got != want {
					ts.Fatalf("exit code %d, want %d", got, want)
				}
			},
		},
	})
}
