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

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// writeBatches writes changes of items to a partition, each in its own batch.
func writeBatches(t *testing.T, b *kafkatest.Broker, partition int32, items ...string) {
	t.Helper()
	write, stop := b.Writer()
	defer stop()
	for _, item := range items {
		rec, err := schemas.Encode(parttest.Change(item))
		must(t, err)
		write(kafkatest.Record{Record: rec, Partition: partition})
	}
}

// A batch that cannot be parsed is fetched a few times. Then its partition is stopped with an error that
// contains instructions, and the others are read. After these instructions, the partition is read from the
// next batch on.
func TestDamagedBatch(t *testing.T) {
	t.Parallel()
	for name, reader := range readers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
				var (
					h   handled
					log logtest.Lines
				)
				cfg := b.Config()
				cfg.Unreadables = client.NewUnreadables()
				cfg.Log = log.Log()
				writeBatches(t, b, 0, "a", "b")
				b.WriteDamaged(schemas.Changes, 0, 3)
				writeBatches(t, b, 0, "c")
				writeBatches(t, b, 1, "d")
				part, err := reader(cfg, &h)
				must(t, err)
				time.AfterFunc(time.Minute, func() { writeBatches(t, b, 1, "e") })
				time.AfterFunc(90*time.Second, func() {
					stopped := cfg.Unreadables.Batches()
					if len(stopped) != 1 || stopped[0].Coordinates() != "changes/0@2" {
						t.Fatalf("stopped %v", stopped)
					}
					want := "Make a replica with intact bytes the leader"
					if name != "Table" {
						want = "--topic millrace.changes:0 --reset-offsets --to-offset 5 --execute"
					}
					if got := stopped[0].Err.Error(); !strings.Contains(got, want) {
						t.Errorf("%s, want it to say %s", got, want)
					}
				})
				if err := parttest.Run(t, 2*time.Minute, part); err != nil {
					t.Error(err)
				}
				if got := h.take(); !slices.Equal(got, []string{"a", "b", "d", "e"}) {
					t.Errorf("handled %v", got)
				}
				if n := strings.Count(log.String(), "\n"); n > 100 {
					t.Errorf("%d lines of log", n)
				}
				if name == "Table" {
					return
				}
				role := schemas.RolePlanner
				if name == "BatchGroup" {
					role = schemas.RoleSink
				}
				if got := b.Committed(role, schemas.Changes)[0]; got != 2 {
					t.Errorf("committed %d", got)
				}
				parttest.Commit(t, cfg, "millrace."+string(role), schemas.Changes, 5)
				if got := cfg.Unreadables.Batches(); len(got) > 0 {
					t.Errorf("stopped %v, which are no longer ours", got)
				}
				if part, err = reader(cfg, &h); err != nil {
					t.Fatal(err)
				}
				if err := parttest.Run(t, time.Minute, part); err != nil {
					t.Error(err)
				}
				if got := h.take(); !slices.Equal(got, []string{"c"}) || len(cfg.Unreadables.Batches()) > 0 {
					t.Errorf("handled %v behind the batch, stopped %v", got, cfg.Unreadables.Batches())
				}
			})
		})
	}
}

