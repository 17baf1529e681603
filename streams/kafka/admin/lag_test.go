package admin_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

// The planner takes a second per message: the lag is 60 at first, and 45 fifteen seconds later.
func TestLags(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		cfg := b.Config()
		cfg.Controls = &client.Controls{}
		a := parttest.NewAdmin(t, cfg)
		for i := range 60 {
			b.Send(parttest.Change(fmt.Sprint(i)))
		}
		const planner = "planner high millrace.planner changes: "
		const again = "planner high millrace.planner again.planner: 0 of 0 due, 0 s"
		parttest.SameLines(t, "at first", parttest.Lags(t, a, schemas.RolePlanner), planner+"60 of 60 due", again)
		time.Sleep(15 * time.Second)
		parttest.SameLines(t, "nothing moved", parttest.Lags(t, a, schemas.RolePlanner), planner+"60 of 60 due", again)

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner,
			Topics: []schemas.Topic{schemas.Changes}, Workers: 1},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				time.Sleep(time.Second)
				return parttest.Plan(ctx, d)
			})
		must(t, err)
		go func() { done <- g.Run(ctx) }()
		time.Sleep(5500 * time.Millisecond) // time to join
		first, err := a.Lags(t.Context(), schemas.RolePlanner)
		must(t, err)
		time.Sleep(15 * time.Second)
		second, err := a.Lags(t.Context(), schemas.RolePlanner)
		must(t, err)
		left, moved := second[0].Records, first[0].Records-second[0].Records
		if moved < 13 || moved > 15 {
			t.Fatalf("%d messages in 15 s, one a second", moved)
		}
		if want := float64(left) * 15 / float64(moved); second[0].Seconds == nil || *second[0].Seconds < want-1 ||
			*second[0].Seconds > want+1 {
			t.Errorf("%s to go, want about %v", parttest.FormatLag(second[0]), want)
		}
		if *second[0].Bytes >= *first[0].Bytes {
			t.Errorf("%d bytes are left, and %d were before", *second[0].Bytes, *first[0].Bytes)
		}
		ctl := &pb.Control{Id: "1", Role: string(schemas.RolePlanner), Paused: true}
		must(t, cfg.Controls.Apply([]byte(schemas.Key(ctl.GetRole(), "", "", "")), ctl))
		time.Sleep(2 * time.Second)
		paused, err := a.Lags(t.Context(), schemas.RolePlanner)
		must(t, err)
		if paused[0].Records == 0 || paused[0].Due() != 0 {
			t.Errorf("%s while the role is paused, want none due of some", parttest.FormatLag(paused[0]))
		}
		cancel()
		must(t, <-done)
	})
}

// Records in a delay lane are no lag until they are due, and then lag of the delayer.
func TestLagsOfLanes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 2,
			Lanes: []client.Lane{{Name: "30s", Delay: 30 * time.Second}, {Name: "5m", Delay: 5 * time.Minute}}})
		a := parttest.NewAdmin(t, b.Config())
		parttest.Lags(t, a, schemas.RoleDelayer) // the first call takes longer: it has to find the group
		start := time.Now()
		at := func(when time.Time) { time.Sleep(time.Until(when)) }
		for i, lane := range []string{"30s", "5m", "30s"} {
			at(start.Add(time.Duration(i+1) * 10 * time.Second))
			b.Write(kafkatest.Record{Partition: int32(i % 2),
				Record: schemas.Record{Topic: schemas.Delay(lane), Key: []byte("k"), Value: []byte("waits"),
					Headers: []schemas.Header{{Key: schemas.HeaderOriginTopic, Value: []byte(schemas.Changes)},
						{Key: schemas.HeaderRole, Value: []byte(schemas.RolePlanner)}}}})
		}
		appended := b.Read(schemas.Delay("30s")) // with the broker's timestamps
		first, second := appended[0].Timestamp.Add(30*time.Second), appended[1].Timestamp.Add(30*time.Second)
		const d = "delayer high millrace.delayer delay."
		none := []string{d + "30s: 0 of 0 due, 0 s", d + "5m: 0 of 0 due, 0 s"}
		parttest.SameLines(t, "before", parttest.Lags(t, a, schemas.RoleDelayer), none...)
		at(first.Add(-time.Millisecond))
		parttest.SameLines(t, "a moment before the first", parttest.Lags(t, a, schemas.RoleDelayer), none...)
		at(first)
		parttest.SameLines(t, "the first", parttest.Lags(t, a, schemas.RoleDelayer), d+"30s: 1 of 1 due", none[1])
		at(second)
		parttest.SameLines(t, "both of a lane", parttest.Lags(t, a, schemas.RoleDelayer), d+"30s: 2 of 2 due", none[1])
		parttest.Background(t, parttest.Delayer(t, b))
		time.Sleep(time.Minute)
		parttest.SameLines(t, "moved", parttest.Lags(t, a, schemas.RoleDelayer, schemas.RolePlanner), append(none,
			"planner high millrace.planner changes: 0 of 0 due, 0 s",
			"planner high millrace.planner again.planner: 2 of 2 due")...)
	})
}

