package kafka_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A countingConn counts the bytes that are read.
type countingConn struct {
	net.Conn
	read *atomic.Int64
}

func (m countingConn) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	m.read.Add(int64(n))
	return n, err
}

// bytesRead returns the number of bytes that a Pool of slow tasks reads for thousands of records of one partition.
func bytesRead(t *testing.T, window int) (bytes int64) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
		n, batch := 20_000, 250
		item := strings.Repeat("x", 100)
		for i := range n / batch {
			var msgs []schemas.Message
			for j := range batch {
				msgs = append(msgs, parttest.Change(fmt.Sprint(item, i*batch+j)))
			}
			b.Send(msgs...)
		}
		cfg, read := b.Config(), new(atomic.Int64)
		dial := cfg.Dialer
		cfg.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return countingConn{c, read}, nil
		}
		p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
			Window: window},
			func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
				time.Sleep(5 * time.Millisecond)
				return nil, nil
			})
		must(t, err)
		parttest.Background(t, p)
		time.Sleep(30 * time.Second)
		if at := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); at != int64(n) {
			t.Errorf("committed %d, want %d", at, n)
		}
		bytes = read.Load()
	})
	return bytes
}

// A Pool that pauses a partition while its tasks run fetches few bytes again: usually a fifth, and a third on
// a busy machine. With fetches of 1 MiB it is nine tenths.
func TestPoolRefetchesLittle(t *testing.T) {
	t.Parallel()
	once, paused := bytesRead(t, 1<<15), bytesRead(t, 0)
	if most := once / 100 * 160; paused > most {
		t.Errorf("%d bytes were read with the default window, want at most %d: once are %d", paused, most, once)
	}
}

// A batch that is larger than the fetch size of a partition is read, and so are the ones after it.
func TestPoolReadsLongBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		long := messageRecord(t, parttest.Change("a"))
		long.Value = make([]byte, 900<<10)
		random := rand.NewChaCha8([32]byte{})
		_, _ = random.Read(long.Value) // it does not compress; Read never fails
		writeForeign(t, b, long)
		b.Send(parttest.Change("b"))
		must(t, parttest.Run(t, time.Minute, pool(t, b, kafka.PoolConfig{}, parttest.Plan)))
		if dead, got := len(b.Read(schemas.Dead)), strings.Join(parttest.Items(b, schemas.DuplicationHigh), " "); dead != 1 ||
			got != "b" {
			t.Errorf("%d dead letters, outputs of %q, want 1 and b", dead, got)
		}
	})
}
