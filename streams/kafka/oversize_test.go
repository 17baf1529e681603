package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// writeForeign writes records like a foreign producer, which compresses and does not limit their size.
func writeForeign(t *testing.T, b *kafkatest.Broker, recs ...*kgo.Record) {
	t.Helper()
	cfg := b.Config()
	cl, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...), kgo.Dialer(cfg.Dialer), kgo.DisableClientMetrics(),
		kgo.ProducerBatchMaxBytes(90<<20), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	must(t, err)
	defer cl.Close()
	for _, rec := range recs {
		rec.Topic = cfg.Prefix + rec.Topic
		must(t, cl.ProduceSync(t.Context(), rec).FirstErr())
	}
}

// messageRecord returns a message as a record that the test can change.
func messageRecord(t *testing.T, m schemas.Message) *kgo.Record {
	t.Helper()
	enc, err := schemas.Encode(m)
	must(t, err)
	rec := &kgo.Record{Topic: string(enc.Topic), Key: enc.Key, Value: enc.Value}
	for _, h := range enc.Headers {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return rec
}

// A record that is small only while compressed becomes a dead letter with all its bytes, and the records
// after it are handled.
func TestOversizedRecordIsADeadLetter(t *testing.T) {
	t.Parallel()
	garbage := bytes.Repeat([]byte("x"), 5<<20)
	fails := func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
		return nil, retry.Wait(context.DeadlineExceeded, time.Now().Add(time.Hour)) // into a lane
	}
	change1 := parttest.Change("a").Body.(*pb.Change)
	value := func(m schemas.Message) *kgo.Record {
		r := messageRecord(t, m)
		r.Value = garbage
		return r
	}
	header := func(m schemas.Message) *kgo.Record {
		r := messageRecord(t, m)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "x", Value: garbage})
		return r
	}
	key := func(m schemas.Message) *kgo.Record {
		r := messageRecord(t, m)
		r.Key = garbage
		return r
	}
	back := func(topic schemas.Topic, r *kgo.Record) *kgo.Record {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: schemas.HeaderOriginTopic, Value: []byte(r.Topic)})
		r.Topic = string(topic)
		return r
	}
	group := func(t *testing.T, b *kafkatest.Broker) runnable { return parttest.Planner(t, b, fails) }
	copies := func(t *testing.T, b *kafkatest.Broker) runnable {
		p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleCopier,
			Topics: []schemas.Topic{schemas.DuplicationHigh}}, fails)
		must(t, err)
		return p
	}
	delay := func(t *testing.T, b *kafkatest.Broker) runnable { return parttest.Delayer(t, b) }
	sink := func(t *testing.T, b *kafkatest.Broker) runnable {
		g, err := kafka.NewBatchGroup(b.Config(), kafka.BatchConfig{Role: schemas.RoleSink,
			Topics: []schemas.Topic{schemas.Changes}}, discard{})
		must(t, err)
		return g
	}
	for name, tt := range map[string]struct {
		rec  *kgo.Record
		read schemas.Topic
		role schemas.Role
		run  func(*testing.T, *kafkatest.Broker) runnable
	}{
		"value, group":   {value(parttest.Change("a")), schemas.Changes, schemas.RolePlanner, group},
		"headers, group": {header(parttest.Change("a")), schemas.Changes, schemas.RolePlanner, group},
		"key, group":     {key(parttest.Change("a")), schemas.Changes, schemas.RolePlanner, group},
		"again, group": {back(schemas.Again(schemas.RolePlanner), value(parttest.Change("a"))),
			schemas.Again(schemas.RolePlanner),
			schemas.RolePlanner, group},
		"value, pool":   {value(parttest.Command(change1)), schemas.DuplicationHigh, schemas.RoleCopier, copies},
		"headers, pool": {header(parttest.Command(change1)), schemas.DuplicationHigh, schemas.RoleCopier, copies},
		"value, sink":   {value(parttest.Change("a")), schemas.Changes, schemas.RoleSink, sink},
		"lane": {back(schemas.Delay("30s"), value(parttest.Change("a"))), schemas.Delay("30s"), schemas.RoleDelayer,
			delay},
		"key in a lane": {back(schemas.Delay("30s"), key(parttest.Change("a"))), schemas.Delay("30s"), schemas.RoleDelayer,
			delay},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.role == schemas.RoleCopier {
				need.Full(t) // a Pool of another role
			}
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				rec := *tt.rec
				writeForeign(t, b, &rec)
				must(t, parttest.Run(t, 2*time.Minute, tt.run(t, b)))
				dead := b.Read(schemas.Dead)
				if len(dead) != 1 {
					t.Fatalf("%d dead letters, want 1", len(dead))
				}
				if got := dead[0]; !bytes.Equal(got.Key, tt.rec.Key) || !bytes.Equal(got.Value, tt.rec.Value) ||
					got.Size() < len(garbage) {
					t.Errorf("the dead letter is not the written record: key of %d bytes, value of %d", len(got.Key), len(got.Value))
				}
				if got := parttest.Sum(b.Committed(tt.role, tt.read)); got != 1 {
					t.Errorf("committed %d, want 1", got)
				}
			})
		})
	}
}

