// Package bench measures the stream runtime, the sink, the stores, the sweeps and the main job, and compares the
// results with targets and with other programs.
//
// Every value in a row is measured; if a measurement fails, the run fails. The row of a peer that is not installed
// stays in the table without a peer value. Components are configured as the roles configure them. The value of a row is
// the median of its rounds. The spread of the rounds goes to the progress writer and shows the noise of the machine.
package bench

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"time"
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

// Runtime measures the stream runtime and returns the rows in table order.
func Runtime(ctx context.Context, cfg Config) ([]Row, error) {
	r := newRunner(cfg)
	return r.measure(ctx, r.figures())
}

func newRunner(cfg Config) *runner {
	r := &runner{cfg: cfg, amounts: full()}
	if cfg.Quick {
		r.amounts = quick()
	}
	if cfg.Filled > 0 {
		r.amounts.prefilled = cfg.Filled
	}
	return r
}

// measure runs the figures that Config.Rows selects and returns their rows.
func (r *runner) measure(ctx context.Context, figures []figure) ([]Row, error) {
	cfg := r.cfg
	var rows []Row
	for _, f := range figures {
		if cfg.Rows != nil && !cfg.Rows.MatchString(f.name) {
			continue
		}
		fmt.Fprintf(cfg.Progress, "%s ...\n", f.name)
		start := time.Now()
		runtime.GC() // collect the garbage of the previous figure
		m, err := f.measure(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("bench: %w", ctx.Err())
			}
			return nil, fmt.Errorf("bench: %s: %w", f.name, err)
		}
		row := f.row(m)
		rows = append(rows, row)
		if len(m.ours) == 0 {
			fmt.Fprintf(cfg.Progress, "    absent: %s\n", m.absent)
			continue
		}
		fmt.Fprintf(cfg.Progress, "    %s: %s%s, %.0f s\n", row.Unit, spread(m.ours), peerSpread(row.Peer, m.peers),
			time.Since(start).Seconds())
	}
	return rows, nil
}

func peerSpread(peer string, values []float64) string {
	if len(values) == 0 {
		return ""
	}
	return fmt.Sprintf("; %s: %s", peer, spread(values))
}

// runner measures figures and keeps what several of them share.
type runner struct {
	cfg           Config
	amounts       amounts
	prefilled     *testClickHouse // created by the first figure that needs it
	compared      map[string]comparison
	realServer    *server              // an S3 server on disk, created by the first figure that needs it
	listing       *sideResult          // the result of the listing benchmark; nil until it has run
	sinkPeakBytes int64                // peak memory of the role sink's process; 0 until it has run
	swept         map[string]sweptKind // the comparisons that have run
	checks        []checkCost          // of the rounds that have run
}

// amounts sets the size of each benchmark.
type amounts struct {
	rounds        int
	noop          int // messages with a no-op handler
	tasks         int
	skewed        int
	waiting       int // records behind blocked handlers
	peerRecords   int // records in the comparison with watermill
	flood         int // messages of class low
	probes        int // messages with measured latency
	floodProbes   int // messages with measured latency, under a flood
	sustained     int // messages that another tenant keeps queued
	sinkRows      int // rows that the sink stores
	steadyChanges int // changes published at a steady rate
	prefilled     int // rows in a table before a benchmark starts
	objects       int // small items to read or copy
	diskObjects   int // small items on a server with a disk, which is slow to fill
	largeItems    int // large items to read, and their size in bytes
	largeSize     int64
	hugeItems     int // multipart items to copy, and their size in bytes
	hugeSize      int64
	mixedItems    int           // items of 1/128 to 8/128 of hugeSize
	emitted       int           // mutations through an outbox
	listed        int           // keys to list
	local         int           // small files to read
	written       int           // small files to write
	deleted       int           // items to delete at the destination
	imported      int           // items to import
	changed       int           // changes with measured time until their copies are checked
	compared      int           // items of a generated listing
	comparedFiles int           // files in each of two stores that are compared
	adopted       int           // files that no record has
	selected      int           // fixity tasks
	checked       int           // files to check
	outstanding   int           // commands that sweeps emit to slow consumers
	window        time.Duration // how long deletes and copies are counted
	callTime      time.Duration // how long a call is repeated
}

func full() amounts {
	return amounts{
		rounds: 5, noop: 1_000_000, tasks: 50_000, skewed: 20_000, waiting: 10_000_000, peerRecords: 400_000,
		flood: 1_000_000, probes: 10_000, floodProbes: 2_000, sustained: 30_000,
		sinkRows: 500_000, steadyChanges: 1_000, prefilled: 10_000_000,
		objects: 20_000, diskObjects: 3_000, largeItems: 64, largeSize: largeBytes, hugeItems: 4, hugeSize: 1 << 30,
		mixedItems: 48, emitted: 100_000, listed: 1_000_000,
		local: 10_000, written: 5_000, deleted: 10_000, imported: 12_000, changed: 3_000, window: time.Minute,
		checked:  100_000,
		compared: 1_000_000, comparedFiles: 100_000, adopted: 100_000, selected: 100_000, outstanding: 80_000,
		callTime: 500 * time.Millisecond,
	}
}

// fewRounds returns the number of rounds of slow figures.
func (a amounts) fewRounds() int { return min(a.rounds, 3) }

func quick() amounts {
	return amounts{
		rounds: 1, noop: 20_000, tasks: 5_000, skewed: 500, waiting: 200_000, peerRecords: 5_000,
		flood: 20_000, probes: 200, floodProbes: 50, sustained: 3_000, sinkRows: 5_000, steadyChanges: 20, prefilled: 10_000,
		objects: 100, diskObjects: 50, largeItems: 2, largeSize: 17 << 20, hugeItems: 1, hugeSize: 33 << 20, mixedItems: 9,
		emitted: 1_000, listed: 3_500,
		local: 100, written: 100, deleted: 50, imported: 50, changed: 50, window: 3 * time.Second, callTime: time.Millisecond,
		checked:  200,
		compared: 2_000, comparedFiles: 1_000, adopted: 200, selected: 2_000, outstanding: 1_600,
	}
}
