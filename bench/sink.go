package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/bench/clickhousebench"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/kafka"
)

// Sink measures the role sink and returns the rows in table order. Broker, role and ClickHouse are processes on this
// machine.
func Sink(ctx context.Context, cfg Config) (rows []Row, err error) {
	r := newRunner(cfg)
	defer func() { err = errors.Join(err, r.prefilled.close(ctx)) }()
	return r.measure(ctx, r.sinkFigures())
}

func (r *runner) sinkFigures() []figure {
	a := r.amounts
	return []figure{
		{fmt.Sprintf("sink: %s full audit rows with the state of their copies, from record to committed row",
			count(a.sinkRows)),
			"rows/s", "clickhouse-go's row interface, insert of the rows alone", target{">=", 0.6, true}, r.recordsToRows},
		{fmt.Sprintf("sink: most memory of its process over %s rows", count(a.sinkRows)), "MiB", "",
			target{op: "<=", bound: 256}, r.memory},
		{"sink: from before a change is published until its row is read, p99 at 100/s", "s", "",
			target{op: "<=", bound: 2}, r.readable},
		{fmt.Sprintf("sink: over 64 partitions, %s rows", count(a.sinkRows)), "rows/s", "over 3",
			target{">=", 0.8, true}, r.manyPartitions},
		{fmt.Sprintf("sink: into tables of %s rows", count(a.prefilled)), "rows/s", "into empty ones",
			target{">=", 0.8, true}, r.intoPrefilled},
		r.auditRow(),
		{"disk: a merged bit log row", "B", "", target{op: "<=", bound: 120}, r.checkBytes},
		{fmt.Sprintf("reads: fresh, 1,000 copies of %s in the order of a sweep", count(a.prefilled)), "ms", "",
			target{op: "<=", bound: 100}, r.freshInOrder},
		{fmt.Sprintf("reads: fresh, 1,000 copies anywhere among %s", count(a.prefilled)), "ms", "",
			target{op: "<=", bound: 300}, r.freshAnywhere},
		{fmt.Sprintf("reads: granules a part for an item's timeline, %s rows", count(a.prefilled)), "granules", "",
			target{op: "<=", bound: 2}, r.timeline},
	}
}

// testClickHouse is an embedded ClickHouse server with its own directory.
type testClickHouse struct {
	dir       string
	engine    *embedded.Server
	databases []*clickhouse.DB
}

