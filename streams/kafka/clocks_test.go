package kafka_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
				lanes := []client.Lane{{Name: "10m", Delay: 10 * time.Minute}}
				b := kafkatest.New(t, kafkatest.Options{NoTopics: true, Lanes: lanes})
				b.MakeTopic(lane, 1, nil)
				b.MakeTopic(back, 1, nil)
				inLane(t, b, lane, "ahead", time.Now().AddDate(1, 0, 0))
				inLane(t, b, lane, "behind it", time.Now())
				mend := fault(b)
				for i := range 4 {
					if err := parttest.Run(t, 9*time.Minute, parttest.Delayer(t, b)); err != nil {
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

// Future timestamps do not prevent trimming of the records around them, and are logged once.
func TestTrimPassesFutureTimestamps(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		committed, start int64
	}{
		"all handled":                   {1008, 1005},
		"handled up to the future":      {5, 5},
		"handled up to records of then": {600, 600},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				b := kafkatest.New(t, kafkatest.Options{NoTopics: true})
				topic := schemas.DuplicationHigh
				b.MakeTopic(topic, 1, nil)
				write := func(n int, at time.Time) {
					var recs []kafkatest.Record
					for i := range n {
						recs = append(recs, kafkatest.Record{Record: schemas.Record{Topic: topic, Key: fmt.Append(nil, i),
							Value: []byte("x")}, Timestamp: at})
					}
					b.Write(recs...)
				}
				write(5, time.Now())
				write(300, time.Now().AddDate(10, 0, 0))
				write(700, time.Now())
				time.Sleep(30 * 24 * time.Hour)
				write(3, time.Now()) // kept
				commit(t, b.Config(), "millrace.copier", topic, tt.committed)
				cfg := b.Config()
				cfg.Log = slog.New(slog.NewTextHandler(&lockedBuffer{w: &log}, nil))
				tr := trimmer(t, cfg, time.Hour)
				for range 2 {
					if _, err := tr.Trim(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if got := starts(t, cfg, topic)[0]; got != tt.start {
					t.Errorf("the log starts at %d, want %d", got, tt.start)
				}
				if n := strings.Count(log.String(), "records with future timestamps"); n != 1 {
					t.Errorf("reported %d times:\n%s", n, &log)
				}
			})
		})
	}
}

// Records with future timestamps are kept for as long as the records that were written with them.
func TestTrimKeepsFutureTimestamps(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		follow int           // later records with the right time
		later  time.Duration // when the log is trimmed
		start  int64
	}{
		"at once":                        {5, 0, 0},
		"as the last records":            {0, 0, 0},
		"when they are nearly old":       {5, 13 * 24 * time.Hour, 0},
		"when they are old":              {5, 15 * 24 * time.Hour, 10},
		"when it is not known of all":    {0, 15 * 24 * time.Hour, 0},
		"when their time is of the past": {0, 30 * 24 * time.Hour, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{NoTopics: true})
				topic := schemas.DuplicationHigh
				b.MakeTopic(topic, 1, nil)
				n := int64(0)
				write := func(times int, at time.Time) {
					for range times {
						b.Write(kafkatest.Record{Record: schemas.Record{Topic: topic, Key: fmt.Append(nil, n), Value: []byte("x")},
							Timestamp: at})
						n++
					}
				}
				write(5, time.Now().Add(15*24*time.Hour+time.Hour)) // still in the future after 15 days
				write(tt.follow, time.Now())
				time.Sleep(tt.later)
				write(1, time.Now())
				commit(t, b.Config(), "millrace.copier", topic, n)
				if _, err := trimmer(t, b.Config(), 14*24*time.Hour).Trim(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := starts(t, b.Config(), topic)[0]; got != tt.start {
					t.Errorf("the log starts at %d, want %d", got, tt.start)
				}
			})
		})
	}
}
