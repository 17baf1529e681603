package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

func pool(t testing.TB, b *kafkatest.Broker, pc kafka.PoolConfig, h kafka.Handler) *kafka.Pool {
	t.Helper()
	pc.Role, pc.Topics = schemas.RolePlanner, []schemas.Topic{schemas.Changes}
	p, err := kafka.NewPool(b.Config(), pc, h)
	must(t, err)
	return p
}

// Tasks of one key run one at a time and in order, whatever their results. Different keys run concurrently.
func TestPoolOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		const keys, n = 20, 400
		b.Send(parttest.Numbered(n, keys)...)
		var (
			mu     sync.Mutex
			busy   = map[string]bool{}
			seen   = map[string][]int{}
			failed = map[string]bool{}
			most   int
		)
		start, end := time.Now(), time.Time{}
		p := pool(t, b, kafka.PoolConfig{Workers: keys},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				c := d.Body.(*pb.Change)
				mu.Lock()
				if busy[c.Item] {
					t.Errorf("item %s: two at a time", c.Item)
				}
				busy[c.Item] = true
				most = max(most, len(busy))
				mu.Unlock()
				time.Sleep(time.Duration(len(c.Version)) * 10 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				delete(busy, c.Item)
				var v int
				fmt.Sscan(c.Version, &v)
				if v%7 == 0 && !failed[c.Version] {
					failed[c.Version] = true
					return nil, errors.New("try again")
				}
				seen[c.Item] = append(seen[c.Item], v)
				end = time.Now()
				return parttest.Plan(ctx, d)
			})
		must(t, parttest.Run(t, time.Minute, p))
		for i := range keys {
			var want []int
			for v := i; v < n; v += keys {
				want = append(want, v)
			}
			if got := seen[fmt.Sprint(i)]; !slices.Equal(got, want) {
				t.Errorf("item %d: got %v, want %v", i, got, want)
			}
		}
		if took := end.Sub(start); most < keys/2 || took > 5*time.Second {
			t.Errorf("at most %d at a time, %v in all: keys do not run concurrently", most, took)
		}
		if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != n {
			t.Errorf("committed %d, want %d", got, n)
		}
		if got := len(b.Read(schemas.DuplicationHigh)); got != n {
			t.Errorf("%d outputs, want %d", got, n)
		}
	})
}

// The commit stops before the first task that is not done, however many later ones are. That task is not lost
// when the process stops, and the later ones are not repeated.
func TestPoolCommitIsContiguous(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Numbered(10, 10)...)
		h := func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if d.Body.(*pb.Change).Item == "3" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return parttest.Plan(ctx, d)
		}
		must(t, parttest.Run(t, 10*time.Second, pool(t, b, kafka.PoolConfig{DrainTimeout: time.Second}, h)))
		if got := b.Committed(schemas.RolePlanner, schemas.Changes)[0]; got != 3 {
			t.Errorf("committed %d, want 3", got)
		}
		must(t, parttest.Run(t, 10*time.Second, pool(t, b, kafka.PoolConfig{}, parttest.Plan)))
		if got := b.Committed(schemas.RolePlanner, schemas.Changes)[0]; got != 10 {
			t.Errorf("committed %d, want 10", got)
		}
		want := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
		if got := parttest.Items(b, schemas.DuplicationHigh); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// A task is not done until its outputs are acknowledged, however long that takes.
func TestPoolPublishesBeforeItCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(parttest.Change("a"))
		mend := b.FailProduce(schemas.DuplicationHigh, kafkatest.NotDone, -1)
		if err := parttest.Run(t, 10*time.Minute, pool(t, b, kafka.PoolConfig{DrainTimeout: time.Second},
			parttest.Plan)); err != nil {
			t.Error(err)
		}
		if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 0 {
			t.Errorf("committed %d without an output", got)
		}
		mend()
		must(t, parttest.Run(t, 10*time.Second, pool(t, b, kafka.PoolConfig{}, parttest.Plan)))
		if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 1 {
			t.Errorf("committed %d, want 1", got)
		}
	})
}

