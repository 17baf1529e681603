package kafka_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// A handler gets the last message of its key that waits in this process, and none that has another key or was
// handled.
func TestPoolPassesLastQueuedMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Numbered(10, 2)...) // items 0 and 1, five versions of each
		var mu sync.Mutex
		got := map[string][]string{}
		h := func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			time.Sleep(time.Second) // all are read by then
			c, behind := d.Body.(*pb.Change), "none"
			if next, ok := d.Successor.(*pb.Change); ok {
				behind = next.GetItem() + " " + next.GetVersion()
			}
			mu.Lock()
			defer mu.Unlock()
			got[c.GetItem()] = append(got[c.GetItem()], behind)
			return parttest.Plan(ctx, d)
		}
		describe := func(b schemas.Body) kafka.Work { return kafka.Work{Key: b.(*pb.Change).GetItem()} }
		must(t, parttest.Run(t, time.Minute, pool(t, b, kafka.PoolConfig{Describe: describe}, h)))
		for item, last := range map[string]string{"0": "0 8", "1": "1 9"} {
			want := []string{last, last, last, last, "none"}
			if !slices.Equal(got[item], want) {
				t.Errorf("item %s: got %q, want %q", item, got[item], want)
			}
		}
	})
}

// A message from a lane is older than its position says, and has fewer deliveries left. A message of another
// fetcher can be revoked while the message before it is committed. Neither is passed as the last queued one.
func TestPoolSkipsUncertainQueuedMessages(t *testing.T) {
	t.Parallel()
	of := func(topic schemas.Topic, cause string) schemas.Message {
		m := parttest.Command(parttest.Change("a").Body.(*pb.Change))
		m.Topic = topic
		m.Body.(*pb.DuplicationCommand).Cause = cause
		return m
	}
	const high, low = schemas.DuplicationHigh, schemas.DuplicationLow
	for name, tt := range map[string]struct {
		fails bool // the first delivery of the older command
		sent  []schemas.Message
		want  string // queued behind the newer one
	}{
		"of the same group":     {false, []schemas.Message{of(high, "block"), of(high, "newer"), of(high, "other")}, "other"},
		"of another group":      {false, []schemas.Message{of(high, "block"), of(high, "newer"), of(low, "other")}, "none"},
		"came back from a lane": {true, []schemas.Message{of(high, "other"), of(high, "block"), of(high, "newer")}, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{ShortFetches: true, Partitions: 1, Lanes: parttest.QuickLanes()})
				var mu sync.Mutex
				var calls []string
				h := func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					c, behind := d.Body.(*pb.DuplicationCommand), "none"
					if next, ok := d.Successor.(*pb.DuplicationCommand); ok {
						behind = next.GetCause()
					}
					mu.Lock()
					calls = append(calls, c.GetCause()+" before "+behind)
					mu.Unlock()
					switch {
					case c.GetCause() == "block":
						time.Sleep(40 * time.Second)
					case c.GetCause() == "other" && tt.fails && d.Attempt == 1 && d.Waits == 0 && d.From == high:
						return nil, retry.Unavailable(context.DeadlineExceeded)
					}
					return nil, nil
				}
				p, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleCopier, Workers: 4,
					Topics:   []schemas.Topic{high, low},
					Describe: func(b schemas.Body) kafka.Work { return kafka.Work{Key: b.(*pb.DuplicationCommand).GetItem()} },
				}, h)
				must(t, err)
				parttest.Background(t, parttest.Delayer(t, b))
				parttest.Background(t, p)
				for _, m := range tt.sent {
					time.Sleep(5 * time.Second)
					b.Send(m)
				}
				time.Sleep(100 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				if n := len(calls); n < 3 || calls[n-2] != "newer before "+tt.want || calls[n-1] != "other before none" {
					t.Errorf("got %q", calls)
				}
			})
		})
	}
}
