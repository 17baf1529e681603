package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
)

// benchProgram takes the figures. It is a program of its own, so that this one holds nothing that only measures.
const benchProgram = "millrace-bench"

func newBench() *cobra.Command {
	return &cobra.Command{
		Use:   "bench AREA",
		Short: "Take figures, and compare them with their targets",
		// All words are the other program's, --help too.
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			program, err := findBench()
			if err != nil {
				return err
			}
			// This process becomes the other one: signals, streams and the exit code are its own.
			err = syscall.Exec(program, append([]string{program}, args...), os.Environ())
			return fmt.Errorf("%w: run %s: %w: build it with 'make build'", app.ErrPrecondition, program, err)
		},
	}
}

// findBench returns the path of the program: beside this one, else on PATH.
func findBench() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), benchProgram))
	if err == nil {
		return beside, nil
	}
	program, err := exec.LookPath(benchProgram)
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w: %s is neither beside millrace nor on PATH: build it with 'make build'",
			app.ErrPrecondition, benchProgram)
	}
	return program, err
}
