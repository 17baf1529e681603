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
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// Outputs that the brokers refuse for minutes are published when they accept them: Run does not end, nothing
// is committed meanwhile, and the state shows since when.
func TestOutputsAreRefusedForLong(t *testing.T) {
	t.Parallel()
	outage := time.Duration(need.Amount(6, 7, 7)) * time.Minute
	changes := []schemas.Topic{schemas.Changes}
	for name, tt := range map[string]struct {
		role schemas.Role
		out  schemas.Topic
		make func(client.Config) (runnable, error)
	}{
		"Pool": {schemas.RolePlanner, schemas.DuplicationHigh, func(cfg client.Config) (runnable, error) {
			return kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: changes}, parttest.Plan)
		}},
		"BatchGroup": {schemas.RoleSink, schemas.Dead, func(cfg client.Config) (runnable, error) {
			return kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleSink, Topics: changes},
				&memoryTable{poison: "a"})
		}},
		"Delayer": {schemas.RoleDelayer, schemas.Again(schemas.RoleCopier), func(cfg client.Config) (runnable, error) {
			return kafka.NewDelayer(cfg)
		}},
	} {
		for _, fault := range []kafkatest.Fault{kafkatest.NotDone, kafkatest.DoneNotAcknowledged} {
			t.Run(fmt.Sprintf("%s, fault %d", name, fault), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: parttest.QuickLanes()})
					cfg, _ := withMetrics(b)
					b.Send(parttest.Change("a"))
					if tt.role == schemas.RoleDelayer {
						p, err := kafka.NewProducer(cfg, "test")
						must(t, err)
						defer p.Close()
						waits := parttest.Command(parttest.Change("a").Body.(*pb.Change))
						waits.Due = time.Now().Add(time.Second)
						must(t, p.Publish(t.Context(), waits))
					}
					part, err := tt.make(cfg)
					must(t, err)
					mend := b.FailProduce(tt.out, fault, -1)
					refused := func() (since time.Time) {
						for _, s := range cfg.Metrics.State() {
							if s.Role == tt.role {
								since = s.Refused
							}
						}
						return since
					}
					parttest.Background(t, part)
					time.Sleep(outage)
					if d := time.Since(refused()); d < outage-4*time.Minute || d > outage {
						t.Errorf("refused for %v", d)
					}
					if got := b.Committed(tt.role, schemas.Changes); parttest.Sum(got) != 0 {
						t.Errorf("committed %v", got)
					}
					mend()
					for since := time.Now(); !refused().IsZero(); time.Sleep(10 * time.Second) {
						if time.Since(since) > 5*time.Minute {
							t.Fatal("still refused")
						}
					}
					time.Sleep(10 * time.Second) // until it is committed
					if tt.role != schemas.RoleDelayer && parttest.Sum(b.Committed(tt.role, schemas.Changes)) != 1 {
						t.Error("not committed after the brokers took it")
					}
					if n := len(b.Read(tt.out)); n == 0 || fault == kafkatest.NotDone && n != 1 {
						t.Errorf("%d outputs", n)
					}
				})
			})
		}
	}
}

// A rejectingSink rejects every batch permanently.
type rejectingSink struct{ handled }

func (r *rejectingSink) Store(ctx context.Context, ds []*schemas.Delivery) error {
	return retry.Permanent(errors.Join(errors.New("refused"), r.handled.Store(ctx, ds)))
}

