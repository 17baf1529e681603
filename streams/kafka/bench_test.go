package kafka_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// The time from the start of a Pool until it handles a message behind a million of another account, with
// tasks of a second each.
func BenchmarkPoolBehindABacklog(b *testing.B) {
	for _, partitions := range []int32{1, 12} {
		b.Run(fmt.Sprint(partitions, " partitions"), func(b *testing.B) {
			const backlog = 1_000_000
			for b.Loop() {
				b.StopTimer()
				broker := kafkatest.New(b, kafkatest.Options{Partitions: partitions, RealTime: true, Loopback: true})
				for i := 0; i < backlog; i += 50_000 {
					broker.Send(copies("giant", "1", i, 50_000)...)
				}
				broker.Send(copies("small", "1", 0, 1)...)
				ctx, cancel := context.WithCancel(b.Context())
				handled := make(chan struct{})
				p := copier(b, broker.Config(), kafka.PoolConfig{DrainTimeout: time.Millisecond},
					func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
						if describeCopy(d.Body).Account == "small" {
							close(handled)
							return nil, nil
						}
						select {
						case <-ctx.Done():
							return nil, ctx.Err()
						case <-time.After(time.Second):
							return nil, nil
						}
					})
				end := make(chan error, 1)
				b.StartTimer()
				go func() { end <- p.Run(ctx) }()
				<-handled
				b.StopTimer()
				cancel()
				must(b, <-end)
				b.StartTimer()
			}
		})
	}
}
