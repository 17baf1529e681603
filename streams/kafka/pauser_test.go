package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// A runnable is a part that can be paused.
type runnable interface{ Run(context.Context) error }

// pausable returns the parts, with the messages that they read and handle. They record in l what they handle.
func pausable() map[string]struct {
	role  schemas.Role
	topic schemas.Topic // read and committed
	make  func(c client.Config, l *deliveryLog) (runnable, error)
} {
	type part = struct {
		role  schemas.Role
		topic schemas.Topic
		make  func(c client.Config, l *deliveryLog) (runnable, error)
	}
	return map[string]part{
		"Pool": {schemas.RolePlanner, schemas.Changes, func(c client.Config, l *deliveryLog) (runnable, error) {
			return kafka.NewPool(c, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
				func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					l.note(d)
					return parttest.Plan(ctx, d)
				})
		}},
		"BatchGroup": {schemas.RoleSink, schemas.Changes, func(c client.Config, l *deliveryLog) (runnable, error) {
			return kafka.NewBatchGroup(c, kafka.BatchConfig{Role: schemas.RoleSink, Topics: []schemas.Topic{schemas.Changes},
				MaxAge: 100 * time.Millisecond},
				storeFunc{func(_ context.Context, batch []*schemas.Delivery) error {
					for _, d := range batch {
						l.note(d)
					}
					return nil
				}})
		}},
	}
}

// total returns the number of deliveries in l.
func (l *deliveryLog) total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.seen {
		n += len(s)
	}
	return n
}

func send(b *kafkatest.Broker, keys int) {
	var msgs []schemas.Message
	for i := range keys {
		msgs = append(msgs, parttest.Change(fmt.Sprint(i)))
	}
	b.Send(msgs...)
}

// sendUndecodable writes a record that cannot be decoded.
func sendUndecodable(b *kafkatest.Broker, topic schemas.Topic) {
	r := kafkatest.Record{Partition: 0}
	r.Topic, r.Value = topic, []byte("{")
	b.Write(r)
}

// paused returns b's configuration with its own Controls, to which entries were applied.
func paused(t *testing.T, b *kafkatest.Broker, entries ...*pb.Control) (client.Config, *client.Controls) {
	t.Helper()
	c := new(client.Controls)
	apply(t, c, entries...)
	cfg := b.Config()
	cfg.Controls = c
	return cfg, c
}

// A message pauses processes within a second, until it is lifted: nothing is handled or committed. A process
// that starts meanwhile handles nothing either. All continue within a second where they stopped, each key in
// order.
func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		const keys = 20
		parts, ledgers := pausable(), map[string]*deliveryLog{}
		start := func(name string) {
			cfg := b.Config()
			cfg.Controls = follow(t, b) // in a process of its own
			ledgers[name] = new(deliveryLog)
			p, err := parts[name].make(cfg, ledgers[name])
			must(t, err)
			parttest.Background(t, p)
		}
		check := func(name string, n int) {
			t.Helper()
			if got := ledgers[name].total(); got != n {
				t.Errorf("%s: %d handled, want %d", name, got, n)
			}
			if got := parttest.Sum(b.Committed(parts[name].role, parts[name].topic)); got != int64(n) {
				t.Errorf("%s: %d committed, want %d", name, got, n)
			}
		}
		start("Pool")
		send(b, keys)
		time.Sleep(5 * time.Second)
		check("Pool", keys)

		b.Send(control(&pb.Control{Paused: true}))
		time.Sleep(900 * time.Millisecond)
		send(b, keys)
		start("BatchGroup")
		time.Sleep(20 * time.Minute)
		check("Pool", keys)
		check("BatchGroup", 0)

		b.Send(control(&pb.Control{}))
		time.Sleep(900 * time.Millisecond)
		check("Pool", 2*keys)
		check("BatchGroup", 2*keys)
		for _, l := range ledgers {
			l.check(t, keys, 2)
		}
	})
}

// A part that starts paused handles nothing, not even undecodable records. It starts by itself when the pause
// expires.
func TestPauseUntil(t *testing.T) {
	t.Parallel()
	for name, part := range pausable() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				send(b, 10)
				sendUndecodable(b, part.topic)
				cfg, _ := paused(t, b, &pb.Control{Role: string(part.role), Paused: true, Until: ends(time.Hour)})
				var l deliveryLog
				p, err := part.make(cfg, &l)
				must(t, err)
				parttest.Background(t, p)
				time.Sleep(time.Until(ends(time.Hour).AsTime()) - time.Millisecond)
				n, dead, at := l.total(), len(b.Read(schemas.Dead)), parttest.Sum(b.Committed(part.role, part.topic))
				if n != 0 || dead != 0 || at != 0 {
					t.Errorf("while paused: %d handled, %d dead letters, %d committed", n, dead, at)
				}
				time.Sleep(time.Second)
				l.check(t, 10, 1)
				n, dead, at = l.total(), len(b.Read(schemas.Dead)), parttest.Sum(b.Committed(part.role, part.topic))
				if n != 10 || dead != 1 || at != 11 {
					t.Errorf("%d handled, %d dead letters, %d committed, want 10, 1, 11", n, dead, at)
				}
			})
		})
	}
}