// While one partition refuses outputs, acknowledged ones in others are not published again, and no handler is
// called again. If the process is killed meanwhile, the next one publishes them again.
func TestAcknowledgedOutputsAreNotRepeated(t *testing.T) {
	t.Parallel()
	n, long := need.Amount(10, 50, 50), time.Duration(need.Amount(2, 20, 20))*time.Minute
	changes := []schemas.Topic{schemas.Changes}
	for name, tt := range map[string]struct {
		role schemas.Role
		out  schemas.Topic
		make func(client.Config, *handled) (runnable, error)
	}{
		"Pool": {schemas.RolePlanner, schemas.DuplicationHigh, func(cfg client.Config, h *handled) (runnable, error) {
			return kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: changes},
				func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					h.add(d)
					return parttest.Plan(ctx, d)
				})
		}},
		"BatchGroup": {schemas.RoleSink, schemas.Dead, func(cfg client.Config, _ *handled) (runnable, error) {
			return kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleSink, Topics: changes}, &rejectingSink{})
		}},
		"Delayer": {schemas.RoleDelayer, schemas.Again(schemas.RoleCopier),
			func(cfg client.Config, _ *handled) (runnable, error) { return kafka.NewDelayer(cfg) }},
	} {
		for _, fault := range []kafkatest.Fault{kafkatest.NotDone, kafkatest.DoneNotAcknowledged} {
			for _, kills := range []int{0, 1} {
				t.Run(fmt.Sprintf("%s, fault %d, %d kills", name, fault, kills), func(t *testing.T) {
					if fault == kafkatest.DoneNotAcknowledged && kills == 0 {
						need.Full(t) // the row with a kill shows more
					}
					synctest.Test(t, func(t *testing.T) {
						b := kafkatest.New(t, kafkatest.Options{Partitions: 2, Lanes: parttest.QuickLanes()})
						var (
							waits []schemas.Message
							items []string
						)
						for i := range n {
							items = append(items, fmt.Sprint(i))
							m := parttest.Command(parttest.Change(fmt.Sprint(i)).Body.(*pb.Change))
							m.Due = time.Now().Add(time.Second)
							waits = append(waits, m)
						}
						writeBatches(t, b, 0, items...) // with outputs in both partitions
						if tt.role == schemas.RoleDelayer {
							p, err := kafka.NewProducer(b.Config(), "test")
							must(t, err)
							defer p.Close()
							must(t, p.Publish(t.Context(), waits...))
						}
						var h handled
						part := func() runnable {
							part, err := tt.make(b.Config(), &h)
							must(t, err)
							return part
						}
						mend := b.FailProduceTo(tt.out, 0, fault)
						for range kills {
							must(t, parttest.Run(t, long, part()))
						}
						parttest.Background(t, part())
						time.Sleep(long)
						mend()
						time.Sleep(2 * time.Minute)
						var times [2]map[string]int // by partition and key
						times[0], times[1] = map[string]int{}, map[string]int{}
						for _, r := range b.Read(tt.out) {
							times[r.Partition][string(r.Key)]++
						}
						if got := len(times[0]) + len(times[1]); got != n || len(times[0]) == 0 {
							t.Errorf("%d outputs, %d of them in the partition that refused, want %d", got, len(times[0]), n)
						}
						for id, keys := range times {
							for key, got := range keys {
								if most := 1 + id*kills; got > most && (id == 1 || fault == kafkatest.NotDone) {
									t.Errorf("%d times in partition %d: %s", got, id, key)
								}
							}
						}
						if got := len(h.take()); tt.role == schemas.RolePlanner && got < n || got > n*(1+kills) {
							t.Errorf("%d calls of the handler", got)
						}
					})
				})
			}
		}
	}
}

// When a partition moves while outputs are refused, its new member handles it, and the old one continues with
// the others.
func TestPartitionMovesWhileOutputsAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
		writeBatches(t, b, 0, "a", "b", "c")
		writeBatches(t, b, 1, "d", "e", "f")
		mend := b.FailProduce(schemas.DuplicationHigh, kafkatest.NotDone, -1)
		parttest.Background(t, parttest.Planner(t, b, parttest.Plan))
		time.Sleep(5 * time.Minute)
		writeBatches(t, b, 1, "d") // its output waits for the first one
		time.Sleep(time.Second)
		parttest.Background(t, parttest.Planner(t, b, parttest.Plan))
		time.Sleep(5 * time.Minute)
		mend()
		time.Sleep(5 * time.Minute)
		if got := parttest.Items(b, schemas.DuplicationHigh); !slices.Equal(got, []string{"a", "b", "c", "d", "d", "e",
			"f"}) {
			t.Errorf("outputs %v", got)
		}
		if got := b.Committed(schemas.RolePlanner, schemas.Changes); parttest.Sum(got) != 7 {
			t.Errorf("committed %v", got)
		}
	})
}

