package kafka_test

import (
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
					Lanes: []client.Lane{{Name: "30s", Delay: 30 * time.Second}}})
				p, err := kafka.NewProducer(b.Config(), "test")
				must(t, err)
				defer p.Close()
				waits := parttest.Command(parttest.Change("a").Body.(*pb.Change))
				waits.Due = time.Now().Add(due)
				must(t, p.Publish(t.Context(), waits))
				parttest.Background(t, parttest.Delayer(t, b))
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
