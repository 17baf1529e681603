package kafkabench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A PartitionConsumer consumes as most programs do: one goroutine per partition handles the records in order, and
// offsets are committed every second. Each partition has an unbounded queue, so that none waits for another. Real
// programs cannot afford that; here it is to their advantage.
type PartitionConsumer struct {
	Broker, Topic, Group string
	Handle               func(ctx context.Context, key, value []byte)
}

// Run handles records until ctx is done.
func (c PartitionConsumer) Run(ctx context.Context) error {
	w := &partitionWorkers{ctx: ctx, handle: c.Handle, queues: map[int32]chan []*kgo.Record{}}
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(c.Broker), kgo.DisableClientMetrics(),
		kgo.ConsumerGroup(c.Group), kgo.ConsumeTopics(c.Topic),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.AutoCommitMarks(), kgo.AutoCommitInterval(time.Second), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(w.assigned), kgo.OnPartitionsRevoked(w.revoked), kgo.OnPartitionsLost(w.revoked),
	)
	if err != nil {
		return fmt.Errorf("consume by partition: %w", err)
	}
	defer w.wait()
	defer cl.CloseAllowingRebalance()
	for {
		fetches := cl.PollRecords(ctx, 10_000)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("consume by partition: %w", err)
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			w.queues[p.Partition] <- p.Records // callbacks cannot run while a poll is held
		})
		cl.AllowRebalance()
	}
}

// partitionQueue is the capacity of a partition's queue, in polls. A benchmark never fills it.
const partitionQueue = 1 << 14

type partitionWorkers struct {
	ctx    context.Context // that of Run: workers stop when it ends
	handle func(ctx context.Context, key, value []byte)
	queues map[int32]chan []*kgo.Record // by partition; changes only while no poll is held
	wg     sync.WaitGroup
}

func (w *partitionWorkers) assigned(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
	for _, ids := range parts {
		for _, id := range ids {
			queue := make(chan []*kgo.Record, partitionQueue)
			w.queues[id] = queue
			w.wg.Go(func() { w.work(cl, queue) })
		}
	}
}

func (w *partitionWorkers) work(cl *kgo.Client, queue <-chan []*kgo.Record) {
	for recs := range queue {
		for _, rec := range recs {
			if w.ctx.Err() != nil {
				return
			}
			w.handle(w.ctx, rec.Key, rec.Value)
			cl.MarkCommitRecords(rec)
		}
	}
}

// revoked closes the queues of partitions. In benchmarks, with one member, that happens only at the end.
func (w *partitionWorkers) revoked(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	for _, ids := range parts {
		for _, id := range ids {
			close(w.queues[id])
			delete(w.queues, id)
		}
	}
}

func (w *partitionWorkers) wait() { w.wg.Wait() }
