package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/bench"
	"github.com/millrace/millrace/streams/kafka/kafkabench"
)

func newBench() *cobra.Command {
	return noun("bench", "Take figures, and hold them against their targets",
		newBenchRuntime(), newBenchSink(), newBenchStorage(), newBenchSide(), newBenchSinkSide(), newBenchBroker(), newBenchStorageSide(), newBenchObjects())
}

func newBenchRuntime() *cobra.Command {
	var f benchFlags
	c := f.command("runtime", "Take the figures of the stream runtime, in one table", `
Takes the figures of the stream runtime on this machine, now: on a broker in memory on
loopback that is another process, each figure for itself, those with a peer in turns with it. It takes about four
minutes, and figures mean little on a machine that does anything else meanwhile. What the
rounds gave goes to standard error.

A peer that is not there is reported as absent; 'make peers' builds them.`, bench.Runtime)
	c.Flags().StringVar(&f.cfg.Peers, "peers", "", "`DIR` of the peers' programs (default: peers, beside this program)")
	return c
}

func newBenchSink() *cobra.Command {
	var f benchFlags
	c := f.command("sink", "Take the figures of the sink, in one table", `
Takes the figures of the sink on this machine, now: a broker in memory, the sink and an embedded
ClickHouse are processes that share it. It takes about ten minutes, and figures mean little on a machine that does
anything else meanwhile. What the rounds gave goes to standard error.

Rows of the tables that are read are made by the engine itself (--rows).`, bench.Sink)
	c.Flags().IntVar(&f.cfg.Filled, "rows", 0, "`N` rows of the tables that are read, a multiple of 1,000 from 10,000 on (default: 10 million)")
	return c
}

// benchFlags are those that all tables of figures have.
type benchFlags struct {
	cfg          bench.Config
	rows, output string
}

func (f *benchFlags) command(name, short, long string, take func(context.Context, bench.Config) ([]bench.Row, error)) *cobra.Command {
	c := &cobra.Command{
		Use:   name,
		Short: short,
		Long: strings.TrimPrefix(long, "\n") + `

Exit codes: 0 all figures were taken, also where a target was missed (see MET), 2 usage,
130 interrupted.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.output != "table" && f.output != "json" {
				return fmt.Errorf("%w: --output is table or json, not %q", errUsage, f.output)
			}
			if f.cfg.Filled < 0 || f.cfg.Filled%1000 != 0 || 0 < f.cfg.Filled && f.cfg.Filled < 10_000 {
				return fmt.Errorf("%w: --rows is a multiple of 1,000 from 10,000 on, not %d", errUsage, f.cfg.Filled)
			}
			var err error
			if f.cfg.Rows, err = regexp.Compile(f.rows); err != nil {
				return fmt.Errorf("%w: --row: %w", errUsage, err)
			}
			if f.cfg.Self, err = os.Executable(); err != nil {
				return err
			}
			if f.cfg.Peers == "" {
				f.cfg.Peers = filepath.Join(filepath.Dir(f.cfg.Self), "peers")
			}
			f.cfg.Progress = c.ErrOrStderr()
			table, err := take(c.Context(), f.cfg)
			if err != nil {
				return err
			}
			if f.output == "json" {
				return bench.WriteJSON(c.OutOrStdout(), table)
			}
			return bench.WriteTable(c.OutOrStdout(), table)
		},
	}
	c.Flags().BoolVar(&f.cfg.Quick, "quick", false, "see that it works: with amounts so small that the figures say nothing")
	c.Flags().StringVar(&f.rows, "row", "", "only rows whose names match `REGEXP`")
	c.Flags().StringVarP(&f.output, "output", "o", "table", "`FORM`: table or json (one object)")
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

// newBenchSinkSide is the sink's side of a figure, for 'bench sink' to start.
func newBenchSinkSide() *cobra.Command {
	var side bench.SinkSide
	c := &cobra.Command{
		Use:    "sinkside",
		Short:  "Store records and say how long it took",
		Hidden: true,
		Args:   noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if side.Broker == "" || side.ClickHouse == "" || side.Database == "" || side.Group == "" || side.Records <= 0 {
				return fmt.Errorf("%w: wants --broker, --clickhouse, --database, --group and --records", errUsage)
			}
			line, err := side.Store(c.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", line)
			return err
		},
	}
	c.Flags().StringVar(&side.Broker, "broker", "", "`HOST:PORT` of a broker")
	c.Flags().StringVar(&side.ClickHouse, "clickhouse", "", "`HOST:PORT` of a ClickHouse")
	c.Flags().StringVar(&side.Database, "database", "", "`NAME` of a database that has the tables")
	c.Flags().BoolVar(&side.State, "state", false, "keep the state of copies too, in a group of its own")
	c.Flags().StringVar(&side.Group, "group", "", "consumer `GROUP`, without the prefix")
	c.Flags().IntVar(&side.Records, "records", 0, "stop after `N` records")
	return c
}
