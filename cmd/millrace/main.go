// Command millrace keeps the required number of copies of every item in a set of stores, checks
// every copy periodically, and repairs damaged and missing copies.
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
	_ "time/tzdata" // for schedules with a time zone; the image has no zones

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/demo"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/precondition"
)

// Exit codes of every command.
const (
	exitOK           = 0
	exitError        = 1
	exitUsage        = 2
	exitFindings     = 3
	exitPartly       = 4
	exitPrecondition = 5
	exitInterrupted  = 130
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	go handleSignals(signals, stop, os.Exit) // until the process ends
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// handleSignals stops the process at the first signal, and ends it immediately at the second. It
// does not rely on the default action of the signals: a shell may have started the process with
// SIGINT ignored.
func handleSignals(signals <-chan os.Signal, stop context.CancelFunc, exit func(int)) {
	<-signals
	stop()
	<-signals
	exit(exitInterrupted)
}

// Errors that select an exit code.
var (
	errPartly = errors.New("partly done") // some objects were refused, the others are done
)

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(escapeIncidentKeys(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	code := exitCode(ctx, err)
	if err != nil && code != exitInterrupted {
		fmt.Fprintln(stderr, "millrace:", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "usage: "), "precondition: "))
	}
	return code
}

func exitCode(ctx context.Context, err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, demo.ErrFindings), errors.Is(err, errFindings), errors.Is(err, errPending):
		return exitFindings
	case errors.Is(err, usage.Err):
		return exitUsage
	case errors.Is(err, precondition.Err):
		return exitPrecondition
	case errors.Is(err, errPartly):
		return exitPartly
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitError
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "millrace",
		Short: "Keep, check and repair copies of items in a set of stores",
		Long: `millrace keeps the required number of copies of every item in a set of stores. It checks every copy
periodically, repairs damaged and missing copies, and records everything that happens to an item.

Exit codes: 0 fine, 1 error, 2 usage, 3 findings, 4 partly done, 5 precondition, 130 interrupted.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(usage.Flag)
	root.AddCommand(newDemo(), newStandalone(), newRun(), newStatus(), newMigrate(), newConfig(), newObject(),
		newIncident(), newAccount(), newPolicy(), newDead(), newPause(), newResume(), newWorkers(), newSweep(),
		newFixity(), newJob(), newSchedule(),
		newAudit(), newStore(), newSpace(),
		newOutbox(), newImport(), newImportConfig(), newVerify(), newRebuild(), newHealth(), newBench(), newVersion())
	return root
}

// exactly accepts n arguments and refuses any other number.
func exactly(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("%w: '%s' takes %d argument(s), got %d; see '%s --help'",
				usage.Err, c.UseLine(), n, len(args), c.CommandPath())
		}
		return nil
	}
}

// noun returns a command that only has subcommands.
func noun(use, short string, verbs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(verbs...)
	return c
}
