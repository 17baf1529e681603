package kafka_test

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A slowSink has one table, and records when each record was stored and when each call of Store began.
type slowSink struct {
	memoryTable
	takes time.Duration

	mu    sync.Mutex
	began []time.Time
	done  map[string]time.Time // by item
}

func (s *slowSink) Table(schemas.Topic) string { return "log" }

func (s *slowSink) Store(ctx context.Context, batch []*schemas.Delivery) error {
	s.mu.Lock()
	s.began = append(s.began, time.Now())
	s.mu.Unlock()
	time.Sleep(s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range batch {
		s.done[item(d)] = time.Now()
	}
	return s.memoryTable.Store(ctx, batch)
}

// A record is stored at once if no other batch of its table is being stored and the last one began long
// enough ago. Otherwise it is stored when its batch is complete or old. Partitions take turns, and with many
// of them batches become older.
func TestStoredAtOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		takes    time.Duration
		records  int           // [100]
		between  time.Duration // two records
		parts    int32         // that the records go to in turns
		perSec   int
		late     time.Duration // maximum time between a record and the end of its Store
		inSecond int           // maximum number of calls of Store within any second
	}{
		"one record a second": {between: time.Second, parts: 1, late: 60 * time.Millisecond, inSecond: 2},
		"twenty a second": {between: 50 * time.Millisecond, parts: 1, late: 310 * time.Millisecond,
			inSecond: 5},
		"twenty a second, twice a second": {between: 50 * time.Millisecond, parts: 1, perSec: 2,
			late: 560 * time.Millisecond, inSecond: 3},
		"a slow table": {between: 50 * time.Millisecond, parts: 1, takes: 600 * time.Millisecond,
			late: 1660 * time.Millisecond, inSecond: 2},
		"a slow table of two partitions": {between: 50 * time.Millisecond, parts: 2, takes: 600 * time.Millisecond,
			late: 1860 * time.Millisecond, inSecond: 4},
		"partitions take turns": {between: 50 * time.Millisecond, parts: 2, late: 580 * time.Millisecond,
			inSecond: 5},
		"a thousand a second": {records: need.Amount(1100, 1500, 1500), between: time.Millisecond, parts: 1,
			late: 1060 * time.Millisecond, inSecond: 4},
		"the same, over two partitions": {records: 1500, between: time.Millisecond, parts: 2,
			late: 1060 * time.Millisecond, inSecond: 4},
		"many more partitions": {records: need.Amount(600, 1000, 1000), between: 10 * time.Millisecond, parts: 64,
			late: 4310 * time.Millisecond, inSecond: 18},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.parts == 2 && tt.records > 0 {
				need.Full(t)
			}
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: tt.parts, ShortFetches: true})
				s := &slowSink{takes: tt.takes, done: map[string]time.Time{}}
				parttest.Background(t, sink(t, b, kafka.BatchConfig{PartsPerSecond: tt.perSec}, s))
				time.Sleep(10 * time.Second)
				sent := map[string]time.Time{}
				write, stop := b.Writer()
				defer stop()
				for i := range cmp.Or(tt.records, 100) {
					r, err := schemas.Encode(parttest.Change(fmt.Sprint(i)))
					must(t, err)
					sent[fmt.Sprint(i)] = time.Now()
					write(kafkatest.Record{Record: r, Partition: int32(i) % tt.parts})
					time.Sleep(tt.between)
				}
				time.Sleep(6 * time.Second)
				s.mu.Lock()
				defer s.mu.Unlock()
				for item, at := range sent {
					if took := s.done[item].Sub(at); s.done[item].IsZero() || took > tt.late {
						t.Errorf("record %s was stored after %v, want %v at most", item, took, tt.late)
					}
				}
				for i, at := range s.began {
					if n := i + tt.inSecond; n < len(s.began) && s.began[n].Sub(at) < time.Second {
						t.Errorf("%d stores began within %v, want %d a second", tt.inSecond+1, s.began[n].Sub(at), tt.inSecond)
						break
					}
				}
			})
		})
	}
}

// Stored records are committed soon, so that fresh reads do not wait long.
func TestCommittedSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1, ShortFetches: true})
		parttest.Background(t, sink(t, b, kafka.BatchConfig{}, &memoryTable{}))
		time.Sleep(10 * time.Second)
		adm, err := admin.New(b.Config())
		must(t, err)
		defer adm.Close()
		var worst time.Duration
		for i := range 100 {
			b.Send(parttest.Change(fmt.Sprint(i)))
			start := time.Now()
			must(t, parttest.Committed(t.Context(), adm, schemas.Changes, schemas.RoleSink))
			worst = max(worst, time.Since(start))
		}
		if worst > 600*time.Millisecond {
			t.Errorf("committed after %v at worst", worst)
		}
	})
}

// A markingSink stores nothing, and records when Mark was called with a partition of each topic.
type markingSink struct {
	storeFunc
	mu sync.Mutex
	at map[schemas.Topic][]time.Time
}

func (m *markingSink) Mark(_ context.Context, done []schemas.Progress) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range done {
		m.at[p.Topic] = append(m.at[p.Topic], time.Now())
	}
	return nil
}

// Records that fresh reads wait for are committed soon if there are few. Other records are committed once a
// second.
func TestCommitsAreFew(t *testing.T) {
	t.Parallel()
	type bounds struct{ least, most int } // commits in 3 s, and within any second
	for name, tt := range map[string]struct {
		between time.Duration // two messages of each topic
		want    map[schemas.Topic]bounds
	}{
		"twenty a second": {50 * time.Millisecond,
			map[schemas.Topic]bounds{schemas.Changes: {10, 5}, schemas.FixityResults: {3, 2}}},
		"four hundred a second": {2500 * time.Microsecond, map[schemas.Topic]bounds{schemas.Changes: {3, 4},
			schemas.FixityResults: {3, 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1, ShortFetches: true})
				m := &markingSink{
					storeFunc: storeFunc{func(context.Context, []*schemas.Delivery) error { return nil }},
					at:        map[schemas.Topic][]time.Time{},
				}
				parttest.Background(t, sink(t, b, kafka.BatchConfig{Topics: []schemas.Topic{schemas.Changes,
					schemas.FixityResults}}, m))
				time.Sleep(10 * time.Second)
				write, stop := b.Writer()
				defer stop()
				for i := range int(3 * time.Second / tt.between) {
					var recs []kafkatest.Record
					for _, message := range []schemas.Message{parttest.Change(fmt.Sprint(i)),
						{Topic: schemas.FixityResults, Body: &pb.FixityResult{
							Id: schemas.ID("result", fmt.Sprint(i)), Account: "acme", Store: "1", Space: "maps", Item: "a",
							Verdict: pb.Verdict_VERDICT_PASS, Started: timestamppb.Now(), Finished: timestamppb.Now(),
						}}} {
						r, err := schemas.Encode(message)
						must(t, err)
						recs = append(recs, kafkatest.Record{Record: r})
					}
					write(recs...)
					time.Sleep(tt.between)
				}
				time.Sleep(3 * time.Second)
				m.mu.Lock()
				defer m.mu.Unlock()
				for topic, want := range tt.want {
					at := m.at[topic]
					if len(at) < want.least {
						t.Errorf("%d commits of %s, want %d at least", len(at), topic, want.least)
					}
					for i := range len(at) - want.most {
						if within := at[i+want.most].Sub(at[i]); within < time.Second {
							t.Errorf("%d commits of %s began within %v, want %d a second", want.most+1, topic, within, want.most)
							break
						}
					}
				}
			})
		})
	}
}
