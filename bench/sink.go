package bench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/retry"
)

// sink returns the figures of the role sink and of reads of its tables. Broker, role and ClickHouse are processes on
// this machine.
func (r *runner) sink() ([]figure, error) {
	a := r.amounts
	return []figure{
		{fmt.Sprintf("sink: %s full audit rows with the state of their copies, from record to committed row",
			count(a.sinkRows)),
			"rows/s", "clickhouse-go's row interface, insert of the rows alone", ratioAtLeast(0.6), r.recordsToRows},
		{fmt.Sprintf("reads: fresh, 1,000 copies anywhere among %s", count(a.prefilled)), "ms", "", atMost(300), r.fresh},
	}, nil
}

// recordsToRows runs the role and its peer in turns, each on empty tables.
func (r *runner) recordsToRows(ctx context.Context) (measurement, error) {
	n := r.amounts.sinkRows
	changes := archive(n)
	return inTurns(r.amounts.rounds, "", func(round int) (rate float64, err error) {
		b, err := r.newDatabase(ctx, fmt.Sprint("round", round))
		if err != nil {
			return 0, err
		}
		g, err := r.newBroker(ctx)
		if err != nil {
			return 0, err
		}
		defer g.close()
		if err := g.fill(ctx, n, func(i int) schemas.Record { return encode(changes[i]) }); err != nil {
			return 0, err
		}
		res, _, err := r.runSide(ctx, "sink", &sinkSide{g.addr, b.addr, b.name, n})
		return res.rate(), err
	}, func(round int) (float64, error) {
		b, err := r.newDatabase(ctx, fmt.Sprint("peer", round))
		if err != nil {
			return 0, err
		}
		start := time.Now()
		for first := 0; first < n; first += batchRows {
			if err := b.insertByRows(ctx, changes[first:min(n, first+batchRows)], first); err != nil {
				return 0, err
			}
		}
		return float64(n) / time.Since(start).Seconds(), nil
	})
}

const batchRows = 50_000

// archive returns n changes of n items, ordered by time, all in one month, like those of a real archive: their ids and
// digests do not compress. The result is the same in each run.
func archive(n int) []*pb.Change {
	rng := rand.New(rand.NewPCG(7, 8)) //nolint:gosec // the same in each run
	digest := func(bytes int) string {
		b := make([]byte, bytes)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return hex.EncodeToString(b)
	}
	all := make([]*pb.Change, n)
	for i := range all {
		md5 := digest(16)
		c := &pb.Change{
			Op: pb.Op_OP_ADD, Account: mainAccount, Store: "1",
			Space: fmt.Sprintf("space-%02d", i*50/n), Item: fmt.Sprintf("img-%09d.tif", i), Version: md5[:16],
			Etag: md5, Size: rng.Int64N(1 << 30),
			Digests: map[string]string{"md5": md5, "sha256": digest(32)}, MediaType: "image/tiff",
			Properties: map[string]string{"creator": "ann", "batch": fmt.Sprint(i / 1000)},
			User:       fmt.Sprintf("user-%d", rng.IntN(20)),
			Agent:      "ingest/2.1", Origin: pb.Origin_ORIGIN_CLIENT, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
			Time: timestamppb.New(epoch().AsTime().Add(time.Duration(i) * 2 * time.Millisecond)),
		}
		c.Id = schemas.ChangeID(c)
		all[i] = c
	}
	return all
}

// encode returns a record as the runtime's producer encodes it.
func encode(c *pb.Change) schemas.Record {
	r, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c})
	if err != nil {
		panic(fmt.Sprintf("encode a generated change: %v", err)) // archive generates only valid changes
	}
	return r
}

// insertByRows inserts changes into audit_log with the row interface of clickhouse-go, as most sinks do: the peer of
// the sink, with the same columns and equally durable settings. The rows are of one partition of topic changes;
// first is the offset of the first row.
func (b *database) insertByRows(ctx context.Context, changes []*pb.Change, first int) error {
	ctx = ch.Context(ctx, ch.WithSettings(ch.Settings{
		"async_insert": 0, "insert_deduplicate": 0, "optimize_on_insert": 0,
	}))
	rows, err := b.conn.PrepareBatch(ctx, "INSERT INTO "+b.name+".audit_log ("+auditColumns+")")
	if err != nil {
		return fmt.Errorf("insert by rows: %w", err)
	}
	defer func() { _ = rows.Abort() }() // after Send it does nothing
	now := time.Now()
	for i, c := range changes {
		id, err := hex.DecodeString(c.GetId())
		if err != nil {
			return fmt.Errorf("insert by rows: %w", err)
		}
		digests := make(map[string]string, len(c.GetDigests()))
		for k, v := range c.GetDigests() {
			raw, err := hex.DecodeString(v)
			if err != nil {
				return fmt.Errorf("insert by rows: %w", err)
			}
			digests[k] = string(raw)
		}
		t := c.GetTime().AsTime()
		off := uint64(first + i)           //nolint:gosec // it counts up
		ns := uint32(t.Nanosecond() % 1e6) //nolint:gosec // below 1e6
		if err := rows.Append(string(id), t, ns, "changes", uint32(7), uint16(0), off,
			now, "add", c.GetAccount(), c.GetStore(), c.GetSpace(), c.GetItem(), c.GetSourceSpace(), c.GetSourceItem(),
			c.GetVersion(), c.GetEtag(), c.GetSize(), digests, "verified", c.GetMediaType(), c.GetProperties(), c.GetAcl(),
			c.GetSequence(), c.GetUser(), c.GetAgent(), "client", c.GetCause(), nil, uint32(0), "", c.GetSourceVersion(),
			c.GetApproved(), c.GetEvidence(), uint16(258),
			c.GetPropertiesUnknown(), schemas.Hash([]byte(c.GetId()))); err != nil {
			return fmt.Errorf("insert by rows: %w", err)
		}
	}
	if err := rows.Send(); err != nil {
		return fmt.Errorf("insert by rows: %w", err)
	}
	return nil
}

