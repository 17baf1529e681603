package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	"github.com/millrace/millrace/streams/kafka/metrics/metricstest"
	"github.com/millrace/millrace/streams/kafka/schedule"
	"github.com/millrace/millrace/streams/retry"
)

// parkFirst returns a handler that parks for d before it calls h.
func parkFirst(d time.Duration, h kafka.Handler) kafka.Handler {
	return func(ctx context.Context, in *schemas.Delivery) ([]schemas.Message, error) {
		if err := kafka.Park(ctx, func(ctx context.Context) error { return retry.Sleep(ctx, d) }); err != nil {
			return nil, err
		}
		return h(ctx, in)
	}
}

// planning configures a Pool that stops at once.
func planning(workers int) kafka.PoolConfig {
	return kafka.PoolConfig{
		Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}, Workers: workers, DrainTimeout: time.Second,
	}
}

// Parked tasks wait concurrently, however few workers and slots there are. Before and after, each has a
// worker and its slots, and tasks of one key stay in order.
func TestParkedTasksHoldNoWorker(t *testing.T) {
	t.Parallel()
	for name, slots := range map[string]*schedule.Slots{
		"workers": nil,
		"slots":   schedule.NewSlots(func(_, store string) schedule.Limit { return schedule.Limit{Tasks: 2 * len(store)} }),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
				const n, keys, workers = 600, 200, 2
				b.Send(parttest.Numbered(n, keys)...)
				var (
					mu   sync.Mutex
					busy int
					seen = map[string][]string{}
					end  time.Time
				)
				work := func() {
					mu.Lock()
					if busy++; busy > workers {
						t.Errorf("%d running", busy)
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					busy--
					mu.Unlock()
				}
				pc := kafka.PoolConfig{Workers: workers, Slots: slots}
				if slots != nil {
					pc.Workers = n
					pc.Describe = func(body schemas.Body) kafka.Work {
						return kafka.Work{Key: body.(*pb.Change).GetItem(), Account: "acme", Stores: [2]string{"1"}}
					}
				}
				start := time.Now()
				p := pool(t, b, pc, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					work()
					out, err := parkFirst(time.Second, parttest.Plan)(ctx, d)
					work()
					c := d.Body.(*pb.Change)
					mu.Lock()
					defer mu.Unlock()
					seen[c.GetItem()] = append(seen[c.GetItem()], c.GetVersion())
					end = time.Now()
					return out, err
				})
				must(t, parttest.Run(t, time.Minute, p))
				for i := range keys {
					want := []string{fmt.Sprint(i), fmt.Sprint(i + keys), fmt.Sprint(i + 2*keys)}
					if got := seen[fmt.Sprint(i)]; !slices.Equal(got, want) {
						t.Errorf("item %d: got %v, want %v", i, got, want)
					}
				}
				if took := end.Sub(start); took > 8*time.Second { // three waits of each key, and 600 ms of work
					t.Errorf("%d tasks took %v", n, took)
				}
				if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != n {
					t.Errorf("committed %d, want %d", got, n)
				}
			})
		})
	}
}

// The window bounds the number of parked tasks.
func TestParkedTasksCountInTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		const n = 1000
		b.Send(parttest.Numbered(n, n)...)
		hold := make(chan struct{})
		var parked atomic.Int32
		parttest.Background(t, pool(t, b, kafka.PoolConfig{Workers: 1, Window: 64}, func(
			ctx context.Context, d *schemas.Delivery,
		) ([]schemas.Message, error) {
			err := kafka.Park(ctx, func(context.Context) error { parked.Add(1); <-hold; return nil })
			if err != nil {
				return nil, err
			}
			return parttest.Plan(ctx, d)
		}))
		time.Sleep(time.Minute)
		if got := parked.Load(); got < 48 || got > 64 {
			t.Errorf("%d are parked, want three quarters of 64 or some more", got)
		}
		close(hold)
		time.Sleep(time.Minute)
		if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != n {
			t.Errorf("committed %d, want %d", got, n)
		}
	})
}

// A parked task is neither stalled nor overdue. Its run times before and after are added.
func TestParkedTasksAreNotStalled(t *testing.T) {
	t.Parallel()
	stalls := kafka.PoolConfig{StallTimeout: 2 * time.Minute}
	large := kafka.PoolConfig{StallTimeout: time.Hour, Describe: sized(60 << 10)} // it may run for three minutes
	parked := time.Duration(need.Amount(8, 20, 20)) * time.Minute
	for name, tt := range map[string]struct {
		pc            kafka.PoolConfig
		before, after time.Duration // parking
		lanes         int
	}{
		"no progress while it is parked": {stalls, 0, 0, 0},
		"no progress after":              {stalls, 0, 3 * time.Minute, 1},
		"overdue in all":                 {large, 100 * time.Second, 100 * time.Second, 1},
		"not overdue":                    {large, 80 * time.Second, 80 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				b.Send(parttest.Change("a"))
				work := func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					if err := retry.Sleep(ctx, tt.after); err != nil {
						return nil, err
					}
					return parttest.Plan(ctx, d)
				}
				p := pool(t, b, tt.pc, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					if err := retry.Sleep(ctx, tt.before); err != nil {
						return nil, err
					}
					return parkFirst(parked, work)(ctx, d)
				})
				must(t, parttest.Run(t, 2*parked, p.SetDeadline(2*time.Minute, 1<<10)))
				if got := len(b.Read(schemas.Delay("30s"))); got != tt.lanes {
					t.Errorf("%d records in the lane, want %d", got, tt.lanes)
				}
			})
		})
	}
}

