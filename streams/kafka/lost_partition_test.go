package kafka_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A task that ignores the loss of its partition ends Run: by the watchdog, or when Run ends anyway.
func TestPoolStuckInLostPartition(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stop time.Duration // when ctx ends; 0: never
		took time.Duration // until Run returns
	}{
		"the watchdog ends Run": {0, 2 * time.Minute},
		"Run is to end":         {50 * time.Second, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				b.Send(parttest.Change("a"))
				hold := make(chan struct{})
				var calls atomic.Int32
				p := pool(t, b, kafka.PoolConfig{DrainTimeout: time.Second},
					func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
						if calls.Add(1) == 1 {
							b.Fence(schemas.RolePlanner)
							<-ctx.Done()
							<-hold
						}
						return nil, nil
					})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.stop > 0 {
					time.AfterFunc(tt.stop, cancel)
				}
				start := time.Now()
				err := p.Run(ctx)
				if err == nil || !strings.Contains(err.Error(), "1 tasks still run") {
					t.Errorf("Run: %v", err)
				}
				if took := time.Since(start); took > tt.took {
					t.Errorf("Run took %v", took)
				}
				if got := calls.Load(); got != 1 {
					t.Errorf("%d calls, want 1: its key is running", got)
				}
				close(hold)
				time.Sleep(time.Second)
			})
		})
	}
}

// A lost session is no death: the process lives, and its tasks run again.
func TestPoolLostSessionsAreNoDeaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("a"))
		var calls atomic.Int32
		var enough atomic.Bool
		parttest.Background(t, pool(t, b, kafka.PoolConfig{},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				calls.Add(1)
				if !enough.Load() {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return parttest.Plan(ctx, d)
			}))
		for range 4 {
			time.Sleep(2 * time.Minute)
			b.Fence(schemas.RolePlanner)
		}
		enough.Store(true)
		time.Sleep(2 * time.Minute)
		b.Fence(schemas.RolePlanner)
		time.Sleep(2 * time.Minute)
		if got := calls.Load(); got < 5 {
			t.Errorf("%d calls, want one more than sessions that were lost", got)
		}
		if dead, out := len(b.Read(schemas.Dead)), len(parttest.Items(b, schemas.DuplicationHigh)); dead != 0 || out < 1 {
			t.Errorf("%d dead letters, %d outputs, want none and some", dead, out)
		}
	})
}

// A silentBroker accepts connections and answers nothing, like a frozen one.
type silentBroker struct {
	net.Conn
	from *atomic.Bool
}

func (s silentBroker) Write(p []byte) (int, error) {
	if s.from.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

// A stop is bounded even if no broker answers: the members of a Pool leave concurrently.
func TestStopWithSilentBrokers(t *testing.T) {
	t.Parallel()
	noTask := func(context.Context, *schemas.Delivery) ([]schemas.Message, error) { return nil, nil }
	for name, part := range map[string]func(client.Config) (runnable, error){
		"Pool": func(cfg client.Config) (runnable, error) {
			return kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RoleCopier,
				Topics: []schemas.Topic{schemas.DuplicationHigh, schemas.DuplicationLow, schemas.DuplicationLarge}}, noTask)
		},
		"BatchGroup": func(cfg client.Config) (runnable, error) {
			return pausable()["BatchGroup"].make(cfg, new(deliveryLog))
		},
		"Delayer": func(cfg client.Config) (runnable, error) { return kafka.NewDelayer(cfg) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				send(b, 20)
				cfg, frozen := b.Config(), new(atomic.Bool)
				dial := cfg.Dialer
				cfg.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := dial(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return silentBroker{c, frozen}, nil
				}
				p, err := part(cfg)
				must(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- p.Run(ctx) }()
				time.Sleep(20 * time.Second)
				frozen.Store(true)
				time.Sleep(time.Second)
				cancel()
				start := time.Now()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > 15*time.Second {
					t.Errorf("Run took %v to stop", took)
				}
			})
		})
	}
}

// A record of an again topic with an original topic that its role does not read becomes a dead letter. So
// does a message that cannot be described. Neither ends the process.
func TestPoolForeignOrigin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		enc, err := schemas.Encode(schemas.Message{Topic: schemas.Controls, Source: "x",
			Body: &pb.Control{Id: "0123456789abcdef0123456789abcdef", Role: "copier", Paused: true}})
		must(t, err)
		enc.Topic = schemas.Again(schemas.RolePlanner)
		enc.Headers = append(enc.Headers, schemas.Header{Key: schemas.HeaderOriginTopic, Value: []byte(schemas.Controls)})
		b.Write(kafkatest.Record{Record: enc, Partition: -1})
		b.Send(parttest.Change("bad"), parttest.Change("good"))
		p := pool(t, b, kafka.PoolConfig{Describe: func(b schemas.Body) kafka.Work {
			c := b.(*pb.Change)
			if c.GetItem() == "bad" {
				panic("no such thing")
			}
			return kafka.Work{Key: c.GetItem()}
		}}, parttest.Plan)
		must(t, parttest.Run(t, time.Minute, p))
		var why []string
		for _, r := range b.Read(schemas.Dead) {
			why = append(why, r.Header(schemas.HeaderError))
		}
		if all := strings.Join(why, "\n"); len(why) != 2 || !strings.Contains(all, "role planner does not read") ||
			!strings.Contains(all, "no such thing") {
			t.Errorf("dead letters: %q", why)
		}
		if got := strings.Join(parttest.Items(b, schemas.DuplicationHigh), " "); got != "good" {
			t.Errorf("outputs: %q", got)
		}
	})
}

// A role that is paused while its tasks run starts no other: those stay in memory, not in a lane, and run
// after the pause.
func TestPoolPausedWithRunningTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: parttest.QuickLanes()})
		const n = 500
		b.Send(parttest.Numbered(n, n)...)
		cfg, controls := paused(t, b)
		var calls atomic.Int32
		p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
			Workers: 1},
			func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
				if calls.Add(1) == n/2 {
					apply(t, controls, &pb.Control{Role: string(schemas.RolePlanner), Paused: true})
				}
				return nil, nil
			})
		must(t, err)
		parttest.Background(t, p)
		time.Sleep(time.Minute)
		if got := calls.Load(); got != n/2 {
			t.Errorf("%d calls, want %d", got, n/2)
		}
		for _, lane := range parttest.QuickLanes() {
			if n := len(b.Read(schemas.Delay(lane.Name))); n > 0 {
				t.Errorf("%d records in lane %s", n, lane.Name)
			}
		}
		apply(t, controls, &pb.Control{Role: string(schemas.RolePlanner)})
		time.Sleep(10 * time.Second)
		if at := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); at != n || calls.Load() != n {
			t.Errorf("committed %d after %d calls, want %d of each", at, calls.Load(), n)
		}
	})
}
