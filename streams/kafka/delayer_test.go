package kafka_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// Records in a lane that is no longer configured return, and not early.
func TestDelayerEmptiesLanesOfOldSettings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Lanes: parttest.QuickLanes()})
		p, err := kafka.NewProducer(b.Config(), "test")
		must(t, err)
		defer p.Close()
		waits := parttest.Command(parttest.Change("a").Body.(*pb.Change))
		waits.Due = time.Now().Add(3 * time.Minute)
		must(t, p.Publish(t.Context(), waits))
		if n := len(b.Read(schemas.Delay("2m"))); n != 1 {
			t.Fatalf("%d records in the lane, want 1", n)
		}
		cfg := b.Config()
		cfg.Lanes = []client.Lane{{Name: "20s", Delay: 20 * time.Second}}
		o := admin.TopicOptions{Partitions: 2, Replication: 1, MinInSync: 1}
		must(t, admin.EnsureTopics(t.Context(), cfg, o))
		again := schemas.Again(schemas.RoleCopier)
		for _, tt := range []struct {
			runs time.Duration
			want int
		}{{2 * time.Minute, 0}, {2 * time.Minute, 1}, {time.Minute, 1}} {
			d, err := kafka.NewDelayer(cfg)
			must(t, err)
			must(t, parttest.Run(t, tt.runs, d))
			if n := len(b.Read(again)); n != tt.want {
				t.Errorf("%d records came back, want %d", n, tt.want)
			}
		}
	})
}

// A message that is published into a lane has Kafka's time of its first record, whatever the clock of its process says.
func TestDelayedMessageHasTheTimeOfItsFirstRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Lanes: parttest.QuickLanes(), Behind: 3 * time.Minute})
		sendLate(t, b, 1, command)
		d, err := kafka.NewDelayer(b.Config())
		must(t, err)
		must(t, parttest.Run(t, time.Minute, d))
		again := b.Read(schemas.Again(schemas.RoleCopier))
		if len(again) != 1 {
			t.Fatalf("%d records came back", len(again))
		}
		first := b.Read(schemas.Delay(parttest.QuickLanes()[0].Name))[0].Timestamp
		got := again[0].Header(schemas.HeaderOriginTimestamp)
		if want := fmt.Sprint(first.UnixMilli()); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// While brokers refuse due records, metrics show how long these have waited.
func TestDelayerReportsAgeWhileBrokersRefuse(t *testing.T) {
	t.Parallel()
	b := kafkatest.New(t, kafkatest.Options{RealTime: true,
		Lanes: []client.Lane{{Name: "100ms", Delay: 100 * time.Millisecond}}})
	cfg, reg := withMetrics(b)
	refused := b.CountWrites(schemas.Again(schemas.RoleCopier))
	mend := b.FailProduce(schemas.Again(schemas.RoleCopier), kafkatest.NotDone, -1)
	d, err := kafka.NewDelayer(cfg)
	must(t, err)
	waits := parttest.Command(parttest.Change("a").Body.(*pb.Change))
	p, err := kafka.NewProducer(cfg, "test")
	must(t, err)
	defer p.Close()
	waits.Due = time.Now().Add(2 * time.Second) // or a slow machine would publish it after it is due
	must(t, p.Publish(t.Context(), waits))
	parttest.Background(t, d)
	parttest.Await(t, "a record is moved", func() bool { return refused() > 0 })
	seen := make(chan error, 1)
	go func() { _, err := reg.Gather(); seen <- err }()
	select {
	case err := <-seen:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the metrics do not answer")
	}
	mend()
	parttest.Await(t, "the record comes back", func() bool { return len(b.Read(schemas.Again(schemas.RoleCopier))) > 0 })
}

