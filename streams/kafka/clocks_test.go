package kafka_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A record that is due much later goes from lane to lane, but not without end if the clock of the broker is behind by
// more than the delay of a lane.
func TestLanesOfABrokerBehind(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]time.Duration{
		"not": 0, "by less than the lane": 20 * time.Second, "by more": time.Hour, "ahead": -time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const due = 70 * time.Second
				lane, back := schemas.Delay("30s"), schemas.Again(schemas.RoleCopier)
				b := kafkatest.New(t, kafkatest.Options{Behind: behind, Partitions: 1,
					Lanes: []client.Lane{{Name: "30s", Delay: 30 * time.Second}, {Name: "1h", Delay: time.Hour}}})
				p, err := kafka.NewProducer(b.Config(), "test")
				must(t, err)
				defer p.Close()
				waits := parttest.Command(parttest.Change("a").Body.(*pb.Change))
				waits.Due = time.Now().Add(due)
				must(t, p.Publish(t.Context(), waits))
				parttest.Background(t, clockDelayer(t, b))
				if time.Sleep(due - 5*time.Second); len(b.Read(back)) != 0 {
					t.Error("it came back before its time")
				}
				if time.Sleep(45 * time.Second); len(b.Read(back)) != 1 {
					t.Errorf("it came back %d times in time, want once", len(b.Read(back)))
				}
				if n := len(b.Read(lane)); n > 75 {
					t.Errorf("it was written to its lane %d times", n)
				}
			})
		})
	}
}

// clockDelayer returns a Delayer of a process that knows Kafka's clock after its first record.
func clockDelayer(t *testing.T, b *kafkatest.Broker) *kafka.Delayer {
	t.Helper()
	cfg := b.Config()
	cfg.Clock = new(client.Clock)
	d, err := kafka.NewDelayer(cfg)
	must(t, err)
	return d
}

// A message comes back when it is due, whatever the clocks of its writer and of the Delayer say, and if the Delayer
// was stopped meanwhile. Clocks are ahead of Kafka's.
func TestLanesOfWrongClocks(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	for name, tt := range map[string]struct{ writer, delayer, stopped time.Duration }{
		"right":                                {0, 0, 0},
		"a writer three years ahead":           {3 * year, 0, 0},
		"a writer three years behind":          {-3 * year, 0, 0},
		"a delayer an hour behind":             {0, -time.Hour, 0},
		"a delayer an hour ahead":              {0, time.Hour, 0},
		"a delayer three years behind":         {0, -3 * year, 0},
		"a delayer three years ahead":          {0, 3 * year, 0},
		"a writer ahead, and a delayer behind": {3 * year, -3 * year, 0},
		"a writer behind, and a delayer ahead": {-time.Hour, 3 * year, 0},
		"a stopped delayer":                    {0, 0, 50 * time.Second},
		"a stopped delayer an hour behind":     {0, -time.Hour, 50 * time.Second},
		"a stopped delayer an hour ahead":      {-time.Hour, time.Hour, 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const due = 70 * time.Second
				b := kafkatest.New(t, kafkatest.Options{Behind: tt.delayer, Partitions: 1,
					Lanes: []client.Lane{{Name: "30s", Delay: 30 * time.Second}, {Name: "1h", Delay: time.Hour}}})
				waits, now := command("a"), time.Now().Add(tt.writer-tt.delayer)
				waits.Due = now.Add(due)
				rec, err := core.NewRouter(b.Config(), schemas.RoleChecker, 0).Encode(waits, now)
				must(t, err)
				rec.Topic = string(schemas.Delay("30s"))
				writeForeign(t, b, rec)
				began, back := time.Now(), schemas.Again(schemas.RoleCopier)
				time.Sleep(tt.stopped)
				parttest.Background(t, clockDelayer(t, b))
				if time.Sleep(due - 5*time.Second - time.Since(began)); len(b.Read(back)) != 0 {
					t.Error("it came back before its time")
				}
				late := 45 * time.Second
				if tt.delayer < 0 { // the second reading of Kafka's clock counts
					late += time.Minute
				}
				if time.Sleep(late); len(b.Read(back)) != 1 {
					t.Errorf("it came back %d times in time, want once", len(b.Read(back)))
				}
				if n := len(b.Read(schemas.Delay("30s"))); n > 5 {
					t.Errorf("it was written to its lane %d times", n)
				}
			})
		})
	}
}
