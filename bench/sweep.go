package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace/millrace/bench/clickhousebench"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
)

// Sweep measures the sweeps and returns the rows in table order.
func Sweep(ctx context.Context, cfg Config) ([]Row, error) {
	r := newRunner(cfg)
	return r.measure(ctx, r.sweepFigures())
}

// differing is the number of items that differ in the comparisons.
const differing = 100

// backlogBound is the default of sweep.Config.MaxBacklog.
const backlogBound = 10_000

func (r *runner) sweepFigures() []figure {
	a := r.amounts
	atLeast := func(bound float64) target { return target{op: ">=", bound: bound} }
	atMost := func(bound float64) target { return target{op: "<=", bound: bound} }
	selected := fmt.Sprintf("fixity: %s tasks selected, %s copies on record in two stores", count(a.selected),
		count(a.prefilled))
	return []figure{
		{fmt.Sprintf("pairs: listings in memory, 2 x %s items that differ in %d", count(a.compared), differing), "items/s",
			"",
			atLeast(400_000), r.compareSwept("pairs", r.comparePairs, rates)},
		{"pairs: most memory of its process", "MiB", "", atMost(64), r.compareSwept("pairs", r.comparePairs, memories)},
		{fmt.Sprintf("pairs: two file stores of %s files that differ in %d", count(a.comparedFiles), differing), "items/s",
			rclone + " check --size-only", target{op: ">=", bound: 1.5, ratio: true},
			r.compareSwept("files", r.compareFiles, rates)},
		{"pairs: most memory of its process over them", "MiB", "over a tenth of the files",
			target{op: "<=", bound: 1.1, ratio: true}, r.compareSwept("files", r.compareFiles, memories)},
		{fmt.Sprintf("reconcile: a listing in memory, manifest of %s items, %d are new", count(a.compared), differing),
			"items/s", "", atLeast(100_000), r.compareSwept("reconcile", r.compareManifest, rates)},
		{"reconcile: most memory of its process", "MiB", "", atMost(128),
			r.compareSwept("reconcile", r.compareManifest, memories)},
		{fmt.Sprintf("reconcile: import of %s unknown files, settle %v, until each is on record", count(a.adopted),
			adoptSettle), "items/s", "", atLeast(5000), r.adoptRate},
		{fmt.Sprintf("reconcile: p99 of a client's write until its copy, during an import of %s files", count(a.adopted)),
			"s", "", atMost(5), r.adoptLive},
		{selected + ", keys and manifest", "s", "", atMost(3), r.compareSwept("selection", r.selections,
			func(k sweptKind) measurement { return seconds(k.fewer) })},
		{selected + ", with the evidence of the audit log", "s", "", atMost(30), r.compareSwept("selection", r.selections,
			func(k sweptKind) measurement { return seconds(k.ours) })},
		{fmt.Sprintf("backlog: most of %s commands out at once, bound %s, consumers slow", count(a.outstanding),
			count(backlogBound)), "records", "", atMost(1.1 * backlogBound), r.backlog(false)},
		{"backlog: the same, until the consumers have stopped for a while", "records", "", atMost(1.1 * backlogBound),
			r.backlog(true)},
	}
}

// A sweptKind is a comparison that several figures show.
type sweptKind struct {
	ours []sideResult
	// fewer are our results over a tenth of the items, or without an audit log.
	fewer  []sideResult
	peers  []float64 // items per second
	absent string    // how to install the missing peer
}

// compareSwept returns a figure of a comparison. The first figure of the comparison runs it.
func (r *runner) compareSwept(
	name string, take func(context.Context) (sweptKind, error), of func(sweptKind) measurement,
) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		k, ok := r.swept[name]
		if !ok {
			if k, err = take(ctx); err != nil {
				return m, err
			}
			if r.swept == nil {
				r.swept = map[string]sweptKind{}
			}
			r.swept[name] = k
		}
		return of(k), nil
	}
}

func rates(k sweptKind) measurement {
	m := measurement{peers: k.peers, absent: k.absent}
	for _, s := range k.ours {
		m.ours = append(m.ours, s.rate())
	}
	return m
}

func memories(k sweptKind) (m measurement) {
	for _, of := range []struct {
		sides []sideResult
		into  *[]float64
	}{{k.ours, &m.ours}, {k.fewer, &m.peers}} {
		for _, s := range of.sides {
			*of.into = append(*of.into, float64(s.Bytes)/(1<<20))
		}
	}
	return m
}