// A stop does not wait for parked tasks: they are cancelled and repeated later. The same holds for tasks that
// would park then.
func TestParkedTasksEndWithTheirPartition(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first time.Duration // run time before it parks
		took  time.Duration // duration of the stop
	}{
		"parked":           {0, time.Second},
		"parked too late":  {12 * time.Second, 3 * time.Second},
		"running for long": {time.Hour, 21 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				b.Send(parttest.Numbered(20, 20)...)
				pc := kafka.PoolConfig{Workers: 4, DrainTimeout: 20 * time.Second}
				p := pool(t, b, pc, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					if err := retry.Sleep(ctx, tt.first); err != nil {
						return nil, err
					}
					return parkFirst(time.Hour, parttest.Plan)(ctx, d)
				})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- p.Run(ctx) }()
				time.Sleep(10 * time.Second)
				start := time.Now()
				cancel()
				must(t, <-ended)
				if took := time.Since(start); took > tt.took {
					t.Errorf("the stop took %v, want %v at most", took, tt.took)
				}
				if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 0 {
					t.Errorf("committed %d, want 0", got)
				}
				must(t, parttest.Run(t, 10*time.Second, pool(t, b, kafka.PoolConfig{}, parttest.Plan)))
				if got := len(parttest.Items(b, schemas.DuplicationHigh)); got != 20 {
					t.Errorf("%d outputs, want 20", got)
				}
			})
		})
	}
}

// A lost partition cancels its parked tasks and those that wait for a worker. Their results are ignored.
func TestParkedTasksOfALostPartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("parked"), parttest.Change("waits"), parttest.Change("works"))
		var calls atomic.Int32
		block := make(chan struct{})
		one := kafka.PoolConfig{Workers: 1}
		parttest.Background(t, pool(t, b, one, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if calls.Add(1) > 3 {
				return parttest.Plan(ctx, d)
			}
			wait := map[string]time.Duration{"parked": time.Hour, "waits": time.Second}[d.Body.(*pb.Change).GetItem()]
			if wait > 0 {
				return parkFirst(wait, parttest.Plan)(ctx, d)
			}
			<-block // ignores the cancellation and keeps the worker
			return nil, ctx.Err()
		}))
		time.Sleep(20 * time.Second)
		if got := calls.Load(); got != 3 {
			t.Fatalf("%d calls, want 3", got)
		}
		b.Fence(schemas.RolePlanner)
		time.Sleep(30 * time.Second)
		if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 0 {
			t.Errorf("committed %d, want 0", got)
		}
		close(block)
		time.Sleep(2 * time.Minute)
		if got, want := parttest.Items(b, schemas.DuplicationHigh), []string{"parked", "waits", "works"}; !slices.Equal(got,
			want) {
			t.Errorf("outputs of %v, want %v", got, want)
		}
	})
}

// A pause of the role keeps tasks from starting. A parked task has started, and ends.
func TestParkedTasksEndInAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("a"), parttest.Change("b"))
		cfg := b.Config()
		cfg.Controls = &client.Controls{}
		p, err := kafka.NewPool(cfg, planning(2), parkFirst(30*time.Second, parttest.Plan))
		must(t, err)
		parttest.Background(t, p)
		time.Sleep(10 * time.Second)
		ctl := &pb.Control{Role: string(schemas.RolePlanner), Paused: true}
		must(t, cfg.Controls.Apply([]byte(schemas.Key(ctl.GetRole(), "", "", "")), ctl))
		b.Send(parttest.Change("c"))
		time.Sleep(time.Minute)
		if got, want := parttest.Items(b, schemas.DuplicationHigh), []string{"a", "b"}; !slices.Equal(got, want) {
			t.Errorf("outputs of %v, want %v", got, want)
		}
	})
}

// Parked tasks of a killed process are never suspects, because they do nothing.
func TestParkedTasksAreNoSuspects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Numbered(4, 4)...)
		for range 5 {
			proc, cfg := newProcess(b.Config())
			p, err := kafka.NewPool(cfg, planning(1), parkFirst(time.Hour, parttest.Plan))
			must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- p.Run(ctx) }()
			time.Sleep(2 * time.Minute)
			proc.kill()
			cancel()
			<-ended
		}
		must(t, parttest.Run(t, time.Minute, pool(t, b, kafka.PoolConfig{}, parttest.Plan)))
		if got, dead := len(parttest.Items(b, schemas.DuplicationHigh)), len(b.Read(schemas.Dead)); got != 4 || dead != 0 {
			t.Errorf("%d outputs and %d dead letters, want 4 and none", got, dead)
		}
	})
}

