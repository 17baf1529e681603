package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// Outputs that the brokers do not take for some minutes are published when they do: Run does not end, nothing is
// committed meanwhile, and it can be seen since when.
func TestOutputsAreRefusedForLong(t *testing.T) {
	t.Parallel()
	const away = 7 * time.Minute
	changes := []schemas.Topic{schemas.Changes}
	for name, tt := range map[string]struct {
		role schemas.Role
		out  schemas.Topic
		make func(kafka.Config) (runner, error)
	}{
		"Group": {schemas.RolePlanner, schemas.DuplicationHigh, func(cfg kafka.Config) (runner, error) {
			return kafka.NewGroup(cfg, kafka.GroupConfig{Role: schemas.RolePlanner, Topics: changes}, plan)
		}},
		"Pool": {schemas.RolePlanner, schemas.DuplicationHigh, func(cfg kafka.Config) (runner, error) {
			return kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: changes}, plan)
		}},
		"BatchGroup": {schemas.RoleSink, schemas.Dead, func(cfg kafka.Config) (runner, error) {
			return kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleSink, Topics: changes}, &table{poison: "a"})
		}},
		"Delayer": {schemas.RoleDelayer, schemas.Again(schemas.RoleCopier), func(cfg kafka.Config) (runner, error) {
			return kafka.NewDelayer(cfg)
		}},
	} {
		for _, fault := range []kafkatest.Fault{kafkatest.NotDone, kafkatest.DoneButLost} {
			t.Run(fmt.Sprintf("%s, fault %d", name, fault), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: quick()})
					cfg, _ := measured(b)
					b.Send(change("a"))
					if tt.role == schemas.RoleDelayer {
						p, err := kafka.NewProducer(cfg, "test")
						if err != nil {
							t.Fatal(err)
						}
						defer p.Close()
						waits := command(change("a").Body.(*pb.Change))
						waits.Due = time.Now().Add(time.Second)
						if err := p.Publish(t.Context(), waits); err != nil {
							t.Fatal(err)
						}
					}
					part, err := tt.make(cfg)
					if err != nil {
						t.Fatal(err)
					}
					mend := b.FailProduce(tt.out, fault, -1)
					refused := func() (since time.Time) {
						for _, s := range cfg.Metrics.State() {
							if s.Role == tt.role {
								since = s.Refused
							}
						}
						return since
					}
					background(t, part)
					time.Sleep(away)
					if d := time.Since(refused()); d < away-4*time.Minute || d > away {
						t.Errorf("refused for %v", d)
					}
					if got := b.Committed(tt.role, schemas.Changes); sum(got) != 0 {
						t.Errorf("committed %v", got)
					}
					mend()
					for since := time.Now(); !refused().IsZero(); time.Sleep(10 * time.Second) {
						if time.Since(since) > 5*time.Minute {
							t.Fatal("still refused")
						}
					}
					time.Sleep(10 * time.Second) // until it is committed
					if tt.role != schemas.RoleDelayer && sum(b.Committed(tt.role, schemas.Changes)) != 1 {
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

// Long work goes on while an output of another task is refused, and is not begun again.
func TestLongWorkOutlivesRefusedOutputs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(change("long"), change("short"))
		var calls atomic.Int32
		mend := b.FailProduce(schemas.DuplicationHigh, kafkatest.NotDone, -1)
		background(t, pool(t, b, kafka.PoolConfig{}, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if d.Body.(*pb.Change).GetItem() == "long" {
				calls.Add(1)
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(5 * time.Minute):
				}
			}
			return plan(ctx, d)
		}))
		time.Sleep(6 * time.Minute)
		mend()
		time.Sleep(2 * time.Minute)
		if got := items(b, schemas.DuplicationHigh); calls.Load() != 1 || !slices.Equal(got, []string{"long", "short"}) {
			t.Errorf("%d calls, outputs %v", calls.Load(), got)
		}
	})
}

// The outputs of tasks that were at work while their topic was made again reach the new one.
func TestOutputsToATopicMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
		b.Send(change("first"))
		background(t, pool(t, b, kafka.PoolConfig{}, plan))
		time.Sleep(20 * time.Second)
		b.Recreate(schemas.DuplicationHigh, 2)
		b.Send(numbered(n, n)...)
		time.Sleep(2 * time.Minute)
		if got := len(slices.Compact(items(b, schemas.DuplicationHigh))); got != n {
			t.Errorf("%d outputs in the new topic, want %d", got, n)
		}
	})
}