// A failed commit is repeated with the next one, also if the broker had applied it.
func TestPoolCommitFails(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kafkatest.Fault{"not done": kafkatest.NotDone,
		"done but lost": kafkatest.DoneNotAcknowledged} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				b.Send(parttest.Change("a"))
				b.FailCommit(schemas.RolePlanner, fault, 50)
				must(t, parttest.Run(t, 5*time.Minute, pool(t, b, kafka.PoolConfig{}, parttest.Plan)))
				if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 1 {
					t.Errorf("committed %d, want 1", got)
				}
				if got, want := parttest.Items(b, schemas.DuplicationHigh), []string{"a"}; !slices.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			})
		})
	}
}

// Five calls in place are one delivery. Messages with persistent or permanent errors and unreadable records
// wait or become dead letters.
func TestPoolErrors(t *testing.T) {
	t.Parallel()
	errNet := errors.New("connection reset")
	for name, tt := range map[string]struct {
		fail  func(d *schemas.Delivery, call int) error
		calls int
		lane  int // records that passed delay.30s
		dead  int
		takes time.Duration
	}{
		"cured in place": {func(_ *schemas.Delivery, call int) error { return until(call, 5, errNet) }, 5, 0, 0,
			time.Minute},
		"cured by a lane": {func(_ *schemas.Delivery, call int) error { return until(call, 6, errNet) }, 6, 1, 0,
			2 * time.Minute},
		"never cured": {func(*schemas.Delivery, int) error { return errNet }, 25, 1, 1, 9 * time.Minute},
		"permanent":   {func(*schemas.Delivery, int) error { return retry.Permanent(errNet) }, 1, 0, 1, time.Minute},
		"panic":       {func(*schemas.Delivery, int) error { panic("boom") }, 1, 0, 1, time.Minute},
		"unavailable": {func(_ *schemas.Delivery, call int) error {
			return until(call, 3, retry.Unavailable(errNet))
		}, 3, 1, 0, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Lanes: []client.Lane{{Name: "30s", Delay: 30 * time.Second},
					{Name: "1m", Delay: time.Minute}, {Name: "2m", Delay: 2 * time.Minute}, {Name: "3m", Delay: 3 * time.Minute}}})
				b.Send(parttest.Change("a"), parttest.Change("b"))
				b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Changes, Key: []byte("x"),
					Value: []byte("poison")}, Partition: -1})
				var calls atomic.Int32
				p := pool(t, b, kafka.PoolConfig{}, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					if d.Body.(*pb.Change).Item == "b" {
						return parttest.Plan(ctx, d)
					}
					if err := tt.fail(d, int(calls.Add(1))); err != nil {
						return nil, err
					}
					return parttest.Plan(ctx, d)
				})
				parttest.Background(t, parttest.Delayer(t, b))
				must(t, parttest.Run(t, tt.takes, p))
				outputs := 2 - tt.dead
				if got := len(b.Read(schemas.DuplicationHigh)); got != outputs || int(calls.Load()) != tt.calls {
					t.Errorf("got %d outputs of %d calls, want %d of %d", got, calls.Load(), outputs, tt.calls)
				}
				if got := len(b.Read(schemas.Delay("30s"))); got != tt.lane {
					t.Errorf("%d records in the lane, want %d", got, tt.lane)
				}
				if got := len(b.Read(schemas.Dead)); got != tt.dead+1 {
					t.Errorf("%d dead letters, want %d and the poison", got, tt.dead)
				}
				if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 3 {
					t.Errorf("committed %d, want 3", got)
				}
			})
		})
	}
}

func until(call, n int, err error) error {
	if call < n {
		return err
	}
	return nil
}

