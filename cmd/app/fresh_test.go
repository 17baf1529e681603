package app

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// gathered are records that are read once n have asked for them.
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

// Fresh reads of many tasks are gathered into one, though there is but one worker.
func TestFreshReadsHoldNoWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 50
		b := kafkatest.New(t, kafkatest.Options{})
		for i := range n {
			b.Send(schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
				Id: schemas.ID("deletion", fmt.Sprint(i)), Account: "acme", Space: "photos", Item: fmt.Sprint(i),
				SourceStore: "1", DestinationStore: "2",
				Deleted: timestamppb.New(time.UnixMilli(1_700_000_000_000)),
			}})
		}
		reads := gathered{make(chan chan struct{}), n}
		go reads.run()
		defer close(reads.asks)
		done := 0
		p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleDeleter, Topics: []schemas.Topic{schemas.Deletions},
			CoPartitioned: true, Workers: 1, Describe: deletionWork},
			func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
				records, err := parked{reads}.Fresh(ctx, make([]schemas.Copy, 2))
				if err != nil || len(records) != 2 {
					return nil, fmt.Errorf("got %d records: %w", len(records), err)
				}
				done++
				return nil, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := p.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if done != n {
			t.Errorf("%d deletes of one destination went on, want %d", done, n)
		}
	})
}

// numbers are records that count how often they were read; each reading takes 100 ms.
type numbers struct{ reads *atomic.Int64 }

func (n numbers) Fresh(_ context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	time.Sleep(100 * time.Millisecond)
	return []*pb.CopyRecord{{Manifest: &pb.Record{Size: n.reads.Add(1)}}}, nil
}

// A task that waits for its worker after its records were read decides from records that are read again. If it goes on
// at once they are read once.
func TestFreshRecordsAreOfNow(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		busy time.Duration // the worker
		want int64
	}{
		"goes on at once":        {0, 1},
		"waits for a moment":     {time.Second, 1},
		"waits for a long task":  {10 * time.Minute, 2},
		"waits for some seconds": {2 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				for _, item := range []string{"decides", "is busy"} {
					b.Send(schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
						Id: schemas.ID("deletion", item), Account: "acme", Space: "photos", Item: item,
						SourceStore: "1", DestinationStore: "2", Deleted: timestamppb.New(time.UnixMilli(1_700_000_000_000)),
					}})
				}
				reads := numbers{new(atomic.Int64)}
				var got atomic.Int64
				p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleDeleter, Topics: []schemas.Topic{schemas.Deletions},
					CoPartitioned: true, Workers: 1, Describe: deletionWork},
					func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
						if d.Body.(*pb.DeletionCommand).GetItem() == "is busy" {
							time.Sleep(tt.busy)
							return nil, nil
						}
						records, err := parked{reads}.Fresh(ctx, make([]schemas.Copy, 1))
						if err == nil {
							got.Store(records[0].GetManifest().GetSize())
						}
						return nil, err
					})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
				defer cancel()
				if err := p.Run(ctx); err != nil {
					t.Fatal(err)
				}
				if got.Load() != tt.want || reads.reads.Load() != tt.want {
					t.Errorf("decided from reading %d of %d, want %d", got.Load(), reads.reads.Load(), tt.want)
				}
			})
		})
	}
}
