package app

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/retry"
)

// gathered are records that are read when n callers have asked for them.
type gathered struct {
	asks chan chan struct{}
	n    int
}

func (g gathered) run() {
	var waiting []chan struct{}
	for ask := range g.asks {
		if waiting = append(waiting, ask); len(waiting) < g.n {
			continue
		}
		for _, w := range waiting {
			close(w)
		}
		waiting = nil
	}
}

func (g gathered) Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	answer := make(chan struct{})
	g.asks <- answer
	select {
	case <-answer:
		return make([]*pb.CopyRecord, len(copies)), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Fresh reads of many tasks are combined, even with one worker.
func TestFreshReadsHoldNoWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 50
		b := kafkatest.New(t, kafkatest.Options{})
		for i := range n {
			b.Send(deletes(fmt.Sprint(i)))
		}
		reads := gathered{make(chan chan struct{}), n}
		go reads.run()
		defer close(reads.asks)
		done := 0
		deleter(t, b.Config(), 1, 20*time.Second, func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
			records, err := parkedRecords{records: reads}.Fresh(ctx, make([]schemas.Copy, 2))
			if err != nil || len(records) != 2 {
				return nil, fmt.Errorf("got %d records: %w", len(records), err)
			}
			done++
			return nil, nil
		})
		if done != n {
			t.Errorf("%d deletes of one destination went on, want %d", done, n)
		}
	})
}

// numbers are records that count their reads and call during in each.
type numbers struct {
	reads  *atomic.Int64
	takes  time.Duration
	during func(reading int64)
}

func (n numbers) Fresh(_ context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	reading := n.reads.Add(1)
	time.Sleep(n.takes)
	if n.during != nil {
		n.during(reading)
	}
	return []*pb.CopyRecord{{Manifest: &pb.Record{Size: reading}}}, nil
}

// A delete that waits for a worker after its records were read reads them again, without holding a
// worker. If it resumes soon, or their age does not matter, they are read once.
func TestParkedRecordsAreFresh(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		age, busy time.Duration // busy is the worker
		want      int64
	}{
		"goes on at once":        {maxDeleteAge, 0, 1},
		"waits for some seconds": {maxDeleteAge, maxDeleteAge, 1},
		"waits for a long task":  {maxDeleteAge, 10 * time.Minute, 2},
		"waits for a moment":     {maxDeleteAge, maxDeleteAge + time.Second, 2},
		"of any age":             {0, 10 * time.Minute, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				for _, item := range []string{"decides", "is busy"} {
					b.Send(deletes(item))
				}
				cfg := b.Config()
				cfg.Metrics = metrics.New(prometheus.NewRegistry())
				reads := numbers{new(atomic.Int64), 100 * time.Millisecond, func(reading int64) {
					if busy := cfg.Metrics.State()[0].Busy; reading > 1 && busy > 0 {
						t.Error("the records are read again by a task that holds a worker")
					}
				}}
				var got atomic.Int64
				deleter(t, cfg, 1, 20*time.Minute, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					if d.Body.(*pb.DeletionCommand).GetItem() == "is busy" {
						time.Sleep(tt.busy)
						return nil, nil
					}
					records, err := parkedRecords{reads, tt.age}.Fresh(ctx, make([]schemas.Copy, 1))
					if err == nil {
						got.Store(records[0].GetManifest().GetSize())
					}
					return nil, err
				})
				if got.Load() != tt.want || reads.reads.Load() != tt.want {
					t.Errorf("decided from reading %d of %d, want %d", got.Load(), reads.reads.Load(), tt.want)
				}
			})
		})
	}
}

// Records that are too old after every attempt are unknown.
func TestParkedRecordsNeverFresh(t *testing.T) {
	t.Parallel()
	reads := numbers{reads: new(atomic.Int64)}
	if _, err := (parkedRecords{reads, -1}).Fresh(t.Context(),
		make([]schemas.Copy, 1)); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v, want an error that says that nothing is known", err)
	}
	if got := reads.reads.Load(); got != maxFreshReads {
		t.Errorf("read %d times, want %d", got, maxFreshReads)
	}
}

// A backlog of deletes keeps all workers busy although each task waits for its records.
func TestBacklogOfDeletes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const (
			n, workers    = 2000, 4
			before, after = 5 * time.Millisecond, 20 * time.Millisecond
		)
		b := kafkatest.New(t, kafkatest.Options{Partitions: 4, ShortFetches: true})
		all := make([]schemas.Message, n)
		for i := range all {
			all[i] = deletes(fmt.Sprint(i))
		}
		b.Send(all...)
		reads := numbers{reads: new(atomic.Int64), takes: 500 * time.Millisecond}
		var mu sync.Mutex
		var first, last time.Time
		deleter(t, b.Config(), workers, 10*time.Minute,
			func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
				mu.Lock()
				if first.IsZero() {
					first = time.Now()
				}
				mu.Unlock()
				time.Sleep(before)
				if _, err := (parkedRecords{reads, maxDeleteAge}).Fresh(ctx, make([]schemas.Copy, 1)); err != nil {
					return nil, err
				}
				time.Sleep(after)
				mu.Lock()
				last = time.Now()
				mu.Unlock()
				return nil, nil
			})
		const ideal = n * (before + after) / workers
		if took := last.Sub(first); took > ideal*5/4 {
			t.Errorf("%d deletes took %v, want hardly more than the %v of their work", n, took, ideal)
		}
		if got := reads.reads.Load(); got != n {
			t.Errorf("read %d times, want once for each of %d deletes", got, n)
		}
	})
}

// deletes is a command to delete a copy.
func deletes(item string) schemas.Message {
	return schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
		Id: schemas.ID("deletion", item), Account: "acme", Space: "photos", Item: item,
		SourceStore: "1", DestinationStore: "2", Deleted: timestamppb.New(time.UnixMilli(1_700_000_000_000)),
	}}
}

// deleter runs a Pool of the role deleter for d.
func deleter(t *testing.T, cfg client.Config, workers int, d time.Duration, h kafka.Handler) {
	t.Helper()
	p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RoleDeleter, Topics: []schemas.Topic{schemas.Deletions},
		CoPartitioned: true, Workers: workers, Describe: deletionWork}, h)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	must(t, p.Run(ctx))
}
