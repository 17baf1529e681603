package kafka_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// quickLanes returns lanes that do not take a day: fake time has a cost too.
func quickLanes() []client.Lane {
	return []client.Lane{{Name: "30s", Delay: 30 * time.Second}, {Name: "2m", Delay: 2 * time.Minute},
		{Name: "5m", Delay: 5 * time.Minute}, {Name: "10m", Delay: 10 * time.Minute}}
}

// change returns a message for topic changes.
func change(item string) schemas.Message {
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "maps", Item: item, Version: "v-" + item,
		Time: timestamppb.New(time.UnixMilli(1_700_000_000_000)),
	}
	c.Id = schemas.ChangeID(c)
	return schemas.Message{Topic: schemas.Changes, Body: c}
}

// command returns the command that the planner of these tests makes of a change.
func command(c *pb.Change) schemas.Message {
	return schemas.Message{Topic: schemas.DuplicationHigh, Body: &pb.DuplicationCommand{
		Id: schemas.ID("command", c.GetId()), Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: "1", DestinationStore: "2", Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
	}}
}

func plan(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	return []schemas.Message{command(d.Body.(*pb.Change))}, nil
}

// run runs a part for d, or until it fails.
func run(t *testing.T, d time.Duration, part interface{ Run(context.Context) error }) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return part.Run(ctx)
}

// committed waits until the groups of all roles have committed the end of topic at the time of the call.
func committed(ctx context.Context, a *admin.Admin, topic schemas.Topic, roles ...schemas.Role) error {
	reads := map[schemas.Role][]schemas.Topic{}
	for _, role := range roles {
		reads[role] = []schemas.Topic{topic}
	}
	_, err := a.NewWatermark(topic, reads).Wait(ctx)
	return err
}

// background runs a part until the test ends.
func background(t *testing.T, part interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- part.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// await waits for done, for a minute at most: in real time the machine may be busy.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func planner(t *testing.T, b *kafkatest.Broker, h kafka.Handler) *kafka.Pool {
	t.Helper()
	g, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RolePlanner,
		Topics: []schemas.Topic{schemas.Changes}}, h)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func delayer(t *testing.T, b *kafkatest.Broker) *kafka.Delayer {
	t.Helper()
	d, err := kafka.NewDelayer(b.Config())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// items returns the sorted items of the messages in a topic.
func items(b *kafkatest.Broker, topic schemas.Topic) []string {
	var s []string
	for _, body := range b.Bodies(topic) {
		s = append(s, body.(interface{ GetItem() string }).GetItem())
	}
	slices.Sort(s)
	return s
}

func sum(m map[int32]int64) (n int64) {
	for v := range maps.Values(m) {
		n += v
	}
	return n
}
