package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/precondition"
)

// benchProgram runs the benchmarks. It is a separate program, so that this one does not contain
// code for measurements only.
const benchProgram = "millrace-bench"

func newBench() *cobra.Command {
	return &cobra.Command{
		Use:   "bench AREA",
		Short: "Run benchmarks and compare the results with their targets",
		// All arguments, --help too, are for the other program.
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			program, err := findBench()
			if err != nil {
				return err
			}
			// exec replaces this process, so that signals, streams and the exit code are those of the other program.
			err = syscall.Exec(program, append([]string{program}, args...), os.Environ())
			return fmt.Errorf("%w: run %s: %w: build it with 'make build'", precondition.Err, program, err)
		},
	}
}

// findBench returns the path of the program: in the directory of this one, or on PATH.
func findBench() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	sibling, err := exec.LookPath(filepath.Join(filepath.Dir(self), benchProgram))
	if err == nil {
		return sibling, nil
	}
	program, err := exec.LookPath(benchProgram)
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w: %s is neither beside millrace nor on PATH: build it with 'make build'",
			precondition.Err, benchProgram)
	}
	return program, err
}
