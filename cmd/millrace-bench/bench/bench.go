// Package bench takes the figures of the stream runtime, the sink, the stores and the main job, and compares them with
// their targets and with other programs.
//
// It promises that a figure is measured or the run fails. A row whose peer is absent stays, without the peer's value.
// Every figure is of a part as the roles configure it. A figure that is taken in rounds is their median; all of them go
// to the progress writer, so that the noise of the machine is seen.
package bench

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"time"
)

// Config says which figures are taken, and where the programs are that they need.
type Config struct {
	Filled   int            // rows of the tables that are read [10 million]
	Files    string         // the folder whose files the main job stores; empty: Go's own sources
	Quick    bool           // amounts so small that the figures say nothing: for tests
	Rows     *regexp.Regexp // takes only rows whose names match; nil: all
	Peers    string         // the folder of the peers' programs
	Self     string         // this program: brokers, servers and our sides are processes of it
	Progress io.Writer
}

// Runtime takes the figures of the stream runtime, in the order of their table.
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

// take takes those that are asked for.
func (r *runner) measure(ctx context.Context, figures []figure) ([]Row, error) {
	cfg := r.cfg
	var rows []Row
	for _, f := range figures {
		if cfg.Rows != nil && !cfg.Rows.MatchString(f.name) {
			continue
		}
		fmt.Fprintf(cfg.Progress, "%s ...\n", f.name)
		start := time.Now()
		runtime.GC() // what the figure before left behind
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
		fmt.Fprintf(cfg.Progress, "    %s: %s%s, %.0f s\n", row.Unit, spread(m.ours), peerSpread(row.Peer, m.peers), time.Since(start).Seconds())
	}
	return rows, nil
}

func peerSpread(peer string, values []float64) string {
	if len(values) == 0 {
		return ""
	}
	return fmt.Sprintf("; %s: %s", peer, spread(values))
}

// A runner takes figures.
type runner struct {
	cfg           Config
	amounts       amounts
	prefilled     *testClickHouse // made when the first figure wants it
	compared      map[string]comparison
	realServer    *server     // a real S3 server, made when the first figure wants it
	listing       *sideResult // of very many keys, once it was done
	sinkPeakBytes int64       // bytes that the process of role sink ever had; 0: it has not run
}

// amounts is how much of everything a figure is taken over.
type amounts struct {
	rounds        int
	noop          int // messages of the no-op figure
	tasks         int
	skewed        int
	waiting       int // records that wait
	peerRecords   int // records of the comparison with another runtime
	flood         int // messages of the low class
	probes        int // messages whose latency is taken
	floodProbes   int // the same, under a flood
	sustained     int // messages that a tenant keeps in front of the others'
	sinkRows      int // rows of the sink's figures
	steadyChanges int // changes whose rows are waited for
	prefilled     int // rows that are there before
	objects       int // small items that are read or copied
	diskObjects   int // the same over a real server, which takes long to write them
	largeItems    int // large ones, and the bytes of each
	largeSize     int64
	hugeItems     int // items in many parts that are copied, and the bytes of each
	hugeSize      int64
	mixedItems    int           // items of one to eight times a 128th of that
	emitted       int           // mutations through an outbox
	listed        int           // keys
	local         int           // small files that are read
	written       int           // small files that are written
	deleted       int           // items of the destination that are deleted
	imported      int           // items that an import names
	changed       int           // changes whose copies are waited for
	window        time.Duration // in which deletes and copies are counted
	callTime      time.Duration // for which a call is repeated
}

func full() amounts {
	return amounts{
		rounds: 5, noop: 1_000_000, tasks: 50_000, skewed: 20_000, waiting: 10_000_000, peerRecords: 400_000,
		flood: 1_000_000, probes: 10_000, floodProbes: 2_000, sustained: 30_000,
		sinkRows: 500_000, steadyChanges: 1_000, prefilled: 10_000_000,
		objects: 20_000, diskObjects: 3_000, largeItems: 64, largeSize: largeBytes, hugeItems: 4, hugeSize: 1 << 30, mixedItems: 48, emitted: 100_000, listed: 1_000_000,
		local: 10_000, written: 5_000, deleted: 10_000, imported: 12_000, changed: 3_000, window: time.Minute, callTime: 500 * time.Millisecond,
	}
}

// long is how many rounds those figures take that take long.
func (a amounts) fewRounds() int { return min(a.rounds, 3) }

func quick() amounts {
	return amounts{
		rounds: 1, noop: 20_000, tasks: 5_000, skewed: 500, waiting: 200_000, peerRecords: 5_000,
		flood: 20_000, probes: 200, floodProbes: 50, sustained: 3_000, sinkRows: 5_000, steadyChanges: 20, prefilled: 10_000,
		objects: 100, diskObjects: 50, largeItems: 2, largeSize: 17 << 20, hugeItems: 1, hugeSize: 33 << 20, mixedItems: 9, emitted: 1_000, listed: 3_500,
		local: 100, written: 100, deleted: 50, imported: 50, changed: 50, window: 3 * time.Second, callTime: time.Millisecond,
	}
}
