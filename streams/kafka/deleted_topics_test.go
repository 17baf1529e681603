package kafka_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// handled collects the items of the changes that a reader got.
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

// readers returns a constructor for each kind of reader of changes.
func readers() map[string]func(client.Config, *handled) (runnable, error) {
	changes := []schemas.Topic{schemas.Changes}
	return map[string]func(client.Config, *handled) (runnable, error){
		"BatchGroup": func(cfg client.Config, h *handled) (runnable, error) {
			return kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleSink, Topics: changes}, h)
		},
		"Pool": func(cfg client.Config, h *handled) (runnable, error) {
			return kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: changes}, h.handle)
		},
		"Table": func(cfg client.Config, h *handled) (runnable, error) {
			return kafka.NewTable(cfg, schemas.Changes, func(_ []byte, d *schemas.Delivery) error { h.add(d); return nil })
		},
	}
}

// A reader of a recreated topic ends with an error that says so. The next reader reads the new topic from its
// start, whatever was committed for the old one.
func TestRecreatedTopic(t *testing.T) {
	t.Parallel()
	for name, reader := range readers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				var h handled
				part, err := reader(b.Config(), &h)
				must(t, err)
				ended := make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { ended <- part.Run(ctx) }()
				b.Send(parttest.Change("a"), parttest.Change("b"))
				time.Sleep(20 * time.Second)
				if got := h.take(); !slices.Equal(got, []string{"a", "b"}) {
					t.Fatalf("handled %v", got)
				}
				b.Recreate(schemas.Changes, 1)
				b.Send(parttest.Change("c"), parttest.Change("d"), parttest.Change("e"))
				select {
				case err := <-ended:
					if err == nil || !strings.Contains(err.Error(), "topic millrace.changes was deleted and recreated") {
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
				if err := parttest.Run(t, 20*time.Second, part); err != nil {
					t.Error(err)
				}
				if got := h.take(); !slices.Equal(got, []string{"c", "d", "e"}) {
					t.Errorf("handled %v of the new topic", got)
				}
			})
		})
	}
}

// Readers of a recreated topic that they may not describe end too.
func TestRecreatedTopicWithoutDescribe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		var h handled
		part, err := readers()["Pool"](b.Config(), &h)
		must(t, err)
		time.AfterFunc(25*time.Second, func() { // between two metadata refreshes of the client
			b.Recreate(schemas.Changes, 1)
			b.FailMetadata(schemas.Changes, kafkatest.Refused, -1)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second)
		defer cancel()
		err = part.Run(ctx)
		if ctx.Err() != nil || !errors.Is(err, kerr.TopicAuthorizationFailed) ||
			!strings.Contains(err.Error(), "millrace.changes") {
			t.Errorf("ended: %v", err)
		}
	})
}

// The Delayer ends if a lane is recreated.
func TestRecreatedLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: parttest.QuickLanes()})
		lane := schemas.Delay(parttest.QuickLanes()[0].Name)
		// Not while the client refreshes its metadata: it would forget the missing lane, and then read the new one.
		time.AfterFunc(30*time.Second+100*time.Millisecond, func() { b.Recreate(lane, 1) })
		if err := parttest.Run(t, 3*time.Minute, parttest.Delayer(t, b)); err == nil ||
			!strings.Contains(err.Error(), string(lane)+" was deleted and recreated") {
			t.Errorf("ended: %v", err)
		}
	})
}

// Tasks of a topic that is known to be recreated commit nothing, neither while they end nor after. That holds for
// brokers that take commits by topic name too.
func TestRecreatedTopicWithRunningTasks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		window  int  // of the Pool; with 16 it is full, and the partition is paused
		watched bool // WatchTopics runs
		first   bool // the first task ends by itself, once the deletion is known
	}{
		"found by a fetch":                              {0, false, false},
		"found by WatchTopics, a task ends":             {16, true, true},
		"found by WatchTopics, all tasks are cancelled": {16, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Before42: true})
				b.Send(parttest.Numbered(100, 100)...)
				known := make(chan struct{})
				cfg := b.Config()
				cfg.Deleted = &client.DeletedTopics{}
				p, err := kafka.NewPool(cfg, kafka.PoolConfig{
					Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
					DrainTimeout: time.Minute, Window: tt.window, Workers: 8,
				}, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					if d.Offset == 0 && tt.first {
						<-known
						return nil, nil
					}
					<-ctx.Done()
					return nil, nil
				})
				must(t, err)
				adm, err := admin.New(cfg)
				must(t, err)
				defer adm.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				watched := make(chan error, 1)
				if tt.watched {
					go func() { // it lists topics between the Pool's metadata refreshes
						time.Sleep(10 * time.Second)
						watched <- adm.WatchTopics(ctx)
						cancel() // as a process that ends does
						time.AfterFunc(time.Second, func() { close(known) })
					}()
				}
				time.AfterFunc(25*time.Second, func() {
					b.Recreate(schemas.Changes, 1)
					b.Send(parttest.Numbered(10, 10)...)
				})
				err = p.Run(ctx)
				if tt.watched {
					err = errors.Join(err, <-watched)
				}
				if err == nil || !strings.Contains(err.Error(), "millrace.changes was deleted and recreated") {
					t.Errorf("ended: %v", err)
				}
				if got := b.Committed(schemas.RolePlanner, schemas.Changes); got[0] != 0 {
					t.Errorf("committed %v of the new topic", got)
				}
				var h handled
				next, err := readers()["Pool"](b.Config(), &h)
				must(t, err)
				if err := parttest.Run(t, time.Minute, next); err != nil {
					t.Error(err)
				}
				if got := h.take(); len(got) != 10 {
					t.Errorf("handled %v of the new topic", got)
				}
			})
		})
	}
}

// A Producer publishes to a topic that was recreated during its life.
func TestProducerOfARecreatedTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		p, err := kafka.NewProducer(b.Config(), "test")
		must(t, err)
		defer p.Close()
		must(t, p.Publish(t.Context(), parttest.Change("a")))
		b.Recreate(schemas.Changes, 1)
		time.Sleep(10 * time.Minute) // the client refreshes its metadata
		if err := p.Publish(t.Context(), parttest.Change("b"), parttest.Change("c")); err != nil {
			t.Errorf("publish to the new topic: %v", err)
		}
		b.Delete(schemas.Changes)
		if err := p.Publish(t.Context(), parttest.Change("d")); err == nil {
			t.Error("published to a topic that is not there")
		}
		b.MakeTopic(schemas.Changes, 1, nil)
		time.Sleep(10 * time.Minute)
		if err := p.Publish(t.Context(), parttest.Change("d")); err != nil {
			t.Errorf("publish to the third topic: %v", err)
		}
		if got := parttest.Items(b, schemas.Changes); !slices.Equal(got, []string{"d"}) {
			t.Errorf("the topic has %v", got)
		}
	})
}
