package kafka_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// The committed offset is beyond the end of the log: a sink reads the partition again from its start, whether
// the client detected that by the epoch of the commit or the broker rejected the offset.
func TestBatchGroupRereadsATruncatedLog(t *testing.T) {
	t.Parallel()
	for name, epoch := range map[string]int32{"found by the epoch": 0, "refused by the broker": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
				for i := range 20 {
					m := parttest.Change("a") // one partition
					rec, err := schemas.Encode(m)
					must(t, err)
					b.Write(kafkatest.Record{Record: rec, Partition: int32(i % 2)})
				}
				b.Trim(schemas.Changes, 0, 3)
				parttest.CommitOf(t, b.Config(), "millrace.sink",
					kadm.Offset{Topic: string(schemas.Changes), At: 50, LeaderEpoch: epoch})
				tb := &memoryTable{}
				must(t, parttest.Run(t, 10*time.Second, sink(t, b, kafka.BatchConfig{}, tb)))
				tb.check(t, 17, false) // of 10 in each, 3 are trimmed
				if tb.forgot != 3 {
					t.Errorf("forgot %d, want the partition that was read again, and both at the end", tb.forgot)
				}
				if got := b.Committed(schemas.RoleSink, schemas.Changes); got[0] != 10 || got[1] != 10 {
					t.Errorf("committed %v, want 10 and 10", got)
				}
			})
		})
	}
}

// A log is truncated while it is read: queued records are dropped, everything is read again from the start
// and stored, and the batch in Store is not committed.
func TestBatchGroupRereadsWhileItRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, cfg := parttest.Bare(t, 2, 1)
		p, err := kafka.NewProducer(cfg, "test")
		must(t, err)
		defer p.Close()
		must(t, p.Publish(t.Context(), parttest.Numbered(20, 20)...))
		tb, lossy := &memoryTable{hang: true}, new(atomic.Bool)
		cluster.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(req kmsg.Request) (kmsg.Response, error, bool) {
			if !lossy.CompareAndSwap(true, false) {
				return nil, nil, false
			}
			resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
			for _, rt := range req.(*kmsg.OffsetForLeaderEpochRequest).Topics {
				topic := kmsg.NewOffsetForLeaderEpochResponseTopic()
				topic.Topic = rt.Topic
				for _, rp := range rt.Partitions {
					part := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
					part.Partition, part.LeaderEpoch, part.EndOffset = rp.Partition, rp.LeaderEpoch, 8
					topic.Partitions = append(topic.Partitions, part)
				}
				resp.Topics = append(resp.Topics, topic)
			}
			return resp, nil, true
		})
		g, err := kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleSink,
			Topics: []schemas.Topic{schemas.Changes}, MaxRows: 15}, tb)
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		time.Sleep(5 * time.Second) // the first batch hangs, the others wait
		lossy.Store(true)
		for node := range int32(2) { // on any broker, it has a new epoch
			must(t, cluster.MoveTopicPartition("millrace.changes", 0, node))
		}
		tb.mu.Lock()
		tb.hang = false
		tb.mu.Unlock()
		appendRecord(t, cfg) // a fetch finds the new epoch
		time.Sleep(30 * time.Second)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if lossy.Load() {
			t.Fatal("the client did not ask for the end of its epoch")
		}
		tb.check(t, 21, false)
		if tb.forgot != 2 {
			t.Errorf("forgot %d, want 2", tb.forgot)
		}
	})
}

// appendRecord adds one record.
func appendRecord(t *testing.T, cfg client.Config) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...), kgo.Dialer(cfg.Dialer), kgo.DisableClientMetrics())
	must(t, err)
	defer cl.Close()
	rec, err := schemas.Encode(parttest.Change("late"))
	must(t, err)
	must(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: "millrace.changes", Key: rec.Key,
		Value: rec.Value}).FirstErr())
}
