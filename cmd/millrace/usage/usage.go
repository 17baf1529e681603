// Package usage refuses command lines that cannot be meant, for the commands of millrace and of millrace-bench.
package usage

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Err is wrapped by errors about a command line that cannot be meant.
var Err = errors.New("usage")

// Flag is the error of a flag that a command does not take so.
func Flag(c *cobra.Command, err error) error {
	return fmt.Errorf("%w: %w; see '%s --help'", Err, err, c.CommandPath())
}

// NoArgs refuses words that are no command, with the nearest one that is.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %q?", near[0])
	}
	return fmt.Errorf("%w: %q is no command of '%s'%s", Err, args[0], c.CommandPath(), hint)
}