// Each class has its group and its lag. Roles that read the same topic have a lag each.
func TestLagsByClass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		c := parttest.Command(parttest.Change("a").Body.(*pb.Change))
		low := c
		low.Topic = schemas.DuplicationLow
		b.Send(c, low, low)
		a := parttest.NewAdmin(t, b.Config())
		parttest.SameLines(t, "copier", parttest.Lags(t, a, schemas.RoleCopier),
			"copier high millrace.copier duplication.high: 1 of 1 due",
			"copier low millrace.copier.low duplication.low: 2 of 2 due",
			"copier large millrace.copier.large duplication.large: 0 of 0 due, 0 s",
			"copier high millrace.copier backlog.copier: 0 of 0 due, 0 s",
			"copier low millrace.copier.low backlog.copier.low: 0 of 0 due, 0 s",
			"copier low millrace.copier.low again.copier: 0 of 0 due, 0 s",
			"copier large millrace.copier.large again.copier.large: 0 of 0 due, 0 s")
		parttest.SameLines(t, "no role", parttest.Lags(t, a))
	})
}

// If brokers do not report log sizes, Bytes is estimated from the records that were read. If none were read, it is nil.
func TestLagsWithoutSizes(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	must(t, err)
	t.Cleanup(cluster.Close)
	reg := prometheus.NewRegistry()
	cfg := client.Config{Brokers: cluster.ListenAddrs(), Prefix: "p.", Heartbeat: 100 * time.Millisecond,
		Metrics: metrics.New(reg)}
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 3, Replication: 3}))
	p, err := kafka.NewProducer(cfg, "test")
	must(t, err)
	defer p.Close()
	send := func() {
		t.Helper()
		var msgs []schemas.Message
		for i := range 100 {
			msgs = append(msgs, parttest.Change(fmt.Sprint(i)))
		}
		must(t, p.Publish(t.Context(), msgs...))
	}
	send()
	a := parttest.NewAdmin(t, cfg)
	look := func() admin.Lag {
		t.Helper()
		got, err := a.Lags(t.Context(), schemas.RolePlanner)
		must(t, err)
		return got[0]
	}
	size := look()
	if size.Bytes == nil || *size.Bytes < 100*10 || *size.Bytes > 100*1000 {
		t.Fatalf("%s: not the bytes that 100 messages take with three leaders", parttest.FormatLag(size))
	}
	cluster.ControlKey(int16(kmsg.DescribeLogDirs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeLogDirsResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil, true
	})
	if got := parttest.FormatLag(look()); got != "planner high p.planner changes: 100 of 100 due, bytes unknown" {
		t.Errorf("got %q, want no bytes: nobody knows them", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
		parttest.Plan)
	must(t, err)
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	must(t, parttest.Committed(t.Context(), a, schemas.Changes, schemas.RolePlanner))
	cancel()
	must(t, <-done)
	send()
	read := look()
	if read.Records != 100 || read.Bytes == nil || *read.Bytes < *size.Bytes/2 || *read.Bytes > *size.Bytes*2 {
		t.Errorf("got %s (%v bytes) by the records read, want about the %d that the brokers report for as many",
			parttest.FormatLag(read), read.Bytes, *size.Bytes)
	}
}

// Lags returns no values with an error.
func TestLagsWithoutBrokers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		a := parttest.NewAdmin(t, b.Config())
		mend := b.Disconnect()
		defer mend()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if got, err := a.Lags(ctx, schemas.RolePlanner); err == nil {
			t.Errorf("got %v, want an error", got)
		}
	})
}

// must fails the test with an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
