package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/millrace/millrace/internal/need"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"millrace-bench": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs the command lines in testdata/script, which start no process.
func TestScripts(t *testing.T) { scripts(t, "testdata/script") }

// TestFigures runs those in testdata/figures, which take figures over next to nothing.
func TestFigures(t *testing.T) {
	need.Integration(t)
	scripts(t, "testdata/figures")
}

// scripts runs the scripts of a folder. "exits N CMD ..." runs a command and wants its exit code.
func scripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir: dir,
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
