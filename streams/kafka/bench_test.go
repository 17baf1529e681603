package kafka_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// benchPool fills changes with n messages over keys, and measures how long a Pool takes to handle them all.
// The messages are written once for all runs of a benchmark.
func benchPool(b *testing.B, n, keys, workers int, h kafka.Handler) {
	broker := kafkatest.New(b, kafkatest.Options{Partitions: 4, RealTime: true, Loopback: true})
	msgs := parttest.Numbered(n, keys)
	broker.Send(msgs...)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		var done atomic.Int64
		ctx, cancel := context.WithCancel(b.Context())
		cfg := broker.Config()
		cfg.Prefix = "millrace."
		all := make(chan struct{})
		first := make(chan struct{})
		p, err := kafka.NewPool(cfg, kafka.PoolConfig{
			Role: schemas.Role(fmt.Sprintf("bench%d", i)), Topics: []schemas.Topic{schemas.Changes}, Workers: workers,
		}, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			out, err := h(ctx, d)
			switch done.Add(1) {
			case 1:
				close(first)
			case int64(n):
				close(all)
			}
			return out, err
		})
		if err != nil {
			b.Fatal(err)
		}
		end := make(chan error, 1)
		go func() { end <- p.Run(ctx) }()
		<-first
		start := time.Now()
		<-all
		b.ReportMetric(float64(n)/time.Since(start).Seconds(), "msgs/s")
		cancel()
		if err := <-end; err != nil {
			b.Fatal(err)
		}
	}
}

// Messages are decoded, over a loopback connection.
func BenchmarkPool(b *testing.B) {
	benchPool(b, 200_000, 10_000, 16, func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
		return nil, nil
	})
}

// 50,000 tasks of 1 ms over 10,000 keys with 256 workers.
func BenchmarkPoolTasks(b *testing.B) {
	benchPool(b, 50_000, 10_000, 256, func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
		t := time.NewTimer(time.Millisecond)
		<-t.C
		return nil, nil
	})
}

// Each message has one output.
func BenchmarkPoolOutputs(b *testing.B) {
	benchPool(b, 50_000, 10_000, 16, parttest.Plan)
}

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
				if err := <-end; err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
