package kafka_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// Tasks of one key in different classes, which have different workers, follow each other at once: the idle
// worker needs no other message to start the second.
func TestPoolKeyOfTwoClasses(t *testing.T) {
	t.Parallel()
	const took = 10 * time.Second // the first task
	for name, topics := range map[string][2]schemas.Topic{
		"large after high": {schemas.DuplicationHigh, schemas.DuplicationLarge},
		"high after large": {schemas.DuplicationLarge, schemas.DuplicationHigh},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
				began := make(chan time.Time, 2)
				p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{
					Role: schemas.RoleCopier, Workers: 2, Large: 1, Topics: topics[:],
				}, func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					began <- time.Now()
					if d.Topic == topics[0] {
						time.Sleep(took)
					}
					return nil, nil
				})
				must(t, err)
				parttest.Background(t, p)
				time.Sleep(5 * time.Second)
				for _, topic := range topics {
					m := parttest.Command(parttest.Change("a").Body.(*pb.Change))
					m.Topic = topic
					b.Send(m)
					time.Sleep(3 * time.Second)
				}
				time.Sleep(time.Minute)
				if len(began) != 2 {
					t.Fatalf("%d tasks began within a minute, want 2", len(began))
				}
				if first, second := <-began, <-began; second.Sub(first) != took {
					t.Errorf("the second began %v after the first, want %v", second.Sub(first), took)
				}
			})
		})
	}
}