// Records that one partition of an again topic refuses delay those of other roles by seconds, and count as handled
// when it accepts them.
func TestDelayerPassesRefusedRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 2, Lanes: parttest.QuickLanes()})
		cfg, reg := withMetrics(b)
		copier, planner := schemas.Again(schemas.RoleCopier), schemas.Again(schemas.RolePlanner)
		mend := b.FailProduceTo(copier, 0, kafkatest.NotDone)
		d, err := kafka.NewDelayer(cfg)
		must(t, err)
		parttest.Background(t, d)
		const n = 20
		sendLate(t, b, n, command)
		time.Sleep(2 * time.Minute)
		sendLate(t, b, n, parttest.Change)
		time.Sleep(45 * time.Second) // 30 s of them in the lane
		if got := len(b.Read(planner)); got != n {
			t.Errorf("%d records of another role came back, want %d", got, n)
		}
		mend()
		time.Sleep(5 * time.Minute)
		if got := len(b.Read(copier)); got != n {
			t.Errorf("%d refused records came back, want %d", got, n)
		}
		if got := dispositions(t, reg, schemas.RoleDelayer); len(got) != 1 || got["done"] != 2*n {
			t.Errorf("handled %v, want %d", got, 2*n)
		}
	})
}

// While an again topic and the shortest lane refuse records, those that others have taken are not published again.
func TestDelayerRepeatsOnlyRefusedRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 2, Lanes: parttest.QuickLanes()})
		const n = 20
		sendLate(t, b, n, command, parttest.Change)
		copier, planner := schemas.Again(schemas.RoleCopier), schemas.Again(schemas.RolePlanner)
		mend := b.FailProduceTo(copier, 0, kafkatest.NotDone)
		mendLane := b.FailProduce(schemas.Delay("30s"), kafkatest.NotDone, -1)
		parttest.Background(t, parttest.Delayer(t, b))
		time.Sleep(10 * time.Minute)
		if len(b.Read(planner)) == 0 {
			t.Error("no record of a move that was refused in part came back")
		}
		mend()
		mendLane()
		time.Sleep(10 * time.Minute)
		for _, topic := range []schemas.Topic{copier, planner} {
			if got := len(b.Read(topic)); got != n {
				t.Errorf("%d records in %s, want %d", got, topic, n)
			}
		}
	})
}

// Dead letters that topic dead refuses, also one too large for a lane, arrive later as they were. The records have
// the header of redriven letters.
func TestDelayerDeadLettersAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 2, Lanes: parttest.QuickLanes()})
		sizes := []int{1, 3 << 20}
		mend := b.FailProduce(schemas.Dead, kafkatest.NotDone, -1)
		parttest.Background(t, parttest.Delayer(t, b))
		for _, n := range sizes {
			writeForeign(t, b, &kgo.Record{Topic: string(schemas.Delay("30s")), Value: make([]byte, n),
				Headers: []kgo.RecordHeader{{Key: "millrace-role", Value: []byte(schemas.RoleDelayer)}}})
			time.Sleep(5 * time.Minute)
		}
		mend()
		time.Sleep(5 * time.Minute)
		var got []int
		for _, r := range b.Read(schemas.Dead) {
			got = append(got, len(r.Value))
			if h := fmt.Sprintf("%s", r.Headers); !strings.Contains(h, "{millrace-attempts 1}") {
				t.Errorf("headers %.500s", h)
			}
		}
		if slices.Sort(got); !slices.Equal(got, sizes) {
			t.Errorf("dead letters of %v bytes, want %v", got, sizes)
		}
	})
}

func command(id string) schemas.Message {
	return parttest.Command(parttest.Change(id).Body.(*pb.Change))
}

// sendLate publishes n messages of each kind that are due in a second, so they go to the shortest lane.
func sendLate(t *testing.T, b *kafkatest.Broker, n int, kinds ...func(id string) schemas.Message) {
	t.Helper()
	p, err := kafka.NewProducer(b.Config(), "test")
	must(t, err)
	defer p.Close()
	for i := range n {
		for _, message := range kinds {
			m := message(fmt.Sprint(i))
			m.Due = time.Now().Add(time.Second)
			must(t, p.Publish(t.Context(), m))
		}
	}
}
