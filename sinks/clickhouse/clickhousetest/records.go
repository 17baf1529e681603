package clickhousetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// Epoch is the time of the first event in tests.
var Epoch = time.Date(2026, 3, 4, 5, 6, 7, 891_234_567, time.UTC)

// At returns the time d after Epoch.
func At(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(Epoch.Add(d)) }

// Millis truncates a time to milliseconds, as most columns do.
func Millis(t *timestamppb.Timestamp) *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: t.GetSeconds(), Nanos: t.GetNanos() / 1e6 * 1e6}
}

// Change returns an add of photos/<item> in store 1 of acme, d after Epoch.
func Change(item string, d time.Duration) *pb.Change {
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: item, Version: "v" + d.String(),
		Size: 1000 + int64(d.Seconds()), MediaType: "image/jpeg", Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		Digests: map[string]string{"md5": schemas.ID(item, d.String()),
			"sha256": schemas.ID(item, d.String(), "a") + schemas.ID(item, d.String(), "b")},
		Time: At(d), User: "ann", Agent: "emit", Origin: pb.Origin_ORIGIN_CLIENT,
	}
	c.Id = schemas.ChangeID(c)
	return c
}

// Changes returns n adds of different items, a minute apart.
func Changes(n int) []schemas.Body {
	all := make([]schemas.Body, n)
	for i := range all {
		all[i] = Change(fmt.Sprintf("2026/img-%06d.jpg", i), time.Duration(i)*time.Minute)
	}
	return all
}

// Deliver returns deliveries of one partition with consecutive offsets. No Change is ahead of Kafka's time.
func Deliver(topic schemas.Topic, from int64, bodies ...schemas.Body) []*schemas.Delivery {
	batch := make([]*schemas.Delivery, len(bodies))
	for i, b := range bodies {
		batch[i] = &schemas.Delivery{
			Topic: topic, From: topic, Incarnation: 7, Partition: 3, Offset: from + int64(i),
			Timestamp: Epoch.Add(time.Hour), Body: b, Attempt: 1,
		}
		if c, ok := b.(*pb.Change); ok && c.GetTime().AsTime().After(batch[i].Timestamp) {
			batch[i].Timestamp = c.GetTime().AsTime()
		}
	}
	return batch
}

// Complete returns the completion of a Change with the digests of the word of; nil if b reports no content.
func Complete(b schemas.Body, of string) *pb.Change {
	c, ok := b.(*pb.Change)
	if !ok || c.GetOp() != pb.Op_OP_ADD && c.GetOp() != pb.Op_OP_UPDATE {
		return nil
	}
	c = proto.CloneOf(c)
	c.Op, c.Digests = pb.Op_OP_ADD, map[string]string{"md5": schemas.ID(of), "sha256": schemas.ID(of) + schemas.ID(of)}
	c.Provenance, c.Origin, c.User, c.Agent = pb.Provenance_PROVENANCE_VERIFIED, pb.Origin_ORIGIN_FIXITY, "", "checker"
	c.Evidence = map[string]string{schemas.Completes: c.GetId()}
	c.Id = schemas.ChangeID(c)
	return c
}

// Count returns the number of rows of a table or a query.
func Count(t testing.TB, db *clickhouse.DB, from string) string {
	t.Helper()
	return Value(t, db, "SELECT toString(count()) FROM {db}."+from)
}

// Value runs a query that returns one string.
func Value(t testing.TB, db *clickhouse.DB, statement string, args ...any) string {
	t.Helper()
	all, err := Strings(t.Context(), db, statement, args...)
	if err != nil || len(all) != 1 {
		t.Fatalf("%s: got %d rows, error %v", statement, len(all), err)
	}
	return all[0]
}

// Connect opens a DB and closes it at the end of the test.
func Connect(t *testing.T, cfg clickhouse.Config) *clickhouse.DB {
	t.Helper()
	db, err := clickhouse.Open(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// StoreBoth stores bodies of one topic in the log and in the state.
func StoreBoth(t testing.TB, db *clickhouse.DB, topic schemas.Topic, from int64, bodies ...schemas.Body) {
	t.Helper()
	batch := Deliver(topic, from, bodies...)
	if err := clickhouse.NewSink(db).Store(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if err := clickhouse.NewState(db).Store(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
}

// RecordOf returns the expected record of a change of the content.
func RecordOf(c *pb.Change) *pb.Record {
	return &pb.Record{
		State: pb.RecordState_RECORD_STATE_LIVE, Digests: c.GetDigests(), Provenance: c.GetProvenance(), Size: c.GetSize(),
		SizeUnknown: c.GetSizeUnknown(),
		Version:     c.GetVersion(), Etag: c.GetEtag(), Time: c.GetTime(), ChangeId: c.GetId(), SourceTime: c.GetSourceTime(),
		SourceVersion: c.GetSourceVersion(), MediaType: c.GetMediaType(), Properties: c.GetProperties(),
		Origin: c.GetOrigin(),
	}
}

// EvidenceOf returns the fields of r that a fresh read returns from the audit log.
func EvidenceOf(r *pb.Record) *pb.Record {
	return &pb.Record{
		State: r.GetState(), Digests: r.GetDigests(), Provenance: r.GetProvenance(), Time: r.GetTime(),
		Reported: r.GetReported(), ChangeId: r.GetChangeId(),
		SizeUnknown: r.GetState() != pb.RecordState_RECORD_STATE_NONE,
	}
}

// NoRecord returns the record of a copy that was never reported.
func NoRecord() *pb.Record { return &pb.Record{State: pb.RecordState_RECORD_STATE_NONE} }

// Compare reports a message that differs from the wanted one.
func Compare(t *testing.T, what string, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// Result returns a final pass of the bytes of a change, started d after Epoch.
func Result(c *pb.Change, d time.Duration) *pb.FixityResult {
	e := &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: c.GetDigests(),
		Provenance: pb.Provenance_PROVENANCE_VERIFIED}
	return &pb.FixityResult{
		Id: schemas.ID(c.GetId(), d.String()), Task: "task", Account: c.GetAccount(), Store: c.GetStore(),
		Space: c.GetSpace(), Item: c.GetItem(),
		StoreKind: "file", Reason: pb.FixityReason_FIXITY_REASON_SWEEP, Verdict: pb.Verdict_VERDICT_PASS, Row: 1, Final: true,
		EvidenceLevel: 4, Content: e, Stored: e, Manifest: e, Audit: e, BytesRead: c.GetSize(),
		Worker: "w1", Host: "h1", Software: "millrace/1", Round: "round-1",
		Started: At(d), Finished: At(d + time.Second),
	}
}

// Strings runs a query and returns its first column, which has strings.
func Strings(ctx context.Context, db *clickhouse.DB, statement string, args ...any) ([]string, error) {
	rows, err := db.Writer().Query(ctx, db.Name(statement), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}
