// Command millrace-bench runs the benchmarks of millrace next to those of other programs. 'millrace bench' starts it.
// It is a separate program so that the millrace binary contains no measuring code.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

// Exit codes.
const (
	exitFine        = 0
	exitError       = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitFine
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	fmt.Fprintln(stderr, "millrace bench:", strings.TrimPrefix(err.Error(), "usage: "))
	if errors.Is(err, usage.Err) {
		return exitUsage
	}
	return exitError
}

const exitCodes = `Exit codes: 0 all benchmarks ran, even if a target was missed (see MET), 1 error, 2 usage,
130 interrupted.`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use: "millrace-bench AREA",
		// users start it through millrace
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "millrace bench"},
		Short:       "Run benchmarks and compare the results with targets",
		Long: `Runs benchmarks on this machine and compares the results with targets and with other
programs, which run in turns with millrace. Every component is configured as the roles
configure it.

` + exitCodes,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.CompletionOptions.DisableDefaultCmd = true // shell completion of millrace does not cover this program
	root.SetFlagErrorFunc(usage.Flag)
	root.AddCommand(newChild(), newArea("all", "Run all benchmarks, one area after the other",
		"With -o markdown each area has its own heading and table.", bench.Areas()...))
	for _, a := range bench.Areas() {
		root.AddCommand(newArea(a.Name, a.Short, a.Long, a))
	}
	return root
}