// sweepSide runs a SweepSide over n items, d of which differ.
func (r *runner) sweepSide(ctx context.Context, do string, n, d int, more ...string) (sideResult, error) {
	return runSide(ctx, r.cfg.Self, append([]string{"sweepside", "--do", do, "--items", fmt.Sprint(n),
		"--differing", fmt.Sprint(d)}, more...)...)
}

// comparePairs compares listings that are generated.
func (r *runner) comparePairs(ctx context.Context) (k sweptKind, err error) {
	for range r.amounts.fewRounds() {
		res, err := r.sweepSide(ctx, "pairs", r.amounts.compared, differing, "--space", space)
		if err != nil {
			return k, err
		}
		k.ours = append(k.ours, res)
	}
	return k, nil
}

// directories returns the number of directories that hold n files, which is that of the files that differ.
func directories(n int) int { return (n + 999) / 1000 }

// smallSpace is the space with a tenth of the files.
const smallSpace = "tenth"

// compareFiles compares two file stores, in turns with the peer. The time is that of the whole process on both sides.
func (r *runner) compareFiles(ctx context.Context) (k sweptKind, err error) {
	peer, err := r.peerProgram()
	if err != nil {
		return k, err
	}
	if peer == "" {
		k.absent = "make peers"
	}
	n := r.amounts.comparedFiles
	return k, inTemp(func(dir string) error {
		for id, first := range map[string][]byte{source: nil, destination: []byte("seven b")} {
			if err := fillFileStore(ctx, dir, id, n, first); err != nil {
				return err
			}
		}
		for range r.amounts.fewRounds() {
			start := time.Now()
			res, err := r.sweepSide(ctx, "pairs", n, directories(n), "--root", dir, "--space", space)
			if err != nil {
				return err
			}
			res.Seconds = time.Since(start).Seconds()
			k.ours = append(k.ours, res)
			few, err := r.sweepSide(ctx, "pairs", n/10, directories(n/10), "--root", dir, "--space", smallSpace)
			if err != nil {
				return err
			}
			k.fewer = append(k.fewer, few)
			if peer == "" {
				continue
			}
			seconds, err := peerCheck(ctx, peer, filepath.Join(dir, source, space), filepath.Join(dir, destination, space),
				directories(n))
			if err != nil {
				return err
			}
			k.peers = append(k.peers, float64(n)/seconds)
		}
		return nil
	})
}

// fillFileStore makes a store of the two spaces. The files have no digests on record.
func fillFileStore(ctx context.Context, dir, id string, n int, first []byte) error {
	store, err := fileStore(ctx, dir, id)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.CreateSpace(ctx, storage.Space{Name: smallSpace}); err != nil {
		return err
	}
	if err := fillFiles(filepath.Join(dir, id, smallSpace), n/10, first); err != nil {
		return err
	}
	return fillFiles(filepath.Join(dir, id, space), n, first)
}

// peerCheck compares two directories with the peer, which must find some differences, and returns the time.
func peerCheck(ctx context.Context, program, one, two string, differences int) (seconds float64, err error) {
	u, _, err := runMeasured(ctx, []string{"RCLONE_CONFIG=" + os.DevNull}, program,
		append(peerSettings(sideWork), "check", "--size-only", one, two)...)
	found := fmt.Sprintf(" %d differences found", differences)
	if err == nil || !strings.Contains(err.Error(), found) {
		return 0, errors.Join(err, fmt.Errorf("%s did not report%s", rclone, found))
	}
	return u.seconds, nil
}

