package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/usage"
)

// An empty --spaces is not the schedule of the whole sweep.
func TestScheduleOfNoSpaces(t *testing.T) {
	t.Parallel()
	for _, c := range []*cobra.Command{newScheduleSet(), newScheduleReset()} {
		args := []string{"reconcile", "--spaces", "", "--reason", "a test"}
		if c.Name() == "set" {
			args = append(args, "off")
		}
		c.SetArgs(args)
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.Execute(); !errors.Is(err, usage.Err) || !strings.Contains(err.Error(), "--spaces is empty") {
			t.Errorf("%s: %v", c.Name(), err)
		}
	}
}
