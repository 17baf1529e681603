// Package parttest has the messages and helpers that the tests of pools, admin and dead letters share.
package parttest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// QuickLanes returns lanes that do not take a day: fake time has a cost too.
func QuickLanes() []client.Lane {
	return []client.Lane{{Name: "30s", Delay: 30 * time.Second}, {Name: "2m", Delay: 2 * time.Minute},
		{Name: "5m", Delay: 5 * time.Minute}, {Name: "10m", Delay: 10 * time.Minute}}
}

// Change returns a message for topic changes.
func Change(item string) schemas.Message {
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "maps", Item: item, Version: "v-" + item,
		Time: timestamppb.New(time.UnixMilli(1_700_000_000_000)),
	}
	c.Id = schemas.ChangeID(c)
	return schemas.Message{Topic: schemas.Changes, Body: c}
}

// Command returns the command that the planner of these tests makes of a change.
func Command(c *pb.Change) schemas.Message {
	return schemas.Message{Topic: schemas.DuplicationHigh, Body: &pb.DuplicationCommand{
		Id: schemas.ID("command", c.GetId()), Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(),
		SourceStore: "1", DestinationStore: "2", Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
	}}
}

// Plan is a handler that plans one command for each change.
func Plan(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	return []schemas.Message{Command(d.Body.(*pb.Change))}, nil
}

// Run runs a part for d, or until it fails.
func Run(t *testing.T, d time.Duration, part interface{ Run(context.Context) error }) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return part.Run(ctx)
}

// Committed waits until the groups of all roles have committed the end of topic at the time of the call.
func Committed(ctx context.Context, a *admin.Admin, topic schemas.Topic, roles ...schemas.Role) error {
	reads := map[schemas.Role][]schemas.Topic{}
	for _, role := range roles {
		reads[role] = []schemas.Topic{topic}
	}
	_, err := a.NewWatermark(topic, reads).Wait(ctx)
	return err
}

// Background runs a part until the test ends.
func Background(t *testing.T, part interface{ Run(context.Context) error }) {
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

// Await waits for done, for a minute at most: in real time the machine may be busy.
func Await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); <-time.After(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// Planner returns a Pool of the planner with handler h.
func Planner(t *testing.T, b *kafkatest.Broker, h kafka.Handler) *kafka.Pool {
	t.Helper()
	g, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RolePlanner,
		Topics: []schemas.Topic{schemas.Changes}}, h)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Delayer returns a Delayer.
func Delayer(t *testing.T, b *kafkatest.Broker) *kafka.Delayer {
	t.Helper()
	d, err := kafka.NewDelayer(b.Config())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Items returns the sorted items of the messages in a topic.
func Items(b *kafkatest.Broker, topic schemas.Topic) []string {
	var s []string
	for _, body := range b.Bodies(topic) {
		s = append(s, body.(interface{ GetItem() string }).GetItem())
	}
	slices.Sort(s)
	return s
}

// Sum returns the sum of the values of m.
func Sum(m map[int32]int64) (n int64) {
	for v := range maps.Values(m) {
		n += v
	}
	return n
}

// NewAdmin returns an Admin that the test closes.
func NewAdmin(t *testing.T, cfg client.Config) *admin.Admin {
	t.Helper()
	a, err := admin.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// Numbered returns n changes of keys items in turn, with their numbers as versions.
func Numbered(n, keys int) (msgs []schemas.Message) {
	for i := range n {
		m := Change(fmt.Sprint(i % keys))
		m.Body.(*pb.Change).Version = fmt.Sprint(i)
		msgs = append(msgs, m)
	}
	return msgs
}

// Encoded returns messages as records of one partition.
func Encoded(t *testing.T, partition int32, msgs ...schemas.Message) (recs []kafkatest.Record) {
	t.Helper()
	for _, m := range msgs {
		r, err := schemas.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		recs = append(recs, kafkatest.Record{Record: r, Partition: partition})
	}
	return recs
}

// Kadm returns a client for the actions of an operator.
func Kadm(t *testing.T, cfg client.Config) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...), kgo.Dialer(cfg.Dialer), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// FormatLag formats a lag in one line, without values that a test cannot predict.
func FormatLag(l admin.Lag) string {
	s := fmt.Sprintf("%s %s %s %s: %d of %d due", l.Role, l.Class, l.Group, l.Topic, l.Due(), l.Records)
	if l.Bytes == nil {
		s += ", bytes unknown"
	} else if (*l.Bytes > 0) != (l.Records > 0) {
		s += fmt.Sprintf(", %d bytes", *l.Bytes)
	}
	if l.Seconds != nil {
		s += fmt.Sprintf(", %.0f s", *l.Seconds)
	}
	return s
}

// Lags returns the lags of roles, one line each.
func Lags(t *testing.T, a *admin.Admin, roles ...schemas.Role) (all []string) {
	t.Helper()
	got, err := a.Lags(t.Context(), roles...)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range got {
		all = append(all, FormatLag(l))
	}
	return all
}

// SameLines compares lines.
func SameLines(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\ngot  %q\nwant %q", what, got, want)
	}
}

