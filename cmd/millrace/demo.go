package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/demo"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

func newDemo() *cobra.Command {
	var (
		cfg demo.Config
		o   *output
	)
	c := &cobra.Command{
		Use:   "demo [DIR]",
		Short: "Do the main job once, on real files, and show it",
		Long: `Starts an embedded broker, an embedded ClickHouse and three stores in a state directory;
writes the files of DIR into the first store (DIR is only read; default: Go's own sources); waits
until every file has a verified copy in the other two; does harm behind the system's back;
and shows that a sweep finds it and repairs come from good copies.

-o is the form of the summary; json prints it as one object on the last line.

With --stores s3 stores 2 and 3 are on a real S3 server (versitygw; 'make servers' builds it), which runs in the
state directory and ends with the demo. A demo that goes on has the stores that it began with.

Exit codes: 0 all of it came true, 2 DIR or the S3 server cannot be used, 3 not all came true, 5 the state
directory is in use or of another version, 130 interrupted (the same command goes on).`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%w: '%s' takes one folder, got %d", usage.Err, c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				cfg.Dir = args[0]
				if cfg.Dir == "" {
					return fmt.Errorf("%w: the folder's name is empty", usage.Err)
				}
			}
			cfg.JSON = o.form == formJSON
			return demo.Run(c.Context(), cfg, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	c.Flags().IntVar(&cfg.Items, "items", 0, "take at most `N` files")
	c.Flags().StringVar(&cfg.State, "state", "", "work in `DIR` and keep it; one that was stopped goes on")
	c.Flags().BoolVar(&cfg.Keep, "keep", false, "keep the state, and say how to look into it")
	c.Flags().StringVar(&cfg.Stores, "stores", "", "`KIND` of stores 2 and 3: file (default), or s3: on a real S3 server on loopback")
	c.Flags().StringVar(&cfg.Server, "s3-server", os.Getenv("MILLRACE_S3_SERVER"),
		"the versitygw to run for --stores s3 (default: peers/versitygw beside this program; MILLRACE_S3_SERVER)")
	o = outputFlag(c, formTable, formJSON)
	return c
}