// An output with a due time is delivered when it is due, and not earlier.
func TestDueOutputs(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		in, want time.Duration // rounded down to minutes
	}{
		"past":             {-time.Hour, 0},
		"shorter than all": {10 * time.Second, 0},
		"of two lanes":     {7 * time.Minute, 7 * time.Minute},
		"of all lanes":     {17*time.Minute + 30*time.Second, 17 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "of all lanes" {
				need.Full(t)
			}
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Lanes: parttest.QuickLanes()})
				b.Send(parttest.Change("a"))
				start := time.Now()
				parttest.Background(t, parttest.Planner(t, b, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message,
					error) {
					out, err := parttest.Plan(ctx, d)
					out[0].Due = start.Add(tt.in)
					return out, err
				}))
				parttest.Background(t, parttest.Delayer(t, b))
				var got []time.Duration
				p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleCopier,
					Topics: []schemas.Topic{schemas.DuplicationHigh}},
					func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
						if d.Topic != schemas.DuplicationHigh || d.Attempt != 1 || d.Waits != 0 {
							t.Errorf("got %+v", d)
						}
						if early := time.Until(start.Add(tt.in)); early > 0 {
							t.Errorf("%v early", early)
						}
						got = append(got, time.Since(start).Truncate(time.Minute))
						return nil, nil
					})
				must(t, err)
				must(t, parttest.Run(t, max(0, tt.in)+2*time.Minute, p))
				if !slices.Equal(got, []time.Duration{tt.want}) {
					t.Errorf("got %v, want [%v]", got, tt.want)
				}
			})
		})
	}
}

// Messages beyond a full window stay in Kafka, and all are handled eventually.
func TestPoolWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		const n = 1000
		b.Send(parttest.Numbered(n, n)...)
		hold := make(chan struct{})
		var begun atomic.Int32
		p := pool(t, b, kafka.PoolConfig{Workers: 2 * n, Window: 64},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				begun.Add(1)
				<-hold
				return parttest.Plan(ctx, d)
			})
		parttest.Background(t, p)
		time.Sleep(time.Minute)
		if got := begun.Load(); got < 48 || got > 64 {
			t.Errorf("%d in flight, want three quarters of 64 or some more", got)
		}
		close(hold)
		time.Sleep(time.Minute)
		if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != n {
			t.Errorf("committed %d, want %d", got, n)
		}
	})
}

// A task that ignores its cancellation delays the end of Run by at most DrainTimeout and twice the grace, and Run
// reports it.
func TestPoolStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true})
		b.Send(parttest.Change("a"))
		hold := make(chan struct{})
		p := pool(t, b, kafka.PoolConfig{DrainTimeout: time.Second},
			func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
				<-hold
				return nil, nil
			})
		start := time.Now()
		if err := parttest.Run(t, 10*time.Second, p); err == nil {
			t.Error("Run returned no error")
		}
		if took := time.Since(start); took > 21*time.Second+500*time.Millisecond {
			t.Errorf("Run took %v", took)
		}
		close(hold)
		time.Sleep(time.Second)
		if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 0 {
			t.Errorf("committed %v, want 0", got)
		}
	})
}

// A fenced member loses its tasks: they are cancelled, and handled again when the partition is assigned
// again.
func TestPoolFenced(t *testing.T) {
	t.Parallel()
	b := kafkatest.New(t, kafkatest.Options{RealTime: true})
	b.Send(parttest.Change("a"))
	var calls atomic.Int32
	cancelled := make(chan struct{}, 1)
	parttest.Background(t, pool(t, b, kafka.PoolConfig{DrainTimeout: time.Minute},
		func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if calls.Add(1) > 1 {
				return parttest.Plan(ctx, d)
			}
			b.Fence(schemas.RolePlanner)
			<-ctx.Done()
			cancelled <- struct{}{}
			return nil, ctx.Err()
		}))
	select {
	case <-cancelled:
	case <-time.After(time.Minute):
		t.Fatal("the task was not cancelled")
	}
	parttest.Await(t, "the message is handled again", func() bool {
		return parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)) == 1
	})
}