func (r *runner) newClickHouse(ctx context.Context) (s *testClickHouse, err error) {
	s = &testClickHouse{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	if s.dir, err = os.MkdirTemp("", "millrace-bench-"); err != nil {
		return s, fmt.Errorf("make a directory for the engine: %w", err)
	}
	s.engine, err = embedded.Start(ctx, embedded.Config{Dir: s.dir, Progress: r.cfg.Progress})
	return s, err
}

// close closes the databases, stops the server and removes its directory.
func (s *testClickHouse) close(ctx context.Context) (err error) {
	if s == nil {
		return nil
	}
	for _, db := range s.databases {
		err = errors.Join(err, db.Close())
	}
	if s.engine != nil {
		err = errors.Join(err, s.engine.Close(context.WithoutCancel(ctx)))
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

// database creates a database with all tables.
func (s *testClickHouse) database(ctx context.Context, name string) (*clickhouse.DB, *clickhousebench.Bench, error) {
	cfg := clickhouse.Config{Addresses: []string{s.engine.Addr()}, Database: name}
	db, err := clickhouse.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	s.databases = append(s.databases, db)
	if _, err := migrate.Run(ctx, db); err != nil {
		return nil, nil, err
	}
	b, err := clickhousebench.Open(s.engine.Addr(), name)
	return db, b, err
}

// newFilledBroker starts a broker with n changes. The caller closes it.
func (r *runner) newFilledBroker(ctx context.Context, partitions, n int) (*testBroker, error) {
	g, err := r.newBrokerWith(ctx, partitions)
	if err != nil {
		return nil, err
	}
	if err := g.Fill(ctx, prefix, n, archive(n).record); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// runSink starts a broker with changes and runs the role in a child process until all changes are stored in the
// database.
func (r *runner) runSink(
	ctx context.Context, s *testClickHouse, database string, partitions int,
) (res sideResult, err error) {
	n := r.amounts.sinkRows
	g, err := r.newFilledBroker(ctx, partitions, n)
	if err != nil {
		return res, err
	}
	defer g.close()
	return runSide(ctx, r.cfg.Self, "sinkside", "--broker", g.Addr(), "--clickhouse", s.engine.Addr(), "--database",
		database,
		"--partitions", fmt.Sprint(partitions), "--records", fmt.Sprint(n))
}

// storeRounds runs the role on empty tables once per round, and calls done after each round.
func (r *runner) storeRounds(
	ctx context.Context, rounds int, done func(s *testClickHouse, round int, res sideResult) error,
) (err error) {
	s, err := r.newClickHouse(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	for i := range rounds {
		name := fmt.Sprint("round", i)
		if _, _, err := s.database(ctx, name); err != nil {
			return err
		}
		res, err := r.runSink(ctx, s, name, partitions)
		if err != nil {
			return err
		}
		if err := done(s, i, res); err != nil {
			return err
		}
	}
	return nil
}

// recordsToRows runs the role and its peer in turns, each on empty tables.
func (r *runner) recordsToRows(ctx context.Context) (m measurement, err error) {
	n := r.amounts.sinkRows
	changes := archive(n).changes
	err = r.storeRounds(ctx, r.amounts.fewRounds(), func(s *testClickHouse, round int, res sideResult) error {
		m.ours = append(m.ours, res.rate())
		r.sinkPeakBytes = max(r.sinkPeakBytes, res.Bytes)
		_, peer, err := s.database(ctx, fmt.Sprint("peer", round))
		if err != nil {
			return err
		}
		start := time.Now()
		for first := 0; first < n; first += batchRows {
			batch := changes[first:min(n, first+batchRows)]
			if err := peer.InsertByRows(ctx, batch, uint64(first)); err != nil { //nolint:gosec // it counts up
				return err
			}
		}
		m.peers = append(m.peers, float64(n)/time.Since(start).Seconds())
		return nil
	})
	return m, err
}

const batchRows = 50_000

// memory returns the peak memory of the role's process. It uses the rounds of recordsToRows if that figure has run.
func (r *runner) memory(ctx context.Context) (m measurement, err error) {
	if r.sinkPeakBytes == 0 {
		err = r.storeRounds(ctx, 1, func(_ *testClickHouse, _ int, res sideResult) error {
			r.sinkPeakBytes = res.Bytes
			return nil
		})
	}
	m.ours = []float64{float64(r.sinkPeakBytes) / (1 << 20)}
	return m, err
}

// manyPartitions compares topics of 64 partitions with topics of 3.
func (r *runner) manyPartitions(ctx context.Context) (m measurement, err error) {
	s, err := r.newClickHouse(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	for i := range min(2, r.amounts.rounds) {
		for _, one := range []struct {
			partitions int
			rates      *[]float64
		}{{64, &m.ours}, {3, &m.peers}} {
			name := fmt.Sprintf("round%dof%d", i, one.partitions)
			if _, _, err := s.database(ctx, name); err != nil {
				return m, err
			}
			res, err := r.runSink(ctx, s, name, one.partitions)
			if err != nil {
				return m, err
			}
			*one.rates = append(*one.rates, res.rate())
		}
	}
	return m, nil
}

// prefilledServer returns a server with amounts.prefilled audit rows and copies in database millrace. The first call
// creates it.
func (r *runner) prefilledServer(ctx context.Context) (*testClickHouse, *clickhouse.DB, error) {
	if r.prefilled != nil {
		return r.prefilled, r.prefilled.databases[0], nil
	}
	s, err := r.newClickHouse(ctx)
	if err != nil {
		return nil, nil, err
	}
	r.prefilled = s
	db, b, err := s.database(ctx, "millrace")
	if err != nil {
		return nil, nil, err
	}
	for _, f := range []clickhousebench.Fill{clickhousebench.AuditRows(), clickhousebench.StateRows()} {
		fmt.Fprintf(r.cfg.Progress, "    filling %s with %s rows\n", f.Table, count(r.amounts.prefilled))
		if err := b.Fill(ctx, f, r.amounts.prefilled); err != nil {
			return nil, nil, err
		}
	}
	return s, db, nil
}

// intoPrefilled compares prefilled tables with empty ones.
func (r *runner) intoPrefilled(ctx context.Context) (m measurement, err error) {
	s, _, err := r.prefilledServer(ctx)
	if err != nil {
		return m, err
	}
	b, err := clickhousebench.Open(s.engine.Addr(), "millrace")
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	for i := range min(2, r.amounts.rounds) {
		empty := fmt.Sprint("empty", i)
		if _, _, err := s.database(ctx, empty); err != nil {
			return m, err
		}
		for _, into := range []struct {
			database string
			rates    *[]float64
		}{{"millrace", &m.ours}, {empty, &m.peers}} {
			res, err := r.runSink(ctx, s, into.database, partitions)
			if err != nil {
				return m, err
			}
			*into.rates = append(*into.rates, res.rate())
		}
		if err := r.dropStored(ctx, b, r.amounts.sinkRows); err != nil {
			return m, err
		}
	}
	return m, nil
}

// dropStored removes the n rows that a sink has stored; another sink would treat them as duplicates and store nothing.
// A different number of rows is an error.
func (r *runner) dropStored(ctx context.Context, b *clickhousebench.Bench, n int) error {
	stored, err := b.Number(ctx,
		"SELECT toFloat64(count()) FROM {db}.audit_log WHERE topic = 'changes' AND account != ''")
	if err != nil {
		return err
	}
	if stored != float64(n) {
		return fmt.Errorf("the sink stored %.0f rows, not %d", stored, n)
	}
	return b.Exec(ctx, "ALTER TABLE {db}.audit_log DROP PARTITION "+epoch().AsTime().Format("200601"))
}

// readable publishes changes at a steady rate and measures the time until their rows can be read.
func (r *runner) readable(ctx context.Context) (m measurement, err error) {
	s, err := r.newClickHouse(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	_, b, err := s.database(ctx, "millrace")
	if err != nil {
		return m, err
	}
	g, err := r.newBroker(ctx)
	if err != nil {
		return m, err
	}
	defer g.close()
	a, err := SinkSide{Broker: g.Addr(), ClickHouse: s.engine.Addr(), Database: "millrace",
		Partitions: partitions}.open(ctx)
	if err != nil {
		return m, err
	}
	defer a.Close()
	p, err := kafka.NewProducer(config(g.Addr()), "bench")
	if err != nil {
		return m, err
	}
	defer p.Close()
	n := r.amounts.steadyChanges
	var (
		mu   sync.Mutex
		sent = map[string]time.Time{}
	)
	all := archive(n).changes
	publish := serviceFunc(func(ctx context.Context) error {
		start := time.Now()
		for i, c := range all {
			sleep(ctx, time.Until(start.Add(time.Duration(i)*10*time.Millisecond)))
			mu.Lock()
			sent[c.GetItem()] = time.Now()
			mu.Unlock()
			if err := p.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: c}); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return nil
	})
	err = runWhile(ctx, rolesService(a, schemas.RoleSink), func(ctx context.Context) error {
		return runWhile(ctx, publish, func(ctx context.Context) (err error) {
			m.ours, err = readLatencies(ctx, b, "SELECT item FROM {db}.audit_log_v", n, func(item string) time.Time {
				mu.Lock()
				defer mu.Unlock()
				return sent[item]
			})
			return err
		})
	})
	m.ours = []float64{percentile(m.ours, 99)}
	return m, err
}

// auditRow is a figure of the areas sink and main.
func (r *runner) auditRow() figure {
	return figure{"disk: a merged audit row", "B", "", target{op: "<=", bound: 125}, r.auditBytes}
}

// auditBytes stores audit rows as the sink does, merges the parts and returns the bytes per row.
func (r *runner) auditBytes(ctx context.Context) (measurement, error) {
	n := r.amounts.sinkRows
	changes := archive(n).changes
	return r.bytes(ctx, schemas.Changes, "audit_log", n, func(i int) schemas.Body { return changes[i] })
}

// checkBytes is auditBytes for rows of the bit log.
func (r *runner) checkBytes(ctx context.Context) (measurement, error) {
	n := r.amounts.sinkRows
	changes := archive(n).changes
	return r.bytes(ctx, schemas.FixityResults, "bit_log", n, func(i int) schemas.Body { return passedCheck(changes[i]) })
}

// bytes stores n rows of a table and returns their merged size per row.
func (r *runner) bytes(
	ctx context.Context, topic schemas.Topic, table string, n int, body func(i int) schemas.Body,
) (m measurement, err error) {
	s, err := r.newClickHouse(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	db, b, err := s.database(ctx, "millrace")
	if err != nil {
		return m, err
	}
	logs := clickhouse.NewSink(db)
	for first := 0; first < n; first += batchRows {
		var batch []*schemas.Delivery
		for i := first; i < min(n, first+batchRows); i++ {
			one := body(i)
			rec, err := schemas.Encode(schemas.Message{Topic: topic, Body: one})
			if err != nil {
				return m, err
			}
			batch = append(batch, &schemas.Delivery{
				Topic: topic, From: topic, Incarnation: 7, Offset: int64(i), Timestamp: time.Now(),
				Body: one, Hash: schemas.Hash(rec.Value),
			})
		}
		if err := logs.Store(ctx, batch); err != nil {
			return m, err
		}
	}
	size, err := b.BytesPerRow(ctx, table)
	m.ours = []float64{size}
	return m, err
}

// freshInOrder reads the records of consecutive copies in a store, as a sweep does.
func (r *runner) freshInOrder(ctx context.Context) (measurement, error) {
	return r.fresh(ctx, func(rng *rand.Rand) func(i int) (item, store int) {
		first, store := rng.IntN(r.amounts.prefilled/2-freshCopies), rng.IntN(2)
		return func(i int) (int, int) { return first + i, store }
	})
}

// freshAnywhere reads the records of random copies.
func (r *runner) freshAnywhere(ctx context.Context) (measurement, error) {
	return r.fresh(ctx, func(rng *rand.Rand) func(i int) (item, store int) {
		return func(int) (int, int) { return rng.IntN(r.amounts.prefilled / 2), rng.IntN(2) }
	})
}

const freshCopies = 1000

// fresh reads records as the copier and the checker do. Each round chooses different copies.
func (r *runner) fresh(
	ctx context.Context, choose func(*rand.Rand) func(i int) (item, store int),
) (m measurement, err error) {
	s, db, err := r.prefilledServer(ctx)
	if err != nil {
		return m, err
	}
	if err := waitMerges(ctx, s); err != nil {
		return m, err
	}
	reader := read.NewReader(db, reachedWatermark{}, read.ReaderConfig{})
	rng := rand.New(rand.NewPCG(5, 6)) //nolint:gosec // the same in each run
	err = runWhile(ctx, reader, func(ctx context.Context) error {
		for range 3 * r.amounts.rounds { // the first rounds read from disk
			chosen := choose(rng)
			var copies []schemas.Copy
			for i := range freshCopies {
				n, store := chosen(i)
				space, item := clickhousebench.Item(n, r.amounts.prefilled)
				copies = append(copies, schemas.Copy{
					Account: "acme", Store: fmt.Sprint(1 + store), Space: space, Item: item,
				})
			}
			start := time.Now()
			records, err := reader.Fresh(ctx, copies)
			if err != nil {
				return err
			}
			m.ours = append(m.ours, float64(time.Since(start))/float64(time.Millisecond))
			for i, rec := range records {
				if rec.GetManifest().GetState() != pb.RecordState_RECORD_STATE_LIVE {
					return fmt.Errorf("no record of %v", copies[i])
				}
			}
		}
		return nil
	})
	return m, err
}

// waitMerges returns when no merge has run for a second. Merges of earlier inserts would compete for the processors.
func waitMerges(ctx context.Context, s *testClickHouse) (err error) {
	b, err := clickhousebench.Open(s.engine.Addr(), "millrace")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	last := time.Now()
	return pollUntil(ctx, func() (bool, error) {
		n, err := b.Number(ctx, "SELECT toFloat64(count()) FROM system.merges WHERE database = '{db}'")
		if n > 0 {
			last = time.Now()
		}
		return time.Since(last) >= time.Second, err
	})
}

// reachedWatermark is a watermark that is always reached.
type reachedWatermark struct{}

// Wait implements read.Watermark.
func (reachedWatermark) Wait(context.Context) (map[schemas.Role][]schemas.Progress, error) {
	return nil, nil
}

// timeline measures how many granules per part the engine reads for the timeline of one item.
func (r *runner) timeline(ctx context.Context) (m measurement, err error) {
	s, db, err := r.prefilledServer(ctx)
	if err != nil {
		return m, err
	}
	b, err := clickhousebench.Open(s.engine.Addr(), "millrace")
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	for _, n := range []int{0, r.amounts.prefilled / 7, r.amounts.prefilled/2 - 1} {
		space, item := clickhousebench.Item(n, r.amounts.prefilled)
		parts, err := b.Parts(ctx, "audit_log")
		if err != nil {
			return m, err
		}
		ctx, most := clickhousebench.Measured(ctx)
		events, err := read.Timeline(ctx, db, "acme", space, item)
		if err != nil {
			return m, err
		}
		if len(events) == 0 {
			return m, fmt.Errorf("no events of %s/%s", space, item)
		}
		m.ours = append(m.ours, float64(most())/parts)
	}
	m.ours = []float64{slices.Max(m.ours)}
	return m, nil
}