// Bare starts a broker for a single test, for faults that kafkatest does not have.
func Bare(t *testing.T, brokers int, partitions int32) (*kfake.Cluster, client.Config) {
	t.Helper()
	network := new(kfake.VirtualNetwork)
	ports := make([]int, brokers)
	for i := range ports {
		ports[i] = 9092 + i
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(brokers), kfake.Ports(ports...), kfake.ListenFn(network.Listen))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	cfg := client.Config{Brokers: cluster.ListenAddrs(), Dialer: network.DialContext, Prefix: "millrace."}
	o := admin.TopicOptions{Partitions: partitions, Replication: 1}
	if err := admin.EnsureTopics(t.Context(), cfg, o); err != nil {
		t.Fatal(err)
	}
	return cluster, cfg
}

// Fill writes n records to each partition of a topic.
func Fill(t *testing.T, cfg client.Config, topic schemas.Topic, n, partitions int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...), kgo.Dialer(cfg.Dialer),
		kgo.DisableClientMetrics(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for i := range n * partitions { // distinct keys: nothing is compacted
		r := &kgo.Record{Topic: cfg.Prefix + string(topic), Partition: int32(i % partitions),
			Key: fmt.Append(nil, time.Now().UnixNano(), i), Value: []byte("x")}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// Trimmer returns a Trimmer whose Admin the test closes.
func Trimmer(t *testing.T, cfg client.Config, keep time.Duration) *admin.Trimmer {
	t.Helper()
	adm, err := admin.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(adm.Close)
	return admin.NewTrimmer(adm, keep)
}

// LogStarts returns the log starts of a topic's partitions.
func LogStarts(t *testing.T, cfg client.Config, topic schemas.Topic) map[int32]int64 {
	t.Helper()
	listed, err := Kadm(t, cfg).ListStartOffsets(t.Context(), cfg.Prefix+string(topic))
	if err != nil {
		t.Fatal(err)
	}
	at := map[int32]int64{}
	for id, l := range listed[cfg.Prefix+string(topic)] {
		at[id] = l.Offset
	}
	return at
}

// Commit sets the committed offset of a group in partition 0 of a topic.
func Commit(t *testing.T, cfg client.Config, group string, topic schemas.Topic, at int64) {
	t.Helper()
	CommitOf(t, cfg, group, kadm.Offset{Topic: string(topic), At: at, LeaderEpoch: -1})
}

// CommitOf is commit for any partition.
func CommitOf(t *testing.T, cfg client.Config, group string, o kadm.Offset) {
	t.Helper()
	var os kadm.Offsets
	o.Topic = cfg.Prefix + o.Topic
	os.Add(o)
	if err := Kadm(t, cfg).CommitAllOffsets(t.Context(), group, os); err != nil {
		t.Fatal(err)
	}
}