type discard struct{}

func (discard) Store(context.Context, []*schemas.Delivery) error { return nil }
func (discard) Table(topic schemas.Topic) string                 { return string(topic) }
func (discard) Mark(context.Context, []schemas.Progress) error   { return nil }
func (discard) Forget(schemas.Topic, int32)                      {}

// A batch that is larger than any message may be stops its partition at once, with the offset to continue
// from. The client alone would stop reading the partition silently.
func TestOversizedBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
		writeBatches(t, b, 0, "a")
		rec := messageRecord(t, parttest.Change("b"))
		rec.Value = bytes.Repeat([]byte("x"), 70<<20)
		writeForeign(t, b, rec) // to partition 0 or 1
		cfg := b.Config()
		cfg.Unreadables = client.NewUnreadables()
		var h handled
		part, err := readers()["Pool"](cfg, &h)
		must(t, err)
		time.AfterFunc(30*time.Second, func() { writeBatches(t, b, 0, "c"); writeBatches(t, b, 1, "c") })
		time.AfterFunc(time.Minute, func() {
			stopped := cfg.Unreadables.Batches()
			if len(stopped) != 1 {
				t.Fatalf("stopped %v", stopped)
			}
			at, got := stopped[0].Offset, stopped[0].Err.Error()
			if !strings.Contains(got, "is longer, decompressed, than") ||
				!strings.Contains(got, fmt.Sprintf("--to-offset %d ", at+1)) {
				t.Errorf("got %s", got)
			}
		})
		if err := parttest.Run(t, 2*time.Minute, part); err != nil {
			t.Error(err)
		}
		if got := h.take(); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("handled %v, want a and the c of the other partition", got)
		}
		if n := len(b.Read(schemas.Dead)); n != 0 {
			t.Errorf("%d dead letters", n)
		}
	})
}

// A dead letter that is too large to return is refused, and delays no other.
func TestRedriveRefusesOversized(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		big, small := messageRecord(t, parttest.Change("a")), messageRecord(t, parttest.Change("b"))
		big.Value, small.Value = bytes.Repeat([]byte("x"), 5<<20), []byte("{")
		writeForeign(t, b, big, small)
		must(t, parttest.Run(t, time.Minute, parttest.Planner(t, b, parttest.Plan)))
		d, err := deadletter.New(b.Config())
		must(t, err)
		defer d.Close()
		got, err := d.Redrive(t.Context(), deadletter.Query{}, deadletter.Order{Who: "ann"})
		if err != nil || got.Done != 1 || got.Refused != 1 ||
			!strings.Contains(got.FirstRefusal.Error(), "cannot be redriven: key, value and headers are") {
			t.Errorf("got %+v, %v", got, err)
		}
		if n := len(b.Read(schemas.Again(schemas.RolePlanner))); n != 1 {
			t.Errorf("%d records came back, want 1", n)
		}
	})
}
