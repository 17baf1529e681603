package kafka_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// handled are the items of the changes that a part was given.
type handled struct {
	mu    sync.Mutex
	items []string
}

func (h *handled) add(d *schemas.Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.items = append(h.items, d.Body.(*pb.Change).GetItem())
}

func (h *handled) handle(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	h.add(d)
	return nil, nil
}

func (h *handled) Store(_ context.Context, ds []*schemas.Delivery) error {
	for _, d := range ds {
		h.add(d)
	}
	return nil
}

func (*handled) Table(schemas.Topic) string                     { return "t" }
func (*handled) Mark(context.Context, []schemas.Progress) error { return nil }
func (*handled) Forget(schemas.Topic, int32)                    {}

func (h *handled) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	items := h.items
	h.items = nil
	slices.Sort(items)
	return items
}

// readers make each kind of part that reads changes for as long as a process lives.
func readers() map[string]func(kafka.Config, *handled) (runner, error) {
	changes := []schemas.Topic{schemas.Changes}
	return map[string]func(kafka.Config, *handled) (runner, error){
		"Group": func(cfg kafka.Config, h *handled) (runner, error) {
			return kafka.NewGroup(cfg, kafka.GroupConfig{Role: schemas.RolePlanner, Topics: changes}, h.handle)
		},
		"BatchGroup": func(cfg kafka.Config, h *handled) (runner, error) {
			return kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleSink, Topics: changes}, h)
		},
		"Pool": func(cfg kafka.Config, h *handled) (runner, error) {
			return kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: changes}, h.handle)
		},
		"Table": func(cfg kafka.Config, h *handled) (runner, error) {
			return kafka.NewTable(cfg, schemas.Changes, func(_ []byte, d *schemas.Delivery) error { h.add(d); return nil })
		},
	}
}

// A reader of a topic that is deleted and made again ends with an error that says so, and the next one reads the new topic
// from its start, whatever was committed of the old one.
func TestTopicMadeAgain(t *testing.T) {
	t.Parallel()
	for name, reader := range readers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				var h handled
				part, err := reader(b.Config(), &h)
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { ended <- part.Run(ctx) }()
				b.Send(change("a"), change("b"))
				time.Sleep(20 * time.Second)
				if got := h.take(); !slices.Equal(got, []string{"a", "b"}) {
					t.Fatalf("handled %v", got)
				}
				b.Recreate(schemas.Changes, 1)
				b.Send(change("c"), change("d"), change("e"))
				select {
				case err := <-ended:
					if err == nil || !strings.Contains(err.Error(), "topic millrace.changes was deleted and made again") {
						t.Errorf("ended: %v", err)
					}
				case <-time.After(2 * time.Minute):
					t.Error("alive after two minutes, without a word")
					cancel()
					<-ended
				}
				if part, err = reader(b.Config(), &h); err != nil {
					t.Fatal(err)
				}
				if err := run(t, 20*time.Second, part); err != nil {
					t.Error(err)
				}
				if got := h.take(); !slices.Equal(got, []string{"c", "d", "e"}) {
					t.Errorf("handled %v of the new topic", got)
				}
			})
		})
	}
}

// A lane that is made again ends the Delayer.
func TestLaneMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: quick()})
		lane := schemas.Delay(quick()[0].Name)
		time.AfterFunc(30*time.Second, func() { b.Recreate(lane, 1) })
		if err := run(t, 3*time.Minute, delayer(t, b)); err == nil || !strings.Contains(err.Error(), string(lane)+" was deleted and made again") {
			t.Errorf("ended: %v", err)
		}
	})
}

// A process that reads a topic which is deleted, paused or not, learns of it.
func TestWatchTopics(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*kafkatest.Broker)
		says   string
	}{
		"made again": {func(b *kafkatest.Broker) { b.Recreate(schemas.Policies, 1) }, "topic millrace.policies was deleted and made again: "},
		"deleted":    {func(b *kafkatest.Broker) { b.Delete(schemas.Policies) }, "topic millrace.policies was deleted: "},
		"another":    {func(b *kafkatest.Broker) { b.MakeTopic("of.another", 1, nil) }, ""},
		"out of reach for a while": {func(b *kafkatest.Broker) {
			mend := b.Cut()
			time.AfterFunc(time.Minute, mend)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				adm, err := kafka.NewAdmin(b.Config())
				if err != nil {
					t.Fatal(err)
				}
				defer adm.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				time.AfterFunc(time.Minute, func() { tt.change(b) })
				begun := time.Now()
				err = adm.WatchTopics(ctx)
				if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
					t.Errorf("ended: %v", err)
				}
				if took := time.Since(begun); err != nil && took > 2*time.Minute {
					t.Errorf("after %v", took)
				}
			})
		})
	}
}

// A task that is at work while its topic is made again commits nothing of the new one.
func TestTopicMadeAgainWithTasksAtWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(change("a"), change("b"), change("c"))
		hold := make(chan struct{})
		p := pool(t, b, kafka.PoolConfig{Drain: time.Minute}, func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
			select {
			case <-hold:
				return nil, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		time.AfterFunc(20*time.Second, func() {
			b.Recreate(schemas.Changes, 1)
			b.Send(numbered(10, 10)...)
			close(hold)
		})
		if err := run(t, 2*time.Minute, p); err == nil || !strings.Contains(err.Error(), "made again") {
			t.Errorf("ended: %v", err)
		}
		if got := b.Committed(schemas.RolePlanner, schemas.Changes); len(got) != 0 {
			t.Errorf("committed %v of the new topic", got)
		}
	})
}

// A Producer that lives on publishes to a topic that was made again.
func TestProducerOfATopicMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		p, err := kafka.NewProducer(b.Config(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Publish(t.Context(), change("a")); err != nil {
			t.Fatal(err)
		}
		b.Recreate(schemas.Changes, 1)
		time.Sleep(10 * time.Minute) // the client learns of it
		if err := p.Publish(t.Context(), change("b"), change("c")); err != nil {
			t.Errorf("publish to the new topic: %v", err)
		}
		b.Delete(schemas.Changes)
		if err := p.Publish(t.Context(), change("d")); err == nil {
			t.Error("published to a topic that is not there")
		}
		b.MakeTopic(schemas.Changes, 1, nil)
		time.Sleep(10 * time.Minute)
		if err := p.Publish(t.Context(), change("d")); err != nil {
			t.Errorf("publish to the third topic: %v", err)
		}
		if got := items(b, schemas.Changes); !slices.Equal(got, []string{"d"}) {
			t.Errorf("the topic has %v", got)
		}
	})
}
