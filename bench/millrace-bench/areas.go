package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

// area is a group of benchmarks whose results form one table.
type area struct {
	name, short, long string
	take              func(context.Context, bench.Config) ([]bench.Row, error)
}

func areas() []area {
	return []area{
		{"parts", "Benchmark the codec and the digests",
			`Calls run one after the other in this process. It takes half a minute.`, bench.Parts},
		{"runtime", "Benchmark the stream runtime", `The broker is in memory, in a separate process on loopback.
It takes about four minutes.`, bench.Runtime},
		{"sink", "Benchmark the sink", `The in-memory broker, the role sink and an embedded ClickHouse are
processes on this machine. It takes about ten minutes. ClickHouse generates the rows of the tables that the
read benchmarks use (--rows).`, bench.Sink},
		{"storage", "Benchmark the stores and the outbox", `An S3 server in memory, then a real one, then local files.
Server and client are processes on this machine; ours and the peer's run in turns. It takes about seven minutes.`,
			bench.Storage},
		{"duplicate", "Benchmark the plan of a policy, copies and deletes", `ClickHouse generates the copies on record of
which a policy is planned (--rows). Items are copied between two stores of an S3 server in memory, ours and the peer's
in turns. All roles run for the delay of copies, and for deletes at the limit of the brake. It takes about eight
minutes.`,
			bench.Duplicate},
		{"sweep", "Benchmark the sweeps", `Listings are generated, or those of two file stores. ClickHouse generates the
records that a listing is compared with, and those of which fixity tasks are selected (--rows). All roles run for the
import of unknown files; an in-memory broker and slow consumers for the backlog. It takes more than ten minutes.`,
			bench.Sweep},
		{"fixity", "Benchmark checks and the log of checks", `All roles run for the checks of files that are on record, and
the peer reads the same files. Items are read from an S3 server in memory, ours and the peer's in turns. ClickHouse
generates the checks among which those of one copy are looked up (--rows). It takes about six minutes.`,
			bench.Fixity},
		{"main", "Benchmark the main job", `All roles run with an embedded broker and an embedded ClickHouse, as in
'millrace demo'. Files are stored, copied twice, checked and recorded; then copies are deleted; then an import is
copied; then the latency of changes is measured. It takes about eight minutes.`, bench.Main},
	}
}

const about = `

Other load on the machine distorts the results. The results of each round go to standard
error. A peer that is not installed is reported as absent; 'make peers servers' builds the
peers.

` + exitCodes

func newArea(a area) *cobra.Command {
	return new(flags).command(a.name, a.short, a.long, a)
}

func newAll() *cobra.Command {
	return new(flags).command("all", "Run all benchmarks, one area after the other",
		"With -o markdown each area has its own heading and table.", areas()...)
}

// flags are the flags that every area has.
type flags struct {
	cfg          bench.Config
	rows, output string
}

func (f *flags) command(name, short, long string, of ...area) *cobra.Command {
	c := &cobra.Command{
		Use: name, Short: short, Long: long + about, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			f.cfg.Progress = c.ErrOrStderr()
			var tables []bench.Table
			for _, a := range of {
				rows, err := a.take(c.Context(), f.cfg)
				if err != nil {
					return err
				}
				if len(rows) > 0 {
					tables = append(tables, bench.Table{Area: a.name, Rows: rows})
				}
			}
			if len(tables) == 0 {
				return fmt.Errorf("%w: no row matches %q", usage.Err, f.rows)
			}
			return bench.Write(c.OutOrStdout(), f.output, tables)
		},
	}
	s := c.Flags()
	s.BoolVar(&f.cfg.Quick, "quick", false, "smoke test: amounts too small for meaningful results")
	s.StringVar(&f.rows, "row", "", "run only rows with names that match `REGEXP`")
	s.StringVarP(&f.output, "output", "o", "table", "`FORM`: table, json (one object) or markdown")
	s.StringVar(&f.cfg.Peers, "peers", "",
		"`DIR` with the programs of the peers and S3 servers (default: peers, next to this program)")
	for _, a := range of {
		switch a.name {
		case "sink", "duplicate", "sweep", "fixity":
			if s.Lookup("rows") != nil {
				continue
			}
			s.IntVar(&f.cfg.Filled, "rows", 0,
				"fill the tables of the read benchmarks with `N` rows: a multiple of 1,000, at least 10,000 "+
					"(default: 10 million)")
		case "main":
			s.StringVar(&f.cfg.Files, "files", "",
				"store the files below `DIR`, which is not changed (default: the Go source tree)")
		}
	}
	return c
}

// check validates the flags and sets the fields of cfg that depend on them.
func (f *flags) check() (err error) {
	if err := bench.CheckForm(f.output); err != nil {
		return err
	}
	if f.cfg.Filled < 0 || f.cfg.Filled%1000 != 0 || 0 < f.cfg.Filled && f.cfg.Filled < 10_000 {
		return fmt.Errorf("%w: --rows is a multiple of 1,000 and at least 10,000, not %d", usage.Err, f.cfg.Filled)
	}
	if f.cfg.Rows, err = regexp.Compile(f.rows); err != nil {
		return fmt.Errorf("%w: --row: %w", usage.Err, err)
	}
	if f.cfg.Self, err = os.Executable(); err != nil {
		return err
	}
	if f.cfg.Peers == "" {
		f.cfg.Peers = filepath.Join(filepath.Dir(f.cfg.Self), "peers")
	}
	return nil
}