// compareManifest compares a generated listing with a manifest.
func (r *runner) compareManifest(ctx context.Context) (k sweptKind, err error) {
	s, err := r.newClickHouse(ctx)
	if err != nil {
		return k, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if _, err := filledState(ctx, s, clickhousebench.SpaceRows(), r.amounts.compared); err != nil {
		return k, err
	}
	recorded, _ := clickhousebench.Item(0, r.amounts.compared)
	for range r.amounts.fewRounds() {
		res, err := r.sweepSide(ctx, "reconcile", r.amounts.compared, differing, "--space", recorded,
			"--clickhouse", s.engine.Addr(), "--database", "millrace")
		if err != nil {
			return k, err
		}
		k.ours = append(k.ours, res)
	}
	return k, nil
}

// filledState creates the database of a server with n rows of copy_state, which are merged.
func filledState(ctx context.Context, s *testClickHouse, f clickhousebench.Fill, n int) (*clickhouse.DB, error) {
	db, b, err := s.database(ctx, "millrace")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := b.Fill(ctx, f, n); err != nil {
		return nil, err
	}
	// Otherwise the merges of the rows that were just filled in would take processor time from the rounds.
	return db, b.Exec(ctx, "OPTIMIZE TABLE {db}.copy_state FINAL")
}

// adoptRate measures the import of unknown files.
func (r *runner) adoptRate(ctx context.Context) (m measurement, err error) {
	for range min(2, r.amounts.rounds) {
		res, _, err := r.roles(ctx, "--do", "adopt", "--items", fmt.Sprint(r.amounts.adopted))
		if err != nil {
			return m, err
		}
		m.ours = append(m.ours, res.rate())
	}
	return m, nil
}

// adoptLive measures how long the copy of a client's write takes during an import.
func (r *runner) adoptLive(ctx context.Context) (m measurement, err error) {
	res, _, err := r.roles(ctx, "--do", adoptLive, "--items", fmt.Sprint(r.amounts.adopted))
	m.ours = []float64{res.Seconds}
	return m, err
}

// selections measures the time in which a fixity round selects its tasks, first with an empty audit log.
func (r *runner) selections(ctx context.Context) (k sweptKind, err error) {
	s, err := r.newClickHouse(ctx)
	if err != nil {
		return k, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	n := r.amounts.prefilled
	fmt.Fprintf(r.cfg.Progress, "    filling copy_state with %s rows\n", count(n))
	db, err := filledState(ctx, s, clickhousebench.StateRows(), n)
	if err != nil {
		return k, err
	}
	if k.fewer, err = r.selectTasks(ctx, db); err != nil {
		return k, err
	}
	b, err := clickhousebench.Open(s.engine.Addr(), "millrace")
	if err != nil {
		return k, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	fmt.Fprintf(r.cfg.Progress, "    filling audit_log with %s rows\n", count(n))
	if err := b.Fill(ctx, clickhousebench.AuditRows(), n); err != nil {
		return k, err
	}
	if err := waitMerges(ctx, s); err != nil {
		return k, err
	}
	k.ours, err = r.selectTasks(ctx, db)
	return k, err
}

// selectTasks reads the pages of fixity rounds over the spaces of a store, in which all copies are due, until it has
// enough tasks.
func (r *runner) selectTasks(ctx context.Context, db *clickhouse.DB) ([]sideResult, error) {
	rounds := sweep.FixityRounds{
		Due:     read.NewDue(db),
		Lag:     func(context.Context) (int64, error) { return 0, nil },
		LagHigh: func(context.Context) (int64, error) { return 0, nil },
		Checked: func(context.Context, schemas.Copy) (bool, error) { return false, nil },
		Results: noResults{},
		Queue:   noQueue{},
	}
	start, tasks := time.Now(), 0
	for n := 0; tasks < r.amounts.selected; n++ {
		if n == 100 { // spaces
			return nil, fmt.Errorf("only %d tasks are due", tasks)
		}
		space, _ := clickhousebench.Item(n*(r.amounts.prefilled/100), r.amounts.prefilled)
		split, err := rounds.Split(sweep.Request{Account: mainAccount, Store: source, Space: space, Begun: start})
		if err != nil {
			return nil, err
		}
		for page := (sweep.Page{}); tasks < r.amounts.selected; {
			if page, err = split.Pages(ctx, sweep.Round{ID: "selection", Started: start}, page.Next); err != nil {
				return nil, err
			}
			if len(page.Messages) == 0 {
				break
			}
			tasks += len(page.Messages)
		}
	}
	return []sideResult{{Records: int64(tasks), Seconds: time.Since(start).Seconds()}}, nil
}

// noResults are the results of rounds whose tasks are only selected.
type noResults struct{}

// Progress implements sweep.Results.
func (noResults) Progress(context.Context, sweep.RoundQuery) (sweep.Progress, error) {
	return sweep.Progress{}, nil
}

// Counts implements sweep.Results.
func (noResults) Counts(context.Context, sweep.RoundQuery) (sweep.RoundCounts, bool, error) {
	return sweep.RoundCounts{}, false, nil
}

// noQueue is a queue of tasks that are not published.
type noQueue struct{}

// End implements sweep.Queue.
func (noQueue) End(context.Context) (sweep.Offsets, error) { return nil, nil }

// Handled implements sweep.Queue.
func (noQueue) Handled(context.Context, sweep.Offsets) (bool, error) { return false, nil }

func seconds(sides []sideResult) (m measurement) {
	for _, s := range sides {
		m.ours = append(m.ours, s.Seconds)
	}
	return m
}
