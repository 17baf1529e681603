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
		Short: "Copy, check, damage and repair real files, and show the results",
		Long: `Starts an embedded Kafka broker, an embedded ClickHouse and three stores in a state directory, and then

  1. writes the files of DIR to the first store (DIR is only read; default: the sources of Go),
  2. waits until every file has a verified copy in the other two stores,
  3. damages some copies bypassing millrace,
  4. shows that a sweep finds the damage, and that the copies are repaired from good ones,
  5. puts a file into the first store without a report, and shows that it is found and copied.

Each of its rounds of checks ends with a report: with --keep or --state see 'millrace fixity rounds --all'.

-o is the form of the summary; json prints it as one object on the last line.

With --stores s3 stores 2 and 3 are on an S3 server (versitygw; 'make servers' builds it), which runs in the state
directory and ends with the demo. A demo that is resumed keeps its kind of stores.

Exit codes: 0 all as expected, 2 DIR or the S3 server cannot be used, 3 not all as expected, 5 the state directory is
in use or has another version, 130 interrupted (the same command resumes).`,
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
	c.Flags().IntVar(&cfg.Items, "items", 0, "use at most `N` files")
	c.Flags().StringVar(&cfg.State, "state", "", "state `DIR`, which is kept; a stopped demo resumes in it")
	c.Flags().BoolVar(&cfg.Keep, "keep", false, "keep the state directory, and print commands to inspect it")
	c.Flags().StringVar(&cfg.Stores, "stores", "",
		"`KIND` of stores 2 and 3: file (default), or s3: on an S3 server on loopback")
	c.Flags().StringVar(&cfg.Server, "s3-server", os.Getenv("MILLRACE_S3_SERVER"),
		"the versitygw to run for --stores s3 (default: peers/versitygw beside this program; MILLRACE_S3_SERVER)")
	o = outputFlag(c, formTable, formJSON)
	return c
}
