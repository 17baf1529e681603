package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

const about = `

Other load on the machine distorts the results. The least, median and largest result of the
rounds go to standard error. A peer that is not installed is reported as absent; 'make peers'
builds the peers.

` + exitCodes

// flags are the flags that every area has.
type flags struct {
	cfg          bench.Config
	rows, output string
}

// newArea returns the command that runs areas.
func newArea(name, short, long string, of ...bench.Area) *cobra.Command {
	f := new(flags)
	c := &cobra.Command{
		Use: name, Short: short, Long: long + about, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			f.cfg.Progress = c.ErrOrStderr()
			tables, err := bench.Run(c.Context(), f.cfg, of)
			if err != nil {
				return err
			}
			return bench.Write(c.OutOrStdout(), f.output, tables)
		},
	}
	s := c.Flags()
	s.BoolVar(&f.cfg.Quick, "quick", false, "smoke test: amounts too small for meaningful results")
	s.StringVar(&f.rows, "row", "", "run only rows with names that match `REGEXP`")
	s.StringVarP(&f.output, "output", "o", "table", "`FORM`: table, json (one object) or markdown")
	s.StringVar(&f.cfg.Peers, "peers", "", "`DIR` with the programs of the peers (default: peers, next to this program)")
	has := func(names ...string) bool {
		return slices.ContainsFunc(of, func(a bench.Area) bool { return slices.Contains(names, a.Name) })
	}
	if has("sink", "duplicate", "fixity") {
		s.IntVar(&f.cfg.Filled, "rows", 0,
			"fill the tables of the read benchmarks with `N` rows: a multiple of 1,000, at least 10,000 "+
				"(default: 10 million)")
	}
	if has("main") {
		s.StringVar(&f.cfg.Files, "files", "",
			"store the files below `DIR`, which is not changed (default: the Go source tree)")
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
	f.cfg.Peers, err = filepath.Abs(f.cfg.Peers) // otherwise the programs in "." would be looked up on PATH
	return err
}

// newChild is the hidden command of the child processes that the benchmarks start.
func newChild() *cobra.Command {
	return &cobra.Command{
		Use: "child JOB OPTIONS", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return bench.Child(c.Context(), args[0], args[1], c.InOrStdin(), c.OutOrStdout())
		},
	}
}
