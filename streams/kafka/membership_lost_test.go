package kafka_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A member that its group has removed, and that learns it from a commit, loses its partitions. It continues from
// the commits that another member made meanwhile, and no commit goes back. This test runs in real time, as
// TestRebalance does.
func TestRemovedMember(t *testing.T) {
	t.Parallel()
	const n, usurped = 400, 300
	for name, part := range map[string]struct {
		role schemas.Role
		make func(c client.Config, see func(*schemas.Delivery)) (runnable, error)
	}{
		"Pool": {schemas.RolePlanner, func(c client.Config, see func(*schemas.Delivery)) (runnable, error) {
			return kafka.NewPool(c, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
				Workers: 1},
				func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) { see(d); return nil, nil })
		}},
		"BatchGroup": {schemas.RoleSink, func(c client.Config, see func(*schemas.Delivery)) (runnable, error) {
			return kafka.NewBatchGroup(c, kafka.BatchConfig{Role: schemas.RoleSink,
				Topics: []schemas.Topic{schemas.Changes}, MaxRows: 20},
				storeFunc{func(_ context.Context, batch []*schemas.Delivery) error {
					for _, d := range batch {
						see(d)
					}
					return nil
				}})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
			send(b, n)
			cfg := b.Config()
			cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
			cfg.Heartbeat, cfg.SessionTimeout = 20*time.Second, time.Minute // so that a commit fails before a heartbeat does
			var mu sync.Mutex
			var seen []int64
			p, err := part.make(cfg, func(d *schemas.Delivery) {
				<-time.After(15 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, d.Offset)
			})
			must(t, err)
			parttest.Background(t, p)
			handled := func() int {
				mu.Lock()
				defer mu.Unlock()
				return len(seen)
			}
			// The client checks its membership once, half a second after it joined.
			for begun := time.Now(); (handled() < 20 || time.Since(begun) < time.Second) && time.Since(begun) < time.Minute; {
				<-time.After(10 * time.Millisecond)
			}
			committed := func() int64 { return b.Committed(part.role, schemas.Changes)[0] }
			until := func(offset int64) {
				t.Helper()
				for begun, last := time.Now(), int64(0); ; <-time.After(50 * time.Millisecond) {
					now := committed()
					if now < last {
						t.Fatalf("a commit went back from %d to %d", last, now)
					}
					if last = now; now >= offset {
						return
					}
					if time.Since(begun) > time.Minute {
						t.Fatalf("committed %d, want %d", now, offset)
					}
				}
			}
			until(20)
			b.ReplaceMembers(part.role, schemas.Changes, map[int32]int64{0: usurped})
			if at := committed(); at < usurped {
				t.Fatalf("committed %d, want %d: the member was not forgotten", at, usurped)
			}
			until(n)
			mu.Lock()
			defer mu.Unlock()
			// Until it knows of its removal, it may handle the records that it has read. After that it continues from the
			// commit.
			last := seen[0]
			for _, at := range seen {
				if at > last+1 && at != usurped {
					t.Errorf("%d was handled after %d, want %d", at, last, usurped)
				}
				last = at
			}
			if len(seen) > n-50 {
				t.Errorf("%d were handled: it did not lose what it had", len(seen))
			}
		})
	}
}
