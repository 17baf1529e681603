// Command millrace-bench takes the figures of millrace, side by side with those of other programs. 'millrace bench'
// starts it. It is a program of its own so that millrace itself holds nothing that only measures.
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

// run is main without the process.
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

const exitCodes = `Exit codes: 0 all figures were taken, also if a target was missed (see MET), 1 error, 2 usage,
130 interrupted.`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:         "millrace-bench AREA",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "millrace bench"}, // as people start it
		Short:       "Take figures, and compare them with their targets",
		Long: `Takes figures on this machine, now, and compares them with their targets and with those of
other programs, which run in turns with ours. Every figure is of a part as the roles
configure it.

` + exitCodes,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.CompletionOptions.DisableDefaultCmd = true // the completion of millrace does not reach this program
	root.SetFlagErrorFunc(usage.Flag)
	root.AddCommand(newAll())
	for _, a := range areas() {
		root.AddCommand(newArea(a))
	}
	root.AddCommand(newBroker(), newSide(), newSinkSide(), newStorageSide(), newRolesSide(), newObjects())
	return root
}
