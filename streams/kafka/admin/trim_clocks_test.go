package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

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
				var log logtest.Lines
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
				parttest.Commit(t, b.Config(), "millrace.copier", topic, tt.committed)
				cfg := b.Config()
				cfg.Log = log.Log()
				tr := parttest.Trimmer(t, cfg, time.Hour)
				for range 2 {
					if _, err := tr.Trim(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if got := parttest.LogStarts(t, cfg, topic)[0]; got != tt.start {
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
				parttest.Commit(t, b.Config(), "millrace.copier", topic, n)
				if _, err := parttest.Trimmer(t, b.Config(), 14*24*time.Hour).Trim(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := parttest.LogStarts(t, b.Config(), topic)[0]; got != tt.start {
					t.Errorf("the log starts at %d, want %d", got, tt.start)
				}
			})
		})
	}
}
