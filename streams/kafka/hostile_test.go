package kafka_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
	"log/slog"
	"os"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

func TestHostileExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 8})
		for range 4 {
			low := copies("giant", "1", 0, 40_000)
			for i := range low {
				low[i].Topic = schemas.DuplicationLow
			}
			b.Send(low...)
		}
		began := time.Now()
		cfg := b.Config()
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
		p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RoleCopier, Window: 16384,
			Topics: []schemas.Topic{schemas.DuplicationLow}, Describe: describeCopy},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				return nil, retry.Sleep(ctx, time.Second)
			})
		if err != nil {
			t.Fatal(err)
		}
		parttest.Background(t, p)
		for range 8 {
			time.Sleep(10 * time.Second)
			t.Log(time.Since(began), len(b.Read(schemas.Backlog(schemas.RoleCopier, schemas.Low))), parttest.Sum(b.Committed(schemas.RoleCopier, schemas.DuplicationLow)))
		}
	})
}
