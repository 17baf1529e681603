// Command testrun runs the project's tests for the Makefile.
//
//	testrun run LOG ARGUMENT...        run go test with these arguments and write its events to LOG
//	testrun slow LOG                   list the slowest tests and packages of the run in LOG
//	testrun levels LEVEL               print the packages, and for short the tests, that "make integration" runs
//	testrun flaky DIR FOR PACKAGE...   run packages repeatedly for the duration FOR
//
// The exit code is that of go test, 1 if a test failed under flaky, and 2 for any other error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command executes the command line and returns the exit code.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	var exit exitCode
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFailed):
		return 1
	case errors.As(err, &exit):
		return int(exit) // go test has printed why
	}
	fmt.Fprintln(stderr, "testrun:", err)
	return 2
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	switch {
	case len(args) > 2 && args[0] == "run":
		return run(ctx, args[1], args[2:], stdout, stderr)
	case len(args) == 2 && args[0] == "slow":
		return slow(args[1], stdout)
	case len(args) == 2 && args[0] == "levels":
		return printLevels(ctx, args[1], stdout)
	case len(args) > 3 && args[0] == "flaky":
		limit, err := time.ParseDuration(args[2])
		if err != nil {
			return err
		}
		return flaky(ctx, args[1], limit, args[3:], stdout)
	}
	return errors.New("usage: testrun (run LOG ARGUMENT... | slow LOG | levels LEVEL | flaky DIR FOR PACKAGE...)")
}
