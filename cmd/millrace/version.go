package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "millrace %s %s %s/%s\n",
				app.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
