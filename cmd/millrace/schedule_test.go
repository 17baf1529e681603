package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/usage"
)

// An empty --spaces is not the schedule of the whole sweep, nor is what is no pattern of spaces.
func TestScheduleOfNoSpaces(t *testing.T) {
	t.Parallel()
	for spaces, want := range map[string]string{"": "--spaces is empty", "acme/2/photos/item": "has more parts",
		"/": "--spaces: ", "acme//photos": "--spaces: "} {
		for _, c := range []*cobra.Command{newScheduleSet(), newScheduleReset()} {
			args := []string{"reconcile", "--spaces", spaces, "--reason", "a test"}
			if c.Name() == "set" {
				args = append(args, "off")
			}
			c.SetArgs(args)
			c.SetOut(io.Discard)
			c.SetErr(io.Discard)
			if err := c.Execute(); !errors.Is(err, usage.Err) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s --spaces %q: %v", c.Name(), spaces, err)
			}
		}
	}
}
