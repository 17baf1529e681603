package harness

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
)

// Record is a record as stored by the brokers.
type Record struct {
	schemas.Record       // Topic is without prefix
	Partition      int32 // for writing, -1: partition by key
	Offset         int64
	Timestamp      time.Time // for writing: the create time, zero means now
}

// Header returns the value of a header, empty if there is none.
func (r Record) Header(key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// Write produces records unchanged and in order. Use Encode to make records of messages.
func (c *Cluster) Write(t testing.TB, cfg client.Config, recs ...Record) {
	t.Helper()
	byKey := kgo.StickyKeyPartitioner(nil)
	partitioner := kgo.BasicConsistentPartitioner(func(topic string) func(*kgo.Record, int) int {
		p := byKey.ForTopic(topic)
		return func(r *kgo.Record, n int) int {
			if r.Partition >= 0 {
				return int(r.Partition)
			}
			return p.Partition(r, n)
		}
	})
	cl, err := c.client(kgo.RecordPartitioner(partitioner))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	out := make([]*kgo.Record, len(recs))
	for i, r := range recs {
		out[i] = &kgo.Record{Topic: cfg.Prefix + string(r.Topic), Key: r.Key, Value: r.Value, Partition: r.Partition,
			Timestamp: r.Timestamp}
		for _, h := range r.Headers {
			out[i].Headers = append(out[i].Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	if err := cl.ProduceSync(ctx, out...).FirstErr(); err != nil {
		t.Fatalf("write records: %v", err)
	}
}

// BeginTransaction produces records unchanged and in order in a transaction of a producer. end commits or aborts it.
func (c *Cluster) BeginTransaction(
	t testing.TB, cfg client.Config, producer string, recs ...Record,
) (end func(commit bool)) {
	t.Helper()
	cl, err := c.client(kgo.TransactionalID(cfg.Prefix+producer), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatalf("begin a transaction: %v", err)
	}
	for _, r := range recs {
		rec := &kgo.Record{Topic: cfg.Prefix + string(r.Topic), Key: r.Key, Value: r.Value, Partition: r.Partition}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		if err := cl.ProduceSync(ctx, rec).FirstErr(); err != nil {
			t.Fatalf("write records in a transaction: %v", err)
		}
	}
	return func(commit bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), startLimit)
		defer cancel()
		if err := cl.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err != nil {
			t.Fatalf("end a transaction: %v", err)
		}
	}
}

// WriteTo produces a record by its key to the brokers of cfg, and returns it with its partition and offset.
func WriteTo(t testing.TB, cfg client.Config, r Record) Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	rec, err := cl.ProduceSync(ctx, &kgo.Record{Topic: cfg.Prefix + string(r.Topic), Key: r.Key, Value: r.Value}).First()
	if err != nil {
		t.Fatalf("write a record: %v", err)
	}
	r.Partition, r.Offset = rec.Partition, rec.Offset
	return r
}

// Encode returns a message as a record, to be partitioned by its key.
func Encode(t testing.TB, m schemas.Message) Record {
	t.Helper()
	r, err := schemas.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return Record{Record: r, Partition: -1}
}

// Reader reads topics from the start, without a consumer group.
type Reader struct {
	cfg   client.Config
	names []string
	cl    *kgo.Client
	at    map[string]map[int32]int64 // the next offset
}

// Reader returns a Reader that is closed when t ends.
func (c *Cluster) Reader(t testing.TB, cfg client.Config, topics ...schemas.Topic) *Reader {
	t.Helper()
	r := &Reader{cfg: cfg, at: map[string]map[int32]int64{}}
	for _, topic := range topics {
		name := cfg.Prefix + string(topic)
		r.names, r.at[name] = append(r.names, name), map[int32]int64{}
	}
	cl, err := c.client(kgo.ConsumeTopics(r.names...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	r.cl = cl
	return r
}

// CatchUp returns the records since the last call, up to the current end offsets. Records of a partition are in order.
// On error it returns the records read so far.
func (r *Reader) CatchUp(ctx context.Context) (recs []Record, err error) {
	ends, err := kadm.NewClient(r.cl).ListEndOffsets(ctx, r.names...)
	if err != nil {
		return nil, fmt.Errorf("list end offsets: %w", err)
	}
	if err := ends.Error(); err != nil {
		return nil, fmt.Errorf("list end offsets: %w", err)
	}
	for !r.reached(ends) {
		fetches := r.cl.PollFetches(ctx)
		fetches.EachRecord(func(rec *kgo.Record) {
			r.at[rec.Topic][rec.Partition] = rec.Offset + 1
			recs = append(recs, r.record(rec))
		})
		if err := ctx.Err(); err != nil {
			return recs, fmt.Errorf("read %v: %w", r.names, err)
		}
	}
	return recs, nil
}

func (r *Reader) reached(ends kadm.ListedOffsets) bool {
	reached := true
	ends.Each(func(o kadm.ListedOffset) {
		reached = reached && r.at[o.Topic][o.Partition] >= o.Offset
	})
	return reached
}

func (r *Reader) record(rec *kgo.Record) Record {
	out := Record{
		Record:    schemas.Record{Topic: schemas.Topic(rec.Topic[len(r.cfg.Prefix):]), Key: rec.Key, Value: rec.Value},
		Partition: rec.Partition, Offset: rec.Offset, Timestamp: rec.Timestamp,
	}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, schemas.Header{Key: h.Key, Value: h.Value})
	}
	return out
}

// Read returns all records of a topic.
func (c *Cluster) Read(t testing.TB, cfg client.Config, topic schemas.Topic) []Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	recs, err := c.Reader(t, cfg, topic).CatchUp(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return recs
}
