package clickhouse_test

import (
	"encoding/hex"
	"fmt"
	"testing"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

const benchRows = 50_000

// BenchmarkSinkAudit stores batches of full audit rows, beside the row interface of
// clickhouse-go with the same rows and the same settings, and the state of the same copies.
func BenchmarkSinkAudit(b *testing.B) {
	db := clickhousetest.Open(b)
	logs, state := clickhouse.NewSink(db), clickhouse.NewState(db)
	batch := deliver(schemas.Changes, 0, benchChanges()...)
	from := int64(0)
	advance := func() {
		for i, d := range batch {
			d.Offset = from + int64(i)
		}
		from += benchRows
	}
	rate := func(b *testing.B) { b.ReportMetric(float64(benchRows*b.N)/b.Elapsed().Seconds(), "rows/s") }
	b.Run("sink", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			advance()
			if err := logs.Store(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
		}
		rate(b)
	})
	b.Run("clickhouse-go-rows", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			advance()
			if err := storeByRows(b, db, batch); err != nil {
				b.Fatal(err)
			}
		}
		rate(b)
	})
	b.Run("state", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			advance()
			if err := state.Store(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
		}
		rate(b)
	})
}

func BenchmarkFresh(b *testing.B) {
	db := clickhousetest.Open(b)
	all := benchChanges()
	both(b, db, schemas.Changes, 0, all...)
	r := reader(b, db, reached, clickhouse.ReaderConfig{})
	for _, n := range []int{1, 100, 1000} {
		var copies []schemas.Copy
		for i := range n {
			copies = append(copies, copyOf(all[i*(benchRows/n)].(*pb.Change)))
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := r.Fresh(b.Context(), copies); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// benchChanges are changes that look like those of an archive: ids and digests do not compress.
func benchChanges() []schemas.Body {
	all := changes(benchRows)
	for i, body := range all {
		c := body.(*pb.Change)
		c.Time = at(0)
		c.Time.Seconds += int64(i / 50)
		c.Properties = map[string]string{"creator": "ann", "batch": fmt.Sprint(i / 1000)}
		c.Id = schemas.ChangeID(c)
	}
	return all
}

// storeByRows is the peer: AppendStruct is slower, Append of a row is what most sinks do.
func storeByRows(b *testing.B, db *clickhouse.DB, batch []*schemas.Delivery) error {
	ctx := ch.Context(b.Context(), ch.WithSettings(ch.Settings{"async_insert": 0, "insert_deduplicate": 0, "optimize_on_insert": 0}))
	rows, err := db.Conn().PrepareBatch(ctx, "INSERT INTO "+db.Name("{db}.audit_log"))
	if err != nil {
		return err
	}
	defer rows.Abort()
	for _, d := range batch {
		c := d.Body.(*pb.Change)
		id, err := hex.DecodeString(c.GetId())
		if err != nil {
			return err
		}
		digests := make(map[string]string, len(c.GetDigests()))
		for k, v := range c.GetDigests() {
			raw, err := hex.DecodeString(v)
			if err != nil {
				return err
			}
			digests[k] = string(raw)
		}
		t := c.GetTime().AsTime()
		if err := rows.Append(string(id), t, uint32(t.Nanosecond()%1e6), string(d.From), d.Incarnation, uint16(d.Partition), uint64(d.Offset),
			d.Timestamp, "add", c.GetAccount(), c.GetStore(), c.GetSpace(), c.GetItem(), c.GetSourceSpace(), c.GetSourceItem(), c.GetVersion(),
			c.GetEtag(), c.GetSize(), digests, "verified", c.GetMediaType(), c.GetProperties(), c.GetAcl(), c.GetSequence(), c.GetUser(),
			c.GetAgent(), "client", c.GetCause(), nil, uint32(0), c.GetSourceVersion(), c.GetApproved(), c.GetEvidence(), uint16(258)); err != nil {
			return err
		}
	}
	return rows.Send()
}
