package core

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

// A message that waits for a named store waits in short lanes and is logged only for debugging, unless many
// messages wait. A message that waits for an unnamed cause waits in longer lanes.
func TestFailureRecordUnavailable(t *testing.T) {
	err := errors.New("refused")
	type result struct {
		topic, level string
		waiting      int
	}
	for name, tt := range map[string]struct {
		waiting, unavailable int
		err                  error
		want                 result
	}{
		"named, first": {0, 0, retry.UnavailableFor("acme/1", err), result{"delay.30s", "DEBUG", 1}},
		"named, often": {9, 99, retry.UnavailableFor("acme/1", err), result{"delay.30s", "DEBUG", 10}},
		"named, one fewer than many": {manyWaiting - 1, 99, retry.UnavailableFor("acme/1", err),
			result{"delay.30s", "DEBUG", manyWaiting}},
		"named, many, first": {manyWaiting, 0, retry.UnavailableFor("acme/1", err),
			result{"delay.30s", "DEBUG", manyWaiting + 1}},
		"named, many, again": {manyWaiting, 1, retry.UnavailableFor("acme/1", err),
			result{"delay.5m", "DEBUG", manyWaiting + 1}},
		"another is named": {manyWaiting, 1, retry.UnavailableFor("acme/2", err),
			result{"delay.30s", "DEBUG", manyWaiting}},
		"not named, often": {0, 99, retry.Unavailable(err), result{"delay.5m", "WARN", 0}},
		"a cause of another class, at last": {0, 99, retry.WaitFor("acme/1", err, time.Time{}),
			result{"delay.30s", "WARN", 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			w, now := new(client.UnavailableCounts), time.Now()
			for range tt.waiting {
				w.Add("acme/1", now.Add(time.Minute))
			}
			cfg := client.Config{Brokers: []string{"x"}, Unavailable: w,
				Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
			out := NewRouter(cfg, schemas.RoleCopier, 0).FailureRecord(&Record{Raw: new(kgo.Record),
				RetryHeaders: &RetryHeaders{unavailable: tt.unavailable}}, tt.err, now)
			_, level, _ := strings.Cut(log.String(), "level=")
			got := result{out.Topic, strings.Fields(level)[0], w.Count("acme/1")}
			if got != tt.want || strings.Count(log.String(), "\n") != 1 {
				t.Errorf("got %+v, want %+v; log:\n%s", got, tt.want, log.String())
			}
		})
	}
}