// A Pool that is paused between two messages starts no other. Done messages are committed. When it stops,
// read messages are not lost, and its successor handles them.
func TestPauseAndStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		send(b, 7)
		sendUndecodable(b, schemas.Changes)
		send(b, 7)
		cfg, c := paused(t, b)
		var l deliveryLog
		h := func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if c.Role(schemas.RolePlanner) {
				t.Errorf("offset %d is handled while the role is paused", d.Offset)
			}
			l.note(d)
			time.Sleep(100 * time.Millisecond)
			if l.total() == 7 {
				apply(t, c, &pb.Control{Role: "planner", Paused: true})
			}
			return parttest.Plan(ctx, d)
		}
		group := func() *kafka.Pool {
			g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
				Workers: 1}, h)
			must(t, err)
			return g
		}
		must(t, parttest.Run(t, time.Minute, group()))
		if got, dead := parttest.Sum(b.Committed(schemas.RolePlanner,
			schemas.Changes)), len(b.Read(schemas.Dead)); got != 7 ||
			dead != 0 {
			t.Errorf("committed %d and %d dead letters, want 7 and none", got, dead)
		}
		apply(t, c, &pb.Control{Role: "planner"})
		must(t, parttest.Run(t, time.Minute, group()))
		l.check(t, 7, 2)
		if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 15 {
			t.Errorf("committed %d, want 15", got)
		}
	})
}

// Messages done before a pause are committed during it, even if the commit fails at first.
func TestPauseCommits(t *testing.T) {
	t.Parallel()
	for name, part := range pausable() {
		for fault, f := range map[string]kafkatest.Fault{"not done": kafkatest.NotDone,
			"done but lost": kafkatest.DoneNotAcknowledged} {
			t.Run(name+", "+fault, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := kafkatest.New(t, kafkatest.Options{})
					cfg, c := paused(t, b)
					var l deliveryLog
					p, err := part.make(cfg, &l)
					must(t, err)
					parttest.Background(t, p)
					time.Sleep(5 * time.Second)
					mend := b.FailCommit(part.role, f, -1)
					send(b, 10)
					time.Sleep(5 * time.Second)
					apply(t, c, &pb.Control{Paused: true})
					time.Sleep(time.Second)
					mend()
					time.Sleep(time.Minute)
					if got := parttest.Sum(b.Committed(part.role, part.topic)); got != 10 {
						t.Errorf("committed %d while paused, want 10", got)
					}
					l.check(t, 10, 1)
				})
			})
		}
	}
}

// A message that is retried in place is not retried while its role is paused. The pause counts as no attempt
// and no failure.
func TestPauseBetweenTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(parttest.Change("a"))
		cfg, c := paused(t, b)
		calls := 0
		g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				if calls++; calls == 1 {
					apply(t, c, &pb.Control{Role: "planner", Paused: true, Until: ends(2 * time.Hour)})
					return nil, errors.New("connection reset")
				}
				if time.Now().Before(ends(2*time.Hour).AsTime()) || d.Attempt != 1 || d.From != schemas.Changes {
					t.Errorf("called at %v: %+v", time.Now(), d)
				}
				return parttest.Plan(ctx, d)
			})
		must(t, err)
		must(t, parttest.Run(t, 2*time.Hour+time.Second, g))
		if got, want := parttest.Items(b, schemas.DuplicationHigh), []string{"a"}; !slices.Equal(got, want) || calls != 2 {
			t.Errorf("got %v of %d calls, want %v of 2", got, calls, want)
		}
	})
}

// A batch that could not be stored is not retried while the role is paused.
func TestPauseBetweenStores(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		send(b, 10)
		cfg, c := paused(t, b)
		var calls []time.Time
		g, err := kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleSink,
			Topics: []schemas.Topic{schemas.Changes}},
			storeFunc{func(context.Context, []*schemas.Delivery) error {
				if calls = append(calls, time.Now()); len(calls) == 3 {
					apply(t, c, &pb.Control{Role: "sink", Paused: true, Until: ends(time.Hour)})
				}
				if len(calls) < 5 {
					return retry.Unavailable(errors.New("connection refused"))
				}
				return nil
			}})
		must(t, err)
		must(t, parttest.Run(t, time.Hour+time.Minute, g))
		if len(calls) != 5 || calls[3].Before(ends(time.Hour).AsTime()) {
			t.Errorf("calls at %v, want 3, then 2 after an hour", calls)
		}
		if got := parttest.Sum(b.Committed(schemas.RoleSink, schemas.Changes)); got != 10 {
			t.Errorf("committed %d, want 10", got)
		}
	})
}