const auditColumns = `id, ts, ns, topic, inc, part, off, ingested, op, account, store, space, item,
  source_space, source_item, version,
  etag, size, digests, provenance, media_type, properties, acl, sequence, user, agent, origin, cause,
  source_time, source_ns, modified, source_version, approved, evidence, richness, properties_unknown, sum`

// sinkSide runs the role sink, both the logs and the state of copies, until the changes of a broker are stored in an
// existing database. The time is that of the log, and includes the time to join the groups.
type sinkSide struct {
	Broker, ClickHouse, Database string
	Records                      int
}

func (s *sinkSide) run(ctx context.Context) (res sideResult, err error) {
	b, err := openDatabase(s.ClickHouse, s.Database)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	a, err := openApp(ctx, func(cfg *settings.Config) {
		cfg.Kafka.Brokers, cfg.Kafka.Partitions = []string{s.Broker}, partitions
		cfg.Kafka.Replication, cfg.Kafka.MinInSync = 1, 1 // as testBroker's topics
		cfg.ClickHouse.Addresses, cfg.ClickHouse.Database = []string{s.ClickHouse}, s.Database
	})
	if err != nil {
		return res, err
	}
	defer a.Close()
	start := time.Now()
	err = runWhile(ctx, rolesService(a, schemas.RoleSink), func(ctx context.Context) error {
		err := pollUntil(ctx, func() (bool, error) {
			n, err := b.number(ctx, "SELECT toFloat64(count()) FROM {db}.audit_log")
			return n >= float64(s.Records), err
		})
		if err != nil {
			return err
		}
		res = sideResult{Records: int64(s.Records), Seconds: time.Since(start).Seconds()}
		return pollUntil(ctx, func() (bool, error) { // also wait for the state
			left, err := a.Lag(ctx, schemas.RoleSink, schemas.RoleState)
			return left == 0, err
		})
	})
	return res, err
}

// pollTimeout is how long pollUntil waits.
const pollTimeout = 5 * time.Minute

// pollUntil calls look every 20 ms until it is done.
func pollUntil(ctx context.Context, look func() (done bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pollTimeout,
		fmt.Errorf("rows not stored or merged within %v", pollTimeout))
	defer cancel()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		if err := retry.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

const freshCopies = 1000

// fresh reads the records of random copies, as the copier and the checker do. Each round chooses different copies.
func (r *runner) fresh(ctx context.Context) (m measurement, err error) {
	b, err := r.filledDatabase(ctx)
	if err != nil {
		return m, err
	}
	reader := read.NewReader(b.DB, reachedWatermark{}, read.ReaderConfig{})
	rng := rand.New(rand.NewPCG(5, 6)) //nolint:gosec // the same in each run
	err = runWhile(ctx, reader, func(ctx context.Context) error {
		for range 5 * r.amounts.rounds { // the first rounds read from disk
			var copies []schemas.Copy
			for range freshCopies {
				space, item := filledItem(rng.IntN(r.amounts.prefilled/2), r.amounts.prefilled)
				copies = append(copies, schemas.Copy{
					Account: mainAccount, Store: fmt.Sprint(1 + rng.IntN(2)), Space: space, Item: item,
				})
			}
			start := time.Now()
			records, err := reader.Fresh(ctx, copies)
			if err != nil {
				return err
			}
			m.ours = append(m.ours, float64(time.Since(start))/float64(time.Millisecond))
			for i, rec := range records {
				manifest, audit := rec.GetManifest(), rec.GetAudit()
				if manifest.GetState() != pb.RecordState_RECORD_STATE_LIVE ||
					!maps.Equal(manifest.GetDigests(), audit.GetDigests()) {
					return fmt.Errorf("the records of %v do not agree: %v and %v", copies[i], manifest, audit)
				}
			}
		}
		return nil
	})
	return m, err
}

// reachedWatermark is a watermark that is always reached.
type reachedWatermark struct{}

// Wait implements read.Watermark.
func (reachedWatermark) Wait(context.Context) (map[schemas.Role][]schemas.Progress, error) {
	return nil, nil
}
