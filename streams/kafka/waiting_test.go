package kafka

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
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
			w, now := new(UnavailableCounts), time.Now()
			for range tt.waiting {
				w.add("acme/1", now.Add(time.Minute))
			}
			cfg := Config{Brokers: []string{"x"}, Unavailable: w,
				Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
			out := newRouter(cfg, schemas.RoleCopier, 0).failureRecord(&inflightRecord{rec: new(kgo.Record),
				retryHeaders: &retryHeaders{unavailable: tt.unavailable}}, tt.err, now)
			_, level, _ := strings.Cut(log.String(), "level=")
			got := result{out.Topic, strings.Fields(level)[0], w.Count("acme/1")}
			if got != tt.want || strings.Count(log.String(), "\n") != 1 {
				t.Errorf("got %+v, want %+v; log:\n%s", got, tt.want, log.String())
			}
		})
	}
}

// A message counts until it is due.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var none *UnavailableCounts
		none.add("acme/1", time.Now().Add(time.Hour))
		if n := none.Count("acme/1"); n != 0 {
			t.Errorf("nil counts %d", n)
		}
		var w UnavailableCounts
		for _, after := range []time.Duration{10 * time.Second, 20 * time.Second, 20 * time.Second} {
			w.add("acme/1", time.Now().Add(after))
		}
		w.add("acme/2", time.Now().Add(30*time.Second))
		for _, tt := range []struct{ acme1, acme2 int }{{3, 1}, {2, 1}, {0, 1}, {0, 0}} {
			if got1, got2 := w.Count("acme/1"), w.Count("acme/2"); got1 != tt.acme1 || got2 != tt.acme2 {
				t.Errorf("at %v: %d and %d wait, want %d and %d", time.Now(), got1, got2, tt.acme1, tt.acme2)
			}
			time.Sleep(11 * time.Second)
		}
	})
}
