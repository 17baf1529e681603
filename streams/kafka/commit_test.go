package kafka_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A slowCommits connection takes most of a second to send a commit. cut counts those that were closed before
// their response.
type slowCommits struct {
	net.Conn
	cut  *atomic.Int64
	open atomic.Bool // a commit has no response yet
}

func (s *slowCommits) Write(p []byte) (int, error) {
	if len(p) > 6 && binary.BigEndian.Uint16(p[4:]) == uint16(kmsg.OffsetCommit) {
		s.open.Store(true)
		time.Sleep(900 * time.Millisecond)
	}
	return s.Conn.Write(p)
}

func (s *slowCommits) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n > 0 {
		s.open.Store(false)
	}
	return n, err
}

func (s *slowCommits) Close() error {
	if s.open.Swap(false) {
		s.cut.Add(1)
	}
	return s.Conn.Close()
}

// The end of Run interrupts no commit. Otherwise the client would close the connection, and the broker could
// apply the commit after the last one, which uses another connection.
func TestPoolStopCutsOffNoCommit(t *testing.T) {
	t.Parallel()
	const end = 10500 * time.Millisecond // between two ticks, while a commit runs
	for name, ending := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, end) },
		"cancelled": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(end, cancel)
			return ctx, cancel
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1})
				const n = 500
				b.Send(parttest.Numbered(n, n)...)
				var log bytes.Buffer
				var cut, done atomic.Int64
				cfg := b.Config()
				cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
				dial := cfg.Dialer
				cfg.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := dial(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return &slowCommits{Conn: c, cut: &cut}, nil
				}
				p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
					Workers: 1},
					func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
						time.Sleep(100 * time.Millisecond)
						done.Add(1)
						return nil, nil
					})
				must(t, err)
				ctx, cancel := ending(t.Context())
				defer cancel()
				must(t, p.Run(ctx))
				if cut.Load() != 0 || strings.Contains(log.String(), "commit") {
					t.Errorf("%d commits were cut off; log: %s", cut.Load(), log.String())
				}
				if at := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); at != done.Load() || at == 0 || at == n {
					t.Errorf("committed %d, want %d", at, done.Load())
				}
			})
		})
	}
}
