package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
)

// inbox collects the changes that a reader received, by item.
type inbox struct {
	mu    sync.Mutex // guards items
	items map[string]int
}

func (in *inbox) add(d *schemas.Delivery) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.items == nil {
		in.items = map[string]int{}
	}
	in.items[d.Body.(*pb.Change).GetItem()]++
}

func (in *inbox) handle(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	in.add(d)
	return nil, nil
}

func (in *inbox) Store(_ context.Context, ds []*schemas.Delivery) error {
	for _, d := range ds {
		in.add(d)
	}
	return nil
}

func (*inbox) Table(schemas.Topic) string                     { return "t" }
func (*inbox) Mark(context.Context, []schemas.Progress) error { return nil }
func (*inbox) Forget(schemas.Topic, int32)                    {}

// await waits until exactly these items were received.
func (in *inbox) await(t *testing.T, items ...string) {
	t.Helper()
	harness.Eventually(t, time.Minute, "read "+strings.Join(items, " "), func(context.Context) error {
		in.mu.Lock()
		defer in.mu.Unlock()
		if got := slices.Sorted(maps.Keys(in.items)); !slices.Equal(got, items) {
			return fmt.Errorf("read %v", got)
		}
		return nil
	})
}

// changesReaders returns a constructor for each kind of component that reads changes.
func changesReaders() map[string]func(client.Config, *inbox) (runner, error) {
	changes := []schemas.Topic{schemas.Changes}
	return map[string]func(client.Config, *inbox) (runner, error){
		"BatchGroup": func(cfg client.Config, in *inbox) (runner, error) {
			return kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleSink, Topics: changes}, in)
		},
		"Pool": func(cfg client.Config, in *inbox) (runner, error) {
			return kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: changes}, in.handle)
		},
		"Table": func(cfg client.Config, in *inbox) (runner, error) {
			return kafka.NewTable(cfg, schemas.Changes, func(_ []byte, d *schemas.Delivery) error { in.add(d); return nil })
		},
	}
}

// TestTopicRecreated deletes and recreates a topic under load. Each reader ends with an error, reads the new topic from
// the start after a restart, and a running Producer publishes to the new topic.
func TestTopicRecreated(t *testing.T) {
	need.Full(t)
	c := harness.Kafka(t, harness.Options{Brokers: 1})
	cfg := c.Config("again.")
	makeTopics := func() {
		must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1, Replication: 1}))
	}
	makeTopics()
	p, err := kafka.NewProducer(cfg, "integration")
	must(t, err)
	defer p.Close()
	send := func(items ...string) {
		t.Helper()
		for i, item := range items {
			harness.Eventually(t, 2*time.Minute, "publish",
				func(ctx context.Context) error { return p.Publish(ctx, change(item, i)) })
		}
	}
	type reader struct {
		in    inbox
		ended chan error
	}
	running, ctx := map[string]*reader{}, t.Context()
	start := func(name string, open func(client.Config, *inbox) (runner, error)) {
		r := &reader{ended: make(chan error, 1)}
		part, err := open(cfg, &r.in)
		must(t, err)
		running[name] = r
		go func() { r.ended <- part.Run(ctx) }()
	}
	for name, open := range changesReaders() {
		start(name, open)
	}
	send("a", "b")
	for _, r := range running {
		r.in.await(t, "a", "b")
	}
	wait(t, 3*time.Second) // they commit
	c.DeleteTopic(t, cfg, schemas.Changes)
	makeTopics()
	send("c", "d", "e", "f")
	for name, open := range changesReaders() {
		select {
		case err := <-running[name].ended:
			if err == nil || !strings.Contains(err.Error(), "topic again.changes was deleted") {
				t.Errorf("%s ended: %v", name, err)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s still runs after two minutes, without an error", name)
		}
		start(name, open)
		running[name].in.await(t, "c", "d", "e", "f")
	}
}

// TestCorruptBatch corrupts a batch on a broker's disk. The partition stops with an instruction. After it is followed,
// the partition continues after the batch.
func TestCorruptBatch(t *testing.T) {
	need.Full(t)
	c := harness.Kafka(t, harness.Options{Brokers: 1, Form: harness.Processes})
	cfg := c.Config("rot.")
	cfg.Unreadables = client.NewUnreadables()
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1, Replication: 1}))
	for _, item := range []string{"a", "b", "c"} { // a batch each
		publish(t, cfg, change(item, 0))
	}
	c.CorruptBatch(t, cfg.Prefix+string(schemas.Changes), 0, 1, false)
	var in inbox
	g, err := changesReaders()["Pool"](cfg, &in)
	stop := running(t, g, err)
	in.await(t, "a")
	var said string
	harness.Eventually(t, time.Minute, "stop the partition", func(context.Context) error {
		if stopped := cfg.Unreadables.Batches(); len(stopped) == 1 {
			said = stopped[0].Err.Error()
			return nil
		}
		return errors.New("it is not")
	})
	if want := "--topic rot.changes:0 --reset-offsets --to-offset 2 --execute"; !strings.Contains(said, want) {
		t.Errorf("%s, want it to contain %s", said, want)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	c.Commit(t, cfg.Prefix+string(schemas.RolePlanner), cfg.Prefix+string(schemas.Changes), 0, 2)
	g, err = changesReaders()["Pool"](cfg, &in)
	running(t, g, err)
	in.await(t, "a", "c")
}

// TestCorruptBatchHeader corrupts the header of a batch, which the broker detects itself. The partition stops as well.
func TestCorruptBatchHeader(t *testing.T) {
	need.Full(t)
	c := harness.Kafka(t, harness.Options{Brokers: 1, Form: harness.Processes})
	cfg := c.Config("head.")
	cfg.Unreadables = client.NewUnreadables()
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1, Replication: 1}))
	for _, item := range []string{"a", "b", "c"} { // a batch each
		publish(t, cfg, change(item, 0))
	}
	c.CorruptBatch(t, cfg.Prefix+string(schemas.Changes), 0, 1, true)
	var in inbox
	g, err := changesReaders()["Pool"](cfg, &in)
	running(t, g, err)
	in.await(t, "a")
	harness.Eventually(t, time.Minute, "stop the partition", func(context.Context) error {
		if stopped := cfg.Unreadables.Batches(); len(stopped) != 1 || stopped[0].Coordinates() != "changes/0@1" {
			return fmt.Errorf("stopped partitions: %v", stopped)
		}
		return nil
	})
}

// TestGroupOffsetsLost deletes a group's committed offsets. The group continues from its saved offsets.
func TestGroupOffsetsLost(t *testing.T) {
	need.Full(t)
	c := harness.Kafka(t, harness.Options{Brokers: 1})
	cfg := c.Config("forgotten.")
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1, Replication: 1}))
	adm, err := admin.New(cfg)
	must(t, err)
	defer adm.Close()
	publish(t, cfg, change("a", 0), change("b", 0))
	var in, late inbox
	g, err := changesReaders()["Pool"](cfg, &in)
	stop := running(t, g, err)
	in.await(t, "a", "b")
	wait(t, time.Second) // it commits
	must(t, stop())
	kept, err := adm.OffsetCheckpoints(t.Context())
	if err != nil || len(kept) != 1 {
		t.Fatalf("positions %v, %v", kept, err)
	}
	publish(t, cfg, append(kept, change("c", 0))...)
	c.DeleteGroup(t, cfg, schemas.RolePlanner)
	g, err = changesReaders()["Pool"](cfg, &late)
	running(t, g, err)
	late.await(t, "c")
}
