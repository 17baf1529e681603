package kafka_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/kafka/metrics/metricstest"
)

// A process whose clock is more than a minute from that of the broker says so once, and its metric has the difference.
// Each part that publishes compares.
func TestClockOfTheProcess(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		behind time.Duration // the broker
		errors int
	}{
		"right":                       {0, 0},
		"50 s ahead":                  {50 * time.Second, 0},
		"two hours ahead":             {2 * time.Hour, 1},
		"two hours behind the broker": {-2 * time.Hour, 1},
	} {
		for part, run := range map[string]func(*testing.T, *kafkatest.Broker, client.Config){
			"Producer": func(t *testing.T, _ *kafkatest.Broker, cfg client.Config) {
				p, err := kafka.NewProducer(cfg, "test")
				must(t, err)
				defer p.Close()
				for n := range 3 {
					must(t, p.Publish(t.Context(), parttest.Numbered(3, 3)[n]))
					time.Sleep(time.Minute)
				}
			},
			"Pool": func(t *testing.T, b *kafkatest.Broker, cfg client.Config) {
				g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner,
					Topics: []schemas.Topic{schemas.Changes}}, parttest.Plan)
				must(t, err)
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- g.Run(ctx) }()
				for n := range 3 {
					b.Send(parttest.Numbered(3, 3)[n])
					time.Sleep(time.Minute)
				}
				if stop(); <-done != nil {
					t.Error("the pool has ended")
				}
			},
			"Delayer": func(t *testing.T, b *kafkatest.Broker, cfg client.Config) {
				p, err := kafka.NewProducer(b.Config(), "test")
				must(t, err)
				defer p.Close()
				waits := parttest.Command(parttest.Change("a").Body.(*pb.Change))
				waits.Due = time.Now().Add(time.Second)
				later := waits
				later.Due = time.Now().Add(100 * time.Second) // a second reading
				must(t, p.Publish(t.Context(), waits, waits, later))
				d, err := kafka.NewDelayer(cfg)
				must(t, err)
				must(t, parttest.Run(t, 3*time.Minute, d))
			},
		} {
			t.Run(name+", "+part, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Behind: tt.behind, Lanes: parttest.QuickLanes()})
					cfg, reg := withMetrics(b)
					cfg.Clock = new(client.Clock)
					var log bytes.Buffer
					cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
					run(t, b, cfg)
					synctest.Wait() // for the comparison
					got := time.Duration(metricstest.Gather(t, reg)["clock_offset_seconds{}"] * float64(time.Second))
					if off := got - tt.behind; off.Abs() > 2*time.Second {
						t.Errorf("the process is ahead by %v, want %v", got, tt.behind)
					}
					if n := strings.Count(log.String(), "detect wrong clock"); n != tt.errors {
						t.Errorf("%d errors, want %d:\n%s", n, tt.errors, log.String())
					}
				})
			})
		}
	}
}
