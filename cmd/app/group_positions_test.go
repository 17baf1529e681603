package app

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// Changed positions of groups are recorded. After a failure, or a lost acknowledgement, the next
// run records them.
func TestPublishPositions(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kafkatest.Fault{"refused": kafkatest.Refused,
		"done, but reported lost": kafkatest.DoneNotAcknowledged} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				a := trimming(t, b, time.Minute)
				send := func() { // it becomes a dead letter, and is committed
					b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.DuplicationHigh, Key: []byte("k"),
						Value: []byte("malformed")}})
				}
				send()
				g, err := kafka.NewPool(b.Config(),
					kafka.PoolConfig{Role: schemas.RoleCopier, Topics: []schemas.Topic{schemas.DuplicationHigh}},
					func(context.Context, *schemas.Delivery) ([]schemas.Message, error) { return nil, nil })
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 2)
				go func() { ended <- g.Run(ctx) }()
				time.Sleep(time.Minute)
				positions := a.periodic("group positions", positionInterval, a.publishPositions)
				mend := b.FailProduce(schemas.Checkpoints, fault, -1)
				go func() { ended <- positions.run(ctx) }()
				time.Sleep(time.Minute)
				mend()
				count := func() int { return len(b.Read(schemas.Checkpoints)) }
				before := count()
				if fault == kafkatest.Refused && before != 0 {
					t.Errorf("%d on record though refused", before)
				}
				time.Sleep(positionInterval)
				first := count()
				if first != max(before, 1) {
					t.Errorf("%d on record after the next time, %d before", first, before)
				}
				time.Sleep(3 * positionInterval)
				if got := count(); got != first {
					t.Errorf("%d on record though nothing has moved", got)
				}
				send()
				time.Sleep(positionInterval + time.Minute)
				if got := count(); got != first+1 {
					t.Errorf("%d on record after the group has moved, want %d", got, first+1)
				}
				cancel()
				for range 2 {
					if err := <-ended; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}
