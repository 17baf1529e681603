// Package kafkabench is what the figures of the runtime are taken with: a broker in memory, in a
// process of its own as brokers are, that is filled fast, and the consumer that the Pool is
// compared with.
//
// It promises the same records in the same order each time. Nothing outlives the process: a broker
// ends when whoever started it does, however that ends.
package kafkabench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
)

const (
	fillLinger = 5 * time.Millisecond
	fillBuffer = 200_000 // records on their way at a time
)

// brokerGC keeps the heap small: what is served is bytes, which cost nothing to walk through, while fresh
// memory for each fetch takes the processor from what is measured.
const brokerGC = 50

// Serve is a broker's process: it writes to out the host and port of a cluster of three brokers that
// holds its data in memory, on loopback, and ends when in ends.
func Serve(in io.Reader, out io.Writer) error {
	debug.SetGCPercent(brokerGC)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		return fmt.Errorf("start broker in memory: %w", err)
	}
	defer cluster.Close()
	if _, err := fmt.Fprintln(out, cluster.ListenAddrs()[0]); err != nil {
		return fmt.Errorf("say where the broker is: %w", err)
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// A Broker is a process that serves from StartBroker until Close.
type Broker struct {
	process *exec.Cmd
	in      io.Closer // its end ends the process
	addr    string
}

// brokerStop is how long a broker may take to stop.
const brokerStop = 5 * time.Second

// StartBroker starts a program that calls Serve with its standard input and output, and waits until
// it serves. The end of ctx kills it.
func StartBroker(ctx context.Context, program string, args ...string) (*Broker, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = brokerStop
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	b := &Broker{process: cmd, in: in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start broker: it does not say where it is: %w", err), b.Close())
	}
	b.addr = strings.TrimSpace(line)
	return b, nil
}

// Addr is the host and port to connect to.
func (b *Broker) Addr() string { return b.addr }

// Close lets go of the data and waits until the process has ended.
func (b *Broker) Close() error {
	_ = b.in.Close() // it may have ended
	kill := time.AfterFunc(brokerStop, func() { _ = b.process.Process.Kill() })
	defer kill.Stop()
	if err := b.process.Wait(); err != nil {
		return fmt.Errorf("stop broker: %w", err)
	}
	return nil
}

// Fill writes n records, the ith being record(i), each to its topic and the partition of its
// key, in batches as the runtime's own producer makes them, and waits until all are
// acknowledged. One goroutine calls record; prefix is that of the topics.
func (b *Broker) Fill(ctx context.Context, prefix string, n int, record func(i int) schemas.Record) error {
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(b.addr), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.WithCompressor(kafka.Compressor()),
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
