package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A deliveryLog records the deliveries of handlers by item, in order.
type deliveryLog struct {
	mu   sync.Mutex
	seen map[string][]int64
}

func (l *deliveryLog) note(d *schemas.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = map[string][]int64{}
	}
	item := d.Body.(*pb.Change).GetItem()
	l.seen[item] = append(l.seen[item], d.Offset)
}

// check reports items that are missing, out of order, or repeated.
func (l *deliveryLog) check(t *testing.T, keys, each int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range keys {
		got := l.seen[fmt.Sprint(i)]
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != each || len(got) != each {
			t.Errorf("item %d: handled at offsets %v, want %d, each once and in order", i, got, each)
		}
	}
}

// Members that join and leave take partitions over. No member crashes, so every message is handled once, in
// the order of its item. This runs in real time: the client holds a lock while members join, and fake time
// does not advance then.
func TestRebalance(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]func(client.Config, kafka.Handler) (interface{ Run(context.Context) error }, error){
		"Pool": func(c client.Config, h kafka.Handler) (interface{ Run(context.Context) error }, error) {
			return kafka.NewPool(c, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
				Window: 64, Workers: 8}, h)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.New(t, kafkatest.Options{Partitions: 4, RealTime: true})
			cfg := b.Config()
			cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
			var l deliveryLog
			h := func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				l.note(d)
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
				return parttest.Plan(ctx, d)
			}
			start := func(ctx context.Context) {
				p, err := part(cfg, h)
				if err == nil {
					err = p.Run(ctx)
				}
				if err != nil {
					t.Error(err)
				}
			}
			const keys, each = 50, 8
			ctx, stop := context.WithCancel(t.Context())
			var stays, others sync.WaitGroup
			defer stays.Wait()
			defer stop()
			stays.Go(func() { start(ctx) })
			for i := range 3 {
				others.Go(func() {
					<-time.After(time.Duration(i) * time.Second)
					ctx, leave := context.WithTimeout(ctx, 1500*time.Millisecond)
					defer leave()
					start(ctx)
				})
			}
			for range each {
				var msgs []schemas.Message
				for i := range keys {
					msgs = append(msgs, parttest.Change(fmt.Sprint(i)))
				}
				b.Send(msgs...)
				<-time.After(500 * time.Millisecond)
			}
			others.Wait()
			parttest.Await(t, "all is committed", func() bool {
				return parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)) == keys*each
			})
			stop()
			stays.Wait()
			l.check(t, keys, each)
			if got := len(b.Read(schemas.DuplicationHigh)); got != keys*each {
				t.Errorf("%d outputs, want %d", got, keys*each)
			}
		})
	}
}
