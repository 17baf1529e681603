package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/rogpeppe/go-internal/testscript"
)

// The first signal stops the process; only the second one ends it immediately.
func TestObey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		signals, code := make(chan os.Signal), make(chan int, 1)
		go handleSignals(signals, stop, func(n int) { code <- n })
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatal("it stops without a signal")
		}
		signals <- syscall.SIGTERM
		synctest.Wait()
		if ctx.Err() == nil || len(code) > 0 {
			t.Fatalf("the first signal: stopped: %v, ended: %d", ctx.Err(), len(code))
		}
		signals <- syscall.SIGINT
		if got := <-code; got != exitInterrupted {
			t.Errorf("ended with %d, want %d", got, exitInterrupted)
		}
	})
}

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"millrace": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	scripts(t, "testdata/script")
}

// scripts runs the testscripts in a folder. "exits N CMD ..." runs a command and expects its exit
// code. "deadstate" makes a state with dead letters, "stored" one with committed records; "more"
// and "damage" change it. "fifo" and "notutf8" make files that cannot become items. "outbox",
// "hold" and "flip" make, open and damage an outbox.
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
			"deadstate": deadState,
			"stored":    stored,
			"more":      more,
			"damage":    damage,
			"outbox":    newOutboxIn,
			"hold":      holdOutbox,
			"flip":      flipBit,
			"fifo": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(syscall.Mkfifo(ts.MkAbs(args[0]), 0o644))
			},
			"notutf8": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[0])+"\xff", []byte("x"), 0o644))
			},
		},
	})
}

// must fails the test with an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
