package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/bench"
	"github.com/millrace/millrace/streams/kafka/kafkabench"
)

func newBench() *cobra.Command {
	return noun("bench", "Take figures, and hold them against their targets", newBenchRuntime(), newBenchSide(), newBenchBroker())
}

func newBenchRuntime() *cobra.Command {
	var (
		cfg          bench.Config
		rows, output string
	)
	c := &cobra.Command{
		Use:   "runtime",
		Short: "Take the figures of the stream runtime, in one table",
		Long: `Takes the figures of the stream runtime on this machine, now: on a broker in memory on
loopback that is another process, each figure for itself, those with a peer in turns with it. It takes about four
minutes, and figures mean little on a machine that does anything else meanwhile. What the
rounds gave goes to standard error.

A peer that is not there is reported as absent; 'make peers' builds them.

Exit codes: 0 all figures were taken, also where a target was missed (see MET), 2 usage,
130 interrupted.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("%w: --output is table or json, not %q", errUsage, output)
			}
			var err error
			if cfg.Rows, err = regexp.Compile(rows); err != nil {
				return fmt.Errorf("%w: --row: %w", errUsage, err)
			}
			if cfg.Self, err = os.Executable(); err != nil {
				return err
			}
			if cfg.Peers == "" {
				cfg.Peers = filepath.Join(filepath.Dir(cfg.Self), "peers")
			}
			cfg.Progress = c.ErrOrStderr()
			table, err := bench.Run(c.Context(), cfg)
			if err != nil {
				return err
			}
			if output == "json" {
				return bench.WriteJSON(c.OutOrStdout(), table)
			}
			return bench.WriteTable(c.OutOrStdout(), table)
		},
	}
	c.Flags().BoolVar(&cfg.Quick, "quick", false, "see that it works: with amounts so small that the figures say nothing")
	c.Flags().StringVar(&rows, "row", "", "only rows whose names match `REGEXP`")
	c.Flags().StringVar(&cfg.Peers, "peers", "", "`DIR` of the peers' programs (default: peers, beside this program)")
	c.Flags().StringVarP(&output, "output", "o", "table", "`FORM`: table or json (one object)")
	return c
}

// newBenchBroker is the broker of the figures, for 'bench runtime' to start.
func newBenchBroker() *cobra.Command {
	return &cobra.Command{
		Use:    "broker",
		Short:  "Serve as a broker in memory until standard input ends",
		Hidden: true,
		Args:   noArgs,
		RunE:   func(c *cobra.Command, _ []string) error { return kafkabench.Serve(c.InOrStdin(), c.OutOrStdout()) },
	}
}

// newBenchSide is our side of a comparison, for 'bench runtime' to start.
func newBenchSide() *cobra.Command {
	var side bench.Side
	c := &cobra.Command{
		Use:    "side",
		Short:  "Consume records and say how long it took",
		Hidden: true,
		Args:   noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if side.Broker == "" || side.Group == "" || side.Records <= 0 {
				return fmt.Errorf("%w: wants --broker, --group and --records", errUsage)
			}
			line, err := side.Consume(c.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", line)
			return err
		},
	}
	c.Flags().StringVar(&side.Broker, "broker", "", "`HOST:PORT` of a broker")
	c.Flags().StringVar(&side.Group, "group", "", "consumer `GROUP`, without the prefix")
	c.Flags().IntVar(&side.Records, "records", 0, "stop after `N` records")
	return c
}