// The instructions for a batch that cannot be read skip no record before it: the command is to be run when
// the group has finished these, however long they take and however often the process is restarted.
func TestBatchBehindUnfinishedRecords(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		write func(*testing.T, *kafkatest.Broker)
		next  int64
	}{
		"damaged": {func(_ *testing.T, b *kafkatest.Broker) { b.WriteDamaged(schemas.Changes, 0, 3) }, 5},
		"too long": {func(t *testing.T, b *kafkatest.Broker) {
			rec := messageRecord(t, parttest.Change("x"))
			rec.Value = bytes.Repeat([]byte("x"), 70<<20)
			writeForeign(t, b, rec)
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "too long" {
				need.Full(t) // it takes long; TestOversizedBatch has such a batch without a record before it
			}
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				cfg := b.Config()
				cfg.Unreadables = client.NewUnreadables()
				writeBatches(t, b, 0, "long", "b")
				tt.write(t, b)
				writeBatches(t, b, 0, "c")
				var h handled
				once := func(d, long time.Duration) {
					t.Helper()
					p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
						func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
							if d.Offset == 0 {
								select {
								case <-ctx.Done():
									return nil, ctx.Err()
								case <-time.After(long):
								}
							}
							h.add(d)
							return nil, nil
						})
					must(t, err)
					must(t, parttest.Run(t, d, p))
				}
				committed := func() int64 { return b.Committed(schemas.RolePlanner, schemas.Changes)[0] }
				for range 2 {
					time.AfterFunc(time.Minute, func() {
						stopped := cfg.Unreadables.Batches()
						if len(stopped) != 1 || committed() != 0 {
							t.Fatalf("stopped %v, committed %d", stopped, committed())
						}
						got := stopped[0].Err.Error()
						for _, want := range []string{
							"--describe --group millrace.planner shows CURRENT-OFFSET 2 for it. Then stop the role",
							fmt.Sprintf("--reset-offsets --to-offset %d --execute", tt.next),
						} {
							if !strings.Contains(got, want) {
								t.Errorf("%s, want it to say %s", got, want)
							}
						}
					})
					once(5*time.Minute, time.Hour)
				}
				once(10*time.Minute, 5*time.Minute)
				if got := h.take(); !slices.Contains(got, "long") || committed() != 2 {
					t.Fatalf("handled %v, committed %d", got, committed())
				}
				time.AfterFunc(time.Minute, func() { // nothing before the batch is running
					got := cfg.Unreadables.Batches()[0].Err.Error()
					if strings.Contains(got, "CURRENT-OFFSET") || !strings.Contains(got, fmt.Sprintf("--to-offset %d", tt.next)) {
						t.Errorf("%s, want it to say --to-offset %d at once", got, tt.next)
					}
				})
				once(5*time.Minute, 0)
				parttest.Commit(t, cfg, "millrace.planner", schemas.Changes, tt.next)
				once(time.Minute, 0)
				if got := h.take(); !slices.Equal(got, []string{"c"}) {
					t.Errorf("handled %v behind the batch", got)
				}
			})
		})
	}
}

// A batch that the broker finds damaged stops only its partition, after a few fetches, like one that the
// client cannot parse. The number of fetches is bounded.
func TestBatchRejectedByBroker(t *testing.T) {
	t.Parallel()
	for name, reader := range readers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
				var h handled
				cfg := b.Config()
				cfg.Unreadables = client.NewUnreadables()
				writeBatches(t, b, 0, "a")
				writeBatches(t, b, 1, "b")
				_, asked := b.FailRead(schemas.Changes, 0, kerr.CorruptMessage, 1000)
				time.AfterFunc(time.Minute, func() { writeBatches(t, b, 1, "c") })
				time.AfterFunc(90*time.Second, func() {
					if got := cfg.Unreadables.Batches(); len(got) != 1 || got[0].Coordinates() != "changes/0@0" {
						t.Errorf("stopped %v", got)
					}
				})
				part, err := reader(cfg, &h)
				must(t, err)
				if err := parttest.Run(t, 2*time.Minute, part); err != nil {
					t.Error(err)
				}
				if got := h.take(); !slices.Equal(got, []string{"b", "c"}) {
					t.Errorf("handled %v", got)
				}
				if n := asked(); n > 100 { // a table that is not complete also lists the topic
					t.Errorf("%d fetches of the batch", n)
				}
			})
		})
	}
}

// A partition that the broker does not serve for now is requested about once a second, with occasional
// warnings. The others are read meanwhile, and it is read when the broker serves it again.
func TestTemporarilyUnavailablePartition(t *testing.T) {
	t.Parallel()
	outage := time.Duration(need.Amount(4, 10, 10)) * time.Minute
	for name, reader := range readers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
				var (
					h   handled
					log logtest.Lines
				)
				cfg := b.Config()
				cfg.Log = log.Log()
				writeBatches(t, b, 0, "a")
				mend, asked := b.FailRead(schemas.Changes, 0, kerr.KafkaStorageError, 10*int(outage/time.Second))
				time.AfterFunc(outage/2, func() { writeBatches(t, b, 1, "b") })
				time.AfterFunc(outage-time.Second, func() {
					if got := h.take(); !slices.Equal(got, []string{"b"}) {
						t.Errorf("handled %v of the other partition", got)
					}
					if n := strings.Count(log.String(), "KAFKA_STORAGE_ERROR"); n == 0 || n > int(outage/time.Minute) {
						t.Errorf("%d warnings", n)
					}
					if n := asked(); n < 100 || n > 2*int(outage/time.Second) {
						t.Errorf("%d fetches in %v", n, outage)
					}
					mend()
				})
				part, err := reader(cfg, &h)
				must(t, err)
				if err := parttest.Run(t, outage+time.Minute, part); err != nil {
					t.Error(err)
				}
				if got := h.take(); !slices.Equal(got, []string{"a"}) {
					t.Errorf("handled %v once the broker had it again", got)
				}
			})
		})
	}
}
