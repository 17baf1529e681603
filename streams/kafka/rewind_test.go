package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// A partition that cannot be stored leaves memory for the others: all but its first few records stay in
// Kafka, and are read again when it can be stored.
func TestBatchGroupOneFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 4})
		n := need.Amount(8_000, 32_000, 32_000)
		long := parttest.Numbered(n, n)
		for i := range long {
			for j := range 8 { // hex compresses to half: a fetch is part of Memory
				long[i].Body.(*pb.Change).Version += schemas.ID("long", fmt.Sprint(i, j))
			}
		}
		b.Send(long...)
		tb := &memoryTable{}
		var refused, largest atomic.Int64
		var mended atomic.Bool
		s := storeFunc{func(ctx context.Context, batch []*schemas.Delivery) error {
			if batch[0].Partition == 2 && !mended.Load() {
				if refused.Add(1) > 1 {
					largest.Store(max(largest.Load(), int64(len(batch))))
				}
				return errors.New("too many parts")
			}
			return tb.Store(ctx, batch)
		}}
		parttest.Background(t, sink(t, b, kafka.BatchConfig{Memory: int64(n) * 196}, s)) // less than it has
		time.Sleep(time.Minute)
		committed := b.Committed(schemas.RoleSink, schemas.Changes)
		if committed[2] != 0 {
			t.Errorf("%d of the refused records are committed", committed[2])
		}
		stored := tb.count()
		tb.check(t, stored, false)
		if left := n - stored; refused.Load() < 5 || left < n/5 || left > n/3 || largest.Load() > 100 {
			t.Errorf("%d of %d rows were not stored, %d batches refused, the longest of the later ones %d; "+
				"want those of one partition of four",
				left, n, refused.Load(), largest.Load())
		}
		mended.Store(true)
		time.Sleep(time.Minute)
		tb.check(t, n, false)
		if got := parttest.Sum(b.Committed(schemas.RoleSink, schemas.Changes)); got != int64(n) {
			t.Errorf("committed %d when it could be stored, want %d", got, n)
		}
	})
}

// Dead letters that the brokers refuse leave memory for the other partitions. When the brokers accept them,
// none is missing.
func TestBatchGroupLeavesMemoryWhileDeadLettersAreRefused(t *testing.T) {
	t.Parallel()
	for _, fault := range []kafkatest.Fault{kafkatest.NotDone, kafkatest.DoneNotAcknowledged} {
		t.Run(fmt.Sprint("fault ", fault), func(t *testing.T) { leavesMemory(t, fault) })
	}
}

func leavesMemory(t *testing.T, fault kafkatest.Fault) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 4})
		n := need.Amount(2_000, 16_000, 16_000)
		long := parttest.Numbered(n, n)
		for i := range long {
			for j := range 8 {
				long[i].Body.(*pb.Change).Version += schemas.ID("long", fmt.Sprint(i, j))
			}
		}
		b.Send(long...)
		tb := &memoryTable{}
		s := storeFunc{func(ctx context.Context, batch []*schemas.Delivery) error {
			if batch[0].Partition == 2 {
				return retry.Permanent(errors.New("refused"))
			}
			return tb.Store(ctx, batch)
		}}
		mend := b.FailProduce(schemas.Dead, fault, -1)
		parttest.Background(t, sink(t, b, kafka.BatchConfig{Memory: int64(n) << 7}, s)) // less than the partition has
		time.Sleep(2 * time.Minute)
		if got := b.Committed(schemas.RoleSink, schemas.Changes)[2]; got != 0 {
			t.Errorf("%d of the refused records are committed", got)
		}
		stored := tb.count()
		if left := n - stored; left < n/5 || left > n/3 {
			t.Errorf("%d of %d rows were not stored, want those of one partition of four", left, n)
		}
		mend()
		time.Sleep(2 * time.Minute)
		if got := parttest.Sum(b.Committed(schemas.RoleSink, schemas.Changes)); got != int64(n) {
			t.Errorf("committed %d when the dead letters were taken, want %d", got, n)
		}
		keys := map[string]bool{}
		for _, r := range b.Read(schemas.Dead) {
			keys[string(r.Key)] = true
		}
		if len(keys) != n-stored {
			t.Errorf("dead letters of %d keys, want %d", len(keys), n-stored)
		}
	})
}

// All partitions fail while the store is unavailable, usually with more read than fits. When it is back each
// record is stored once, also if no new ones arrive.
func TestBatchGroupAllFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 8})
		n := need.Amount(8_000, 20_000, 20_000)
		b.Send(parttest.Numbered(n, n)...)
		tb := &memoryTable{fail: slices.Repeat([]fault{{err: errors.New("unavailable")}}, 60)}
		parttest.Background(t, sink(t, b, kafka.BatchConfig{Memory: int64(n) * 105, MaxRows: 3000}, tb))
		time.Sleep(2 * time.Minute)
		tb.check(t, n, false)
		if got := parttest.Sum(b.Committed(schemas.RoleSink, schemas.Changes)); got != int64(n) {
			t.Errorf("committed %d, want %d", got, n)
		}
		b.Send(parttest.Change("one more"))
		time.Sleep(5 * time.Second)
		tb.check(t, n+1, false)
	})
}
