package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A weighingSink measures the records that it holds, and is slow.
type weighingSink struct {
	now, most, heap, rows atomic.Int64
	want                  int64
	once                  sync.Once // closes done
	done                  chan struct{}
}

func (s *weighingSink) Store(_ context.Context, batch []*schemas.Delivery) error {
	var weight int64
	for _, d := range batch {
		weight += int64(len(d.Key) + len(d.Value))
		for _, h := range d.Headers {
			weight += int64(len(h.Key) + len(h.Value))
		}
	}
	if held := s.now.Add(weight); held > s.most.Load() {
		s.most.Store(held)
	}
	defer s.now.Add(-weight)
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); int64(m.HeapAlloc) > s.heap.Load() {
		s.heap.Store(int64(m.HeapAlloc))
	}
	<-time.After(20 * time.Millisecond) // like an insert
	if s.rows.Add(int64(len(batch))) >= s.want {
		s.once.Do(func() { close(s.done) })
	}
	return nil
}

func (*weighingSink) Table(schemas.Topic) string                     { return "t" }
func (*weighingSink) Mark(context.Context, []schemas.Progress) error { return nil }
func (*weighingSink) Forget(schemas.Topic, int32)                    {}

// The dead letters that a sink holds fit into its memory, although most of their size is headers, and
// although it polls many records at a time from a topic of small records.
func TestMemoryCountsHeaders(t *testing.T) {
	n := need.Amount(10_000, 100_000, 100_000)
	b := kafkatest.New(t, kafkatest.Options{Partitions: 4, RealTime: true, Loopback: true})
	stack := bytes.Repeat([]byte("goroutine 1 [running]: "), 8<<10/23)
	var recs []kafkatest.Record
	for i := range n {
		rec, err := schemas.Encode(parttest.Change(fmt.Sprint(i)))
		must(t, err)
		rec.Topic = schemas.Dead
		rec.Headers = append(rec.Headers, schemas.Header{Key: schemas.HeaderOriginTopic, Value: []byte(schemas.Changes)},
			schemas.Header{Key: schemas.HeaderError, Value: stack})
		if recs = append(recs, kafkatest.Record{Record: rec, Partition: -1}); len(recs) == 1000 {
			b.Write(recs...)
			recs = nil
		}
	}
	b.Write(recs...)
	const small = 20_000
	b.Send(parttest.Numbered(small, small)...)
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	s := &weighingSink{want: int64(n + small), done: make(chan struct{})}
	parttest.Background(t, sink(t, b, kafka.BatchConfig{Topics: []schemas.Topic{schemas.Dead, schemas.Changes}}, s))
	select {
	case <-s.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%d of %d are stored", s.rows.Load(), n+small)
	}
	t.Logf("%d dead letters: %d MiB at the sink at most, a heap of %d MiB more than before", n, s.most.Load()>>20,
		(s.heap.Load()-int64(before.HeapAlloc))>>20)
	if most := kafka.BatchMemory * 5 / 4; s.most.Load() > int64(most) {
		t.Errorf("the sink held %d MiB, want at most %d", s.most.Load()>>20, most>>20)
	}
}