// A member with a successor that calls Prepare revokes partitions only when none of its outputs can be
// published any more: records that its client still has after DrainTimeout are waited for. This runs in real time,
// like TestRebalance.
func TestOutputsArePublishedBeforePartitionsMove(t *testing.T) {
	need.Full(t)
	t.Parallel()
	b := kafkatest.New(t, kafkatest.Options{Partitions: 2, RealTime: true})
	writeBatches(t, b, 0, "a", "b", "c")
	writeBatches(t, b, 1, "d", "e", "f")
	mend := b.FailProduce(schemas.DuplicationHigh, kafkatest.NotDone, -1)
	cfg := kafka.PoolConfig{DrainTimeout: time.Second, Prepare: func(context.Context) error { return nil }}
	parttest.Background(t, pool(t, b, cfg, parttest.Plan))
	<-time.After(3 * time.Second)
	parttest.Background(t, pool(t, b, cfg, parttest.Plan))
	<-time.After(12 * time.Second) // DrainTimeout and the grace are over
	mend()
	parttest.Await(t, "all is committed", func() bool {
		return parttest.Sum(b.Committed(schemas.RolePlanner,
			schemas.Changes)) == 6
	})
	if got := parttest.Items(b, schemas.DuplicationHigh); !slices.Equal(got, []string{"a", "b", "c", "d", "e", "f"}) {
		t.Errorf("outputs %v", got)
	}
}

// The outputs of one key keep their order while the brokers refuse them and after that.
func TestRefusedOutputsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	const n = 200
	for _, fault := range []kafkatest.Fault{kafkatest.NotDone, kafkatest.DoneNotAcknowledged} {
		t.Run(fmt.Sprint("fault ", fault), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				mend := b.FailProduce(schemas.DuplicationHigh, fault, -1)
				time.AfterFunc(70*time.Second, func() { go mend() }) // some were given up, and others are sent
				b.Send(parttest.Numbered(n, 2)...)
				parttest.Background(t, pool(t, b, kafka.PoolConfig{},
					func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
						time.Sleep(500 * time.Millisecond)
						m := parttest.Command(d.Body.(*pb.Change))
						m.Body.(*pb.DuplicationCommand).ChangeVersion = fmt.Sprintf("%03d", d.Offset)
						return []schemas.Message{m}, nil
					}))
				time.Sleep(10 * time.Minute)
				newest, seen := map[string]string{}, map[string]bool{} // by item
				for _, body := range b.Bodies(schemas.DuplicationHigh) {
					c := body.(*pb.DuplicationCommand)
					if v := c.GetChangeVersion(); !seen[v] { // refused records that were written come again
						if v < newest[c.GetItem()] {
							t.Fatalf("%s of item %s follows %s", v, c.GetItem(), newest[c.GetItem()])
						}
						newest[c.GetItem()], seen[v] = v, true
					}
				}
				if len(seen) != n {
					t.Errorf("%d outputs, want %d", len(seen), n)
				}
			})
		})
	}
}

// Long tasks continue while an output of another task is refused, and are not restarted.
func TestLongWorkOutlivesRefusedOutputs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("long"), parttest.Change("short"))
		var calls atomic.Int32
		mend := b.FailProduce(schemas.DuplicationHigh, kafkatest.NotDone, -1)
		parttest.Background(t, pool(t, b, kafka.PoolConfig{},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				if d.Body.(*pb.Change).GetItem() == "long" {
					calls.Add(1)
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(5 * time.Minute):
					}
				}
				return parttest.Plan(ctx, d)
			}))
		time.Sleep(6 * time.Minute)
		mend()
		time.Sleep(2 * time.Minute)
		if got := parttest.Items(b, schemas.DuplicationHigh); calls.Load() != 1 || !slices.Equal(got, []string{"long",
			"short"}) {
			t.Errorf("%d calls, outputs %v", calls.Load(), got)
		}
	})
}

// The outputs of tasks that ran while their topic was created again reach the new topic.
func TestOutputsToRecreatedTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
		b.Send(parttest.Change("first"))
		parttest.Background(t, pool(t, b, kafka.PoolConfig{}, parttest.Plan))
		time.Sleep(20 * time.Second)
		b.Recreate(schemas.DuplicationHigh, 2)
		b.Send(parttest.Numbered(n, n)...)
		time.Sleep(2 * time.Minute)
		if got := len(slices.Compact(parttest.Items(b, schemas.DuplicationHigh))); got != n {
			t.Errorf("%d outputs in the new topic, want %d", got, n)
		}
	})
}