// Errors, panics and retries of a task that parked are handled like those of any other.
func TestParkedTasksThatFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("fails"), parttest.Change("panics"), parttest.Change("flaky"), parttest.Change("twice"),
			parttest.Change("inside"))
		var calls atomic.Int32
		errOwn := errors.New("its own")
		one := kafka.PoolConfig{Workers: 1}
		p := pool(t, b, one, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			var fail error
			switch item := d.Body.(*pb.Change).GetItem(); item {
			case "fails":
				fail = retry.Permanent(errOwn)
			case "flaky":
				if calls.Add(1) == 1 {
					fail = errOwn
				}
			case "twice":
				if _, err := parkFirst(time.Second, parttest.Plan)(ctx, d); err != nil {
					return nil, err
				}
			}
			err := kafka.Park(ctx, func(ctx context.Context) error {
				switch d.Body.(*pb.Change).GetItem() {
				case "panics":
					panic("boom")
				case "inside":
					return kafka.Park(ctx, func(ctx context.Context) error { return retry.Sleep(ctx, time.Second) })
				}
				return fail
			})
			if err != nil {
				return nil, err
			}
			return parttest.Plan(ctx, d)
		})
		must(t, parttest.Run(t, time.Minute, p))
		if got, want := parttest.Items(b, schemas.DuplicationHigh), []string{"flaky", "inside", "twice"}; !slices.Equal(got,
			want) {
			t.Errorf("outputs of %v, want %v", got, want)
		}
		var why []string
		for _, r := range b.Read(schemas.Dead) {
			why = append(why, strings.SplitN(r.Header(schemas.HeaderError), "\n", 2)[0])
		}
		slices.Sort(why)
		if want := []string{"handler panicked: boom", "its own"}; !slices.Equal(why, want) {
			t.Errorf("dead letters of %v, want %v", why, want)
		}
		if got := calls.Load(); got != 2 {
			t.Errorf("%d calls of the flaky one, want 2", got)
		}
	})
}

// Parked tasks are counted as parked, not as running.
func TestMetricsOfParkedTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		cfg, reg := withMetrics(b)
		b.Send(parttest.Numbered(7, 7)...)
		p, err := kafka.NewPool(cfg, planning(2),
			parkFirst(20*time.Second, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				time.Sleep(10 * time.Second)
				return parttest.Plan(ctx, d)
			}))
		must(t, err)
		parttest.Background(t, p)
		time.Sleep(18 * time.Second)
		const l = "{class=high,role=planner}"
		metricstest.Compare(t, nonZero(t, reg, "tasks", l), map[string]float64{"parked_tasks" + l: 7})
		if s := cfg.Metrics.State(); s[0].Parked != 7 || s[0].Busy != 0 || s[0].InFlight != 7 {
			t.Errorf("got %+v, want 7 that are parked", s[0])
		}
		time.Sleep(10 * time.Second)
		got := nonZero(t, reg, "tasks", l)
		delete(got, "oldest_task_seconds"+l)
		metricstest.Compare(t, got, map[string]float64{"parked_tasks" + l: 5, "working_tasks" + l: 2})
		time.Sleep(time.Minute)
		metricstest.Compare(t, nonZero(t, reg, "tasks", l), map[string]float64{})
	})
}

// Outside of a Pool, Park only waits.
func TestParkOutsideAPool(t *testing.T) {
	t.Parallel()
	errOwn := errors.New("its own")
	if err := kafka.Park(t.Context(), func(context.Context) error { return errOwn }); !errors.Is(err, errOwn) {
		t.Errorf("got %v", err)
	}
}

// A message that kills its process after it parked becomes a dead letter after the third death. No other
// message does.
func TestParkedPoisonThatKills(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		const n = 30
		b.Send(parttest.Numbered(n, n)...)
		deaths := 0
		for range 10 {
			proc, cfg := newProcess(b.Config())
			p, err := kafka.NewPool(cfg, planning(4),
				parkFirst(5*time.Second, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					if d.Body.(*pb.Change).GetItem() == "7" {
						proc.kill()
						<-ctx.Done()
						return nil, ctx.Err()
					}
					if err := retry.Sleep(ctx, time.Second); err != nil {
						return nil, err
					}
					return parttest.Plan(ctx, d)
				}))
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			ended := make(chan error, 1)
			go func() { ended <- p.Run(ctx) }()
			select {
			case <-proc.dead:
				deaths++
			case <-ctx.Done():
			}
			cancel()
			<-ended
		}
		var dead []string
		for _, r := range b.Read(schemas.Dead) {
			dead = append(dead, string(r.Key))
		}
		if want := []string{schemas.ItemKey("acme", "maps", "7")}; deaths != 3 || !slices.Equal(dead, want) {
			t.Errorf("%d processes died and the dead letters are %v, want 3 and %v", deaths, dead, want)
		}
		if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != n {
			t.Errorf("committed %d, want %d", got, n)
		}
	})
}
