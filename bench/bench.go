// Package bench measures what a user of millrace notices, and compares the results with targets and with other
// programs.
//
// Every value in a row is measured; if a measurement fails, the run fails. The row of a peer that is not installed
// stays in the table without a peer value. Components are configured as the roles configure them. The value of a row is
// the median of its rounds. The spread of the rounds goes to the progress writer and shows the noise of the machine.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"time"

	"github.com/millrace/millrace/cmd/millrace/usage"
)

// Config selects the benchmarks and locates the programs they need.
type Config struct {
	Filled   int            // rows of the tables in the read benchmarks [10 million]
	Files    string         // directory of the files that the main job stores; empty: the Go source tree
	Quick    bool           // amounts too small for meaningful results: for tests
	Rows     *regexp.Regexp // selects rows by name; nil: all
	Peers    string         // directory of the peer programs
	Self     string         // path of this program, which also runs the brokers, servers and our side
	Progress io.Writer
}

// An Area is a group of benchmarks whose results form one table.
type Area struct {
	Name, Short, Long string
	figures           func(*runner) ([]figure, error)
}

// Areas returns the areas in the order of the tables. The areas that fill a ClickHouse are the last ones.
func Areas() []Area {
	return []Area{
		{"runtime", "Benchmark the stream runtime",
			"The broker is in memory, in a separate process on loopback. It takes about two minutes.", (*runner).runtime},
		{"storage", "Benchmark the stores", `An S3 server in memory, then local files. Server and client are processes on
this machine; ours and the peer's run in turns. It takes about three minutes.`, (*runner).storage},
		{"main", "Benchmark the main job", `All roles run with an embedded broker and an embedded ClickHouse, as in
'millrace demo'. Files are stored, copied twice, checked and recorded; then copies are deleted; then the latency of
changes is measured. It takes about five minutes.`, (*runner).main},
		{"sweep", "Benchmark the sweeps", `Two file stores are compared. All roles run for the import of unknown files. A
generated listing is compared with records that ClickHouse generates. It takes about three minutes.`, (*runner).sweep},
		{"fixity", "Benchmark fixity checks", `All roles run for the checks of files that are on record, and the peer reads
the same files. ClickHouse generates the records of which tasks are selected (--rows). It takes about three minutes.`,
			(*runner).fixity},
		{"duplicate", "Benchmark the plan of a policy", `ClickHouse generates the copies on record of which a policy is
planned (--rows). It takes about two minutes.`, (*runner).duplicate},
		{"sink", "Benchmark the sink", `The in-memory broker, the role sink and an embedded ClickHouse are processes on this
machine. ClickHouse generates the rows of the tables that are read (--rows). It takes about three minutes.`,
			(*runner).sink},
	}
}

// Run runs the figures of areas that Config.Rows selects and returns their tables.
func Run(ctx context.Context, cfg Config, areas []Area) (tables []Table, err error) {
	r := &runner{cfg: cfg, amounts: full()}
	if cfg.Quick {
		r.amounts = quick()
	}
	if cfg.Filled > 0 {
		r.amounts.prefilled = cfg.Filled
	}
	defer func() { err = errors.Join(err, r.clickHouse.close(ctx)) }()
	selected := make([][]figure, len(areas))
	n := 0
	for i, a := range areas {
		figures, err := a.figures(r)
		if err != nil {
			return nil, err
		}
		for _, f := range figures {
			if cfg.Rows == nil || cfg.Rows.MatchString(f.name) {
				selected[i] = append(selected[i], f)
				n++
			}
		}
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: no row matches %q", usage.Err, cfg.Rows)
	}
	for i, a := range areas {
		t := Table{Area: a.Name}
		for _, f := range selected[i] {
			row, err := r.measure(ctx, f)
			if err != nil {
				return nil, err
			}
			t.Rows = append(t.Rows, row)
		}
		if len(t.Rows) > 0 {
			tables = append(tables, t)
		}
	}
	return tables, nil
}

// figure describes a row and how to measure it.
type figure struct {
	name    string
	unit    string
	peer    string
	target  target
	measure func(ctx context.Context) (measurement, error)
}

