// Package kafkabench has the parts of the runtime's benchmarks: a broker in memory that is filled fast, in a
// process of its own as brokers are, and the consumer that the Pool is compared with.
//
// Each run has the same records in the same order. A broker ends when the process that started it ends, even if
// that is killed.
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
	"github.com/millrace/millrace/streams/kafka/client"
)

const (
	fillLinger = 5 * time.Millisecond
	fillBuffer = 200_000 // unacknowledged records at a time
)

// brokerGC keeps the heap small. The data is byte slices, which are cheap to mark, but fresh memory for each
// fetch would take CPU time from the benchmark.
const brokerGC = 50

// Serve runs three brokers on loopback that keep their data in memory. It writes the host and port of one to out,
// and returns when in ends.
func Serve(in io.Reader, out io.Writer) error {
	debug.SetGCPercent(brokerGC)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		return fmt.Errorf("start broker in memory: %w", err)
	}
	defer cluster.Close()
	if _, err := fmt.Fprintln(out, cluster.ListenAddrs()[0]); err != nil {
		return fmt.Errorf("report the address of the broker: %w", err)
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// A Broker is a process that runs Serve.
type Broker struct {
	process *exec.Cmd
	in      io.Closer // closing it ends the process
	addr    string
}

// brokerStop is how long a broker may take to stop before it is killed.
const brokerStop = 5 * time.Second

// StartBroker starts a program that calls Serve with its standard input and output, and waits for the address.
// The process is killed when ctx ends.
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
		return nil, errors.Join(fmt.Errorf("start broker: it reports no address: %w", err), b.Close())
	}
	b.addr = strings.TrimSpace(line)
	return b, nil
}

// Addr returns the host and port to connect to.
func (b *Broker) Addr() string { return b.addr }

// Close stops the process, which discards the data, and waits for its end.
func (b *Broker) Close() error {
	_ = b.in.Close() // the process may have ended already
	kill := time.AfterFunc(brokerStop, func() { _ = b.process.Process.Kill() })
	defer kill.Stop()
	if err := b.process.Wait(); err != nil {
		return fmt.Errorf("stop broker: %w", err)
	}
	return nil
}

// Fill writes n records and waits until all are acknowledged. Record i is record(i), and goes to its topic and to
// the partition of its key, in batches as Producers write them. One goroutine calls record. prefix is the prefix
// of topic names.
func (b *Broker) Fill(ctx context.Context, prefix string, n int, record func(i int) schemas.Record) error {
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(b.addr), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.WithCompressor(client.Compressor()),
		kgo.ProducerLinger(fillLinger),
		kgo.MaxBufferedRecords(fillBuffer),
	)
	if err != nil {
		return fmt.Errorf("fill topics: %w", err)
	}
	defer cl.Close()
	var (
		once  sync.Once
		first error // first error
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
