// Package usage reports errors in command lines, for the commands of millrace and millrace-bench.
package usage

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Err is wrapped by errors about the command line.
var Err = errors.New("usage")

// Flag returns the error of an invalid flag.
func Flag(c *cobra.Command, err error) error {
	return fmt.Errorf("%w: %w; see '%s --help'", Err, err, c.CommandPath())
}

// NoArgs refuses arguments that are not a subcommand, and suggests the nearest one.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %q?", near[0])
	}
	return fmt.Errorf("%w: %q is not a command of '%s'%s", Err, args[0], c.CommandPath(), hint)
}
