// Package kafkabench is what the figures of the runtime are taken with: a broker in memory
// that is filled fast, and the consumer that the Pool is compared with.
//
// It promises the same records in the same order each time. Nothing outlives the process.
package kafkabench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

const (
	fillLinger = 5 * time.Millisecond
	fillBuffer = 200_000 // records on their way at a time
)

// A Broker is a kfake of one broker on loopback, running from StartBroker until Close.
type Broker struct {
	cluster *kfake.Cluster
	addr    string
}

// StartBroker starts a broker that holds its data in memory.
func StartBroker() (*Broker, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return nil, fmt.Errorf("start broker in memory: %w", err)
	}
	return &Broker{cluster: cluster, addr: cluster.ListenAddrs()[0]}, nil
}

// Addr is the host and port to connect to.
func (b *Broker) Addr() string { return b.addr }

// Close lets go of the data and stops listening.
func (b *Broker) Close() { b.cluster.Close() }

// Fill writes n records, the ith being record(i), each to its topic and the partition of its
// key, in batches as the runtime's own producer makes them, and waits until all are
// acknowledged. One goroutine calls record; prefix is that of the topics.
func (b *Broker) Fill(ctx context.Context, prefix string, n int, record func(i int) schemas.Record) error {
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(b.addr), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()),
		kgo.ProducerLinger(fillLinger),
		kgo.MaxBufferedRecords(fillBuffer),
	)
	if err != nil {
		return fmt.Errorf("fill topics: %w", err)
	}
	defer cl.Close()
	var (
		once  sync.Once
		first error // of those that failed
	)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		r := record(i)
		rec := &kgo.Record{Topic: prefix + string(r.Topic), Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		cl.Produce(ctx, rec, func(_ *kgo.Record, err error) {
			if err != nil {
				once.Do(func() { first = err })
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return fmt.Errorf("fill topics: %w", err)
	}
	if first != nil {
		return fmt.Errorf("fill topics: %w", first)
	}
	return nil
}