// measure runs a figure.
func (r *runner) measure(ctx context.Context, f figure) (Row, error) {
	fmt.Fprintf(r.cfg.Progress, "%s ...\n", f.name)
	start := time.Now()
	runtime.GC() // collect the garbage of the previous figure
	m, err := f.measure(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return Row{}, fmt.Errorf("bench: %w", ctx.Err())
		}
		return Row{}, fmt.Errorf("bench: %s: %w", f.name, err)
	}
	peers := ""
	if len(m.peers) > 0 {
		peers = fmt.Sprintf("; %s: %s", f.peer, spread(m.peers))
	}
	fmt.Fprintf(r.cfg.Progress, "    %s: %s%s, %.0f s\n", f.unit, spread(m.ours), peers, time.Since(start).Seconds())
	return f.row(m), nil
}

// runner measures figures and keeps what several of them share.
type runner struct {
	cfg        Config
	amounts    amounts
	clickHouse *testClickHouse // started by the first figure that needs it
	filled     *database       // with amounts.prefilled copies on record; filled by the first figure that needs it
}

// amounts sets the size of each benchmark.
type amounts struct {
	rounds      int
	peerRecords int           // records in the comparison with watermill
	flood       int           // messages of class low
	probes      int           // messages with measured latency
	sustained   int           // messages that another tenant keeps queued
	sinkRows    int           // rows that the sink stores
	prefilled   int           // rows in a table before a benchmark starts
	objects     int           // small items to read or copy
	hugeItems   int           // large items to copy, and their size in bytes
	hugeSize    int64         //
	written     int           // small files to write
	deleted     int           // items to delete at the destination
	changed     int           // changes with measured time until their copies are made
	compared    int           // items of a generated listing
	files       int           // files in each of two stores that are compared
	adopted     int           // files that no record has
	selected    int           // fixity tasks
	checked     int           // files to check
	window      time.Duration // how long deletes are counted
}

func full() amounts {
	return amounts{
		rounds: 3, peerRecords: 400_000, flood: 1_000_000, probes: 2_000, sustained: 30_000, sinkRows: 500_000,
		prefilled: 10_000_000, objects: 20_000, hugeItems: 4, hugeSize: 1 << 30, written: 5_000, deleted: 10_000,
		changed: 2_000, compared: 1_000_000, files: 100_000, adopted: 100_000, selected: 100_000, checked: 100_000,
		window: time.Minute,
	}
}

// fewRounds returns the number of rounds of slow figures.
func (a amounts) fewRounds() int { return min(a.rounds, 2) }

func quick() amounts {
	return amounts{
		rounds: 1, peerRecords: 5_000, flood: 20_000, probes: 50, sustained: 3_000, sinkRows: 5_000,
		prefilled: 10_000, objects: 100, hugeItems: 1, hugeSize: 33 << 20, written: 100, deleted: 50,
		changed: 50, compared: 2_000, files: 1_000, adopted: 200, selected: 2_000, checked: 200,
		window: 3 * time.Second,
	}
}

// atLeast and atMost return targets of a value, ratioAtLeast and ratioAtMost of its ratio to the peer's.
func atLeast(bound float64) target      { return target{op: ">=", bound: bound} }
func atMost(bound float64) target       { return target{op: "<=", bound: bound} }
func ratioAtLeast(bound float64) target { return target{op: ">=", bound: bound, ratio: true} }
func ratioAtMost(bound float64) target  { return target{op: "<=", bound: bound, ratio: true} }

// count formats n with thousands separators.
func count(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// inTurns runs both sides of a comparison in turns, for the given number of rounds. peer is nil if it is not installed;
// absent says how to install it.
func inTurns(rounds int, absent string, ours, peer func(round int) (float64, error)) (m measurement, err error) {
	if peer == nil {
		m.absent = absent
	}
	for i := range rounds {
		for _, side := range []struct {
			run  func(int) (float64, error)
			into *[]float64
		}{{ours, &m.ours}, {peer, &m.peers}} {
			if side.run == nil {
				continue
			}
			runtime.GC()
			value, err := side.run(i)
			if err != nil {
				return m, err
			}
			*side.into = append(*side.into, value)
		}
	}
	return m, nil
}
