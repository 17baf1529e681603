package kafka_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// inLane writes a waiting command with timestamp at to a lane.
func inLane(t *testing.T, b *kafkatest.Broker, lane schemas.Topic, item string, at time.Time) {
	t.Helper()
	rec, err := schemas.Encode(parttest.Command(parttest.Change(item).Body.(*pb.Change)))
	if err != nil {
		t.Fatal(err)
	}
	rec.Topic = lane
	rec.Headers = append(rec.Headers,
		schemas.Header{Key: schemas.HeaderOriginTopic, Value: []byte(schemas.DuplicationHigh)},
		schemas.Header{Key: schemas.HeaderRole, Value: []byte(schemas.RoleCopier)})
	b.Write(kafkatest.Record{Record: rec, Timestamp: at})
}

// A record with a future timestamp, and those after it, leave their lane even if no process lives as long as the
// lane's delay.
func TestLaneBoundsFutureTimestampsAcrossRestarts(t *testing.T) {
	t.Parallel()
	delay := time.Duration(need.Amount(3, 10, 10)) * time.Minute
	lane, back := schemas.Delay("10m"), schemas.Again(schemas.RoleCopier)
	for name, fault := range map[string]func(*kafkatest.Broker) (mend func()){
		"nothing fails": func(*kafkatest.Broker) func() { return func() {} },
		"a write fails": func(b *kafkatest.Broker) func() { return b.FailProduce(lane, kafkatest.NotDone, 1) },
		"an answer is lost": func(b *kafkatest.Broker) func() {
			return b.FailProduce(lane, kafkatest.DoneNotAcknowledged, 1)
		},
		"killed before each commit": func(b *kafkatest.Broker) func() {
			return b.FailCommit(schemas.RoleDelayer, kafkatest.NotDone, -1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lanes := []client.Lane{{Name: "10m", Delay: delay}}
				b := kafkatest.New(t, kafkatest.Options{NoTopics: true, Lanes: lanes})
				b.MakeTopic(lane, 1, nil)
				b.MakeTopic(back, 1, nil)
				inLane(t, b, lane, "ahead", time.Now().AddDate(1, 0, 0))
				inLane(t, b, lane, "behind it", time.Now())
				mend := fault(b)
				for i := range 4 {
					if err := parttest.Run(t, delay*9/10, parttest.Delayer(t, b)); err != nil {
						t.Fatal(err)
					}
					if got := b.Read(back); i == 0 && len(got) > 0 {
						t.Errorf("%v came back before their time", got)
					}
					mend()
				}
				keys := map[string]bool{}
				for _, r := range b.Read(back) {
					keys[string(r.Key)] = true
				}
				if len(keys) != 2 {
					t.Errorf("%v came back, want both", keys)
				}
			})
		})
	}
}

// A record with a future timestamp, and those after it, leave their lane after the lane's delay, counted from the read.
func TestLaneBoundsFutureTimestamps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const delay = 30 * time.Second
		lane := schemas.Delay("30s")
		b := kafkatest.New(t, kafkatest.Options{NoTopics: true, Lanes: []client.Lane{{Name: "30s", Delay: delay}}})
		b.MakeTopic(lane, 1, nil) // keeps the producers' timestamps
		b.MakeTopic(schemas.Again(schemas.RoleCopier), 1, nil)
		parttest.Background(t, parttest.Delayer(t, b))
		time.Sleep(20 * time.Second)
		inLane(t, b, lane, "ahead", time.Now().AddDate(1, 0, 0))
		inLane(t, b, lane, "behind it", time.Now())
		back := func() int { return len(b.Read(schemas.Again(schemas.RoleCopier))) }
		if time.Sleep(delay - 5*time.Second); back() != 0 {
			t.Errorf("%d records came back before their time", back())
		}
		if time.Sleep(15 * time.Second); back() != 2 {
			t.Errorf("%d records came back in time, want 2", back())
		}
	})
}