// While the role is paused, nothing of an incomplete batch is settled, not even records that can never be
// stored.
func TestPauseBeforeStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		cfg, c := paused(t, b)
		g, err := kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleSink,
			Topics: []schemas.Topic{schemas.Changes}, MaxAge: 10 * time.Second}, &memoryTable{})
		must(t, err)
		parttest.Background(t, g)
		time.Sleep(5 * time.Second)
		b.Send(parttest.Change("a")) // stored at once; the next ones wait
		time.Sleep(50 * time.Millisecond)
		sendUndecodable(b, schemas.Changes)
		time.Sleep(50 * time.Millisecond)
		apply(t, c, &pb.Control{Paused: true})
		time.Sleep(time.Hour)
		if got := len(b.Read(schemas.Dead)); got > 0 {
			t.Errorf("%d dead letters while paused", got)
		}
		apply(t, c, &pb.Control{})
		time.Sleep(time.Second)
		if got := len(b.Read(schemas.Dead)); got != 1 {
			t.Errorf("%d dead letters, want 1", got)
		}
	})
}

// Messages that arrive while a role is paused are not fetched.
func TestPauseFetchesNothing(t *testing.T) {
	t.Parallel()
	for name, part := range pausable() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				cfg, c := paused(t, b)
				var l deliveryLog
				p, err := part.make(cfg, &l)
				must(t, err)
				parttest.Background(t, p)
				send(b, 10)
				time.Sleep(5 * time.Second)
				apply(t, c, &pb.Control{Paused: true})
				send(b, 10) // ends the running poll
				time.Sleep(time.Second)
				mend := b.FailFetch(part.topic, kafkatest.Refused, -1) // would end Run
				send(b, 10)
				time.Sleep(time.Hour)
				mend()
				apply(t, c, &pb.Control{})
				time.Sleep(5 * time.Second)
				l.check(t, 10, 3)
			})
		})
	}
}

// A paused delayer moves no due messages, and then all of them at once.
func TestPauseDelayer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Lanes: parttest.QuickLanes()})
		cfg, c := paused(t, b, &pb.Control{Role: "delayer", Paused: true})
		p, err := kafka.NewProducer(cfg, "test")
		must(t, err)
		defer p.Close()
		d, err := kafka.NewDelayer(cfg)
		must(t, err)
		parttest.Background(t, d)
		publish := func(items ...string) {
			for _, i := range items {
				m := parttest.Change(i)
				m.Due = time.Now().Add(time.Minute)
				if err := p.Publish(t.Context(), m); err != nil {
					t.Error(err)
				}
			}
		}
		check := func(again int, committed int64) {
			t.Helper()
			if got, at := len(b.Read(schemas.Again(schemas.RolePlanner))),
				parttest.Sum(b.Committed(schemas.RoleDelayer, schemas.Delay("30s"))); got != again || at != committed {
				t.Errorf("%d came back, %d committed, want %d, %d", got, at, again, committed)
			}
		}
		long := time.Duration(need.Amount(3, 10, 10)) * time.Minute
		publish("a", "b", "c")
		time.Sleep(long)
		publish("d")
		time.Sleep(long)
		check(0, 0)
		apply(t, c, &pb.Control{Role: "delayer"})
		time.Sleep(time.Second)
		check(4, 4)
		publish("e")
		time.Sleep(20 * time.Second)
		apply(t, c, &pb.Control{Role: "delayer", Paused: true}) // the records that it holds keep waiting
		time.Sleep(long)
		check(4, 4)
		apply(t, c, &pb.Control{Role: "delayer"})
		time.Sleep(time.Second)
		check(5, 5)
	})
}

// Rebalances work while the role is paused. Afterwards each message is handled once, in the order of its key.
// This runs in real time, like TestRebalance.
func TestPauseRebalance(t *testing.T) {
	t.Parallel()
	for name, part := range pausable() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.New(t, kafkatest.Options{Partitions: 4, RealTime: true})
			const keys, each = 40, 5
			cfg, c := paused(t, b)
			var l deliveryLog
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()
			start := func(d time.Duration) {
				wg.Go(func() {
					ctx, leave := context.WithTimeout(ctx, d)
					defer leave()
					p, err := part.make(cfg, &l)
					if err == nil {
						err = p.Run(ctx)
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			start(time.Hour)
			send(b, keys)
			<-time.After(2 * time.Second)
			start(1500 * time.Millisecond) // its partitions return to the first one during the pause
			<-time.After(500 * time.Millisecond)
			apply(t, c, &pb.Control{Paused: true})
			<-time.After(time.Second) // for running tasks
			before := l.total()
			for range each - 1 {
				send(b, keys)
			}
			for range 3 {
				start(1500 * time.Millisecond)
				<-time.After(500 * time.Millisecond)
			}
			<-time.After(2 * time.Second)
			if got := l.total(); got != before {
				t.Errorf("%d handled while paused", got-before)
			}
			apply(t, c, &pb.Control{})
			parttest.Await(t, "all is committed", func() bool {
				return parttest.Sum(b.Committed(part.role,
					part.topic)) == keys*each
			})
			stop()
			wg.Wait()
			l.check(t, keys, each)
		})
	}
}

// must fails the test with an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
