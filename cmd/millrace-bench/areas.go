package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace-bench/bench"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

// An area is a table of figures.
type area struct {
	name, short, long string
	take              func(context.Context, bench.Config) ([]bench.Row, error)
}

func areas() []area {
	return []area{
		{"parts", "Take the figures of the codec and of digests",
			`One call after the other, in this process. It takes half a minute.`, bench.Parts},
		{"runtime", "Take the figures of the stream runtime", `The broker is in memory, in a process of its own on loopback.
It takes about four minutes.`, bench.Runtime},
		{"sink", "Take the figures of the sink", `The broker in memory, the role sink and an embedded ClickHouse are
processes that share the machine. It takes about ten minutes. The rows of the tables that are read are made by
ClickHouse itself (--rows).`, bench.Sink},
		{"storage", "Take the figures of stores and of the outbox", `An S3 server in memory, then a real one, then local files;
server and client are processes that share the machine, ours and the peer's in turns. It takes about seven minutes.`, bench.Storage},
		{"main", "Take the figures of the main job", `All roles run over an embedded broker and an embedded ClickHouse,
as 'millrace demo' has them: files are stored, copied twice, checked, and all of it is on record; then copies are
deleted; then an import is copied; then changes are waited for. It takes about eight minutes.`, bench.Main},
	}
}

const about = `

Figures mean little on a machine that does anything else meanwhile. The results of the
rounds go to standard error. A peer that is not there is reported as absent; 'make peers
servers' builds them.

` + exitCodes

func newArea(a area) *cobra.Command {
	return new(flags).command(a.name, a.short+", in one table", a.long, a)
}

func newAll() *cobra.Command {
	return new(flags).command("all", "Take all figures, one area after the other",
		"With -o markdown each area has a heading and a table of its own.", areas()...)
}

// flags are those of every area.
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
	s.BoolVar(&f.cfg.Quick, "quick", false, "see that it works: with amounts so small that the figures say nothing")
	s.StringVar(&f.rows, "row", "", "only rows whose names match `REGEXP`")
	s.StringVarP(&f.output, "output", "o", "table", "`FORM`: table, json (one object) or markdown")
	s.StringVar(&f.cfg.Peers, "peers", "",
		"`DIR` of the peers' and the S3 server's programs (default: peers, beside this program)")
	for _, a := range of {
		switch a.name {
		case "sink":
			s.IntVar(&f.cfg.Filled, "rows", 0,
				"`N` rows of the tables that are read, a multiple of 1,000 from 10,000 on (default: 10 million)")
		case "main":
			s.StringVar(&f.cfg.Files, "files", "",
				"store the files of `DIR`, which is only read (default: Go's own sources)")
		}
	}
	return c
}

// check reads the flags.
func (f *flags) check() (err error) {
	if err := bench.CheckForm(f.output); err != nil {
		return err
	}
	if f.cfg.Filled < 0 || f.cfg.Filled%1000 != 0 || 0 < f.cfg.Filled && f.cfg.Filled < 10_000 {
		return fmt.Errorf("%w: --rows is a multiple of 1,000 from 10,000 on, not %d", usage.Err, f.cfg.Filled)
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
