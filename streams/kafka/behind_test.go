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
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A handler learns which message of the same key is the last one that waits in this process, and none that belongs to
// another key or that it has handled.
func TestPoolTellsWhatIsBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(numbered(10, 2)...) // items 0 and 1, five versions of each
		var mu sync.Mutex
		got := map[string][]string{}
		h := func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			time.Sleep(time.Second) // all are read by then
			c, behind := d.Body.(*pb.Change), "none"
			if next, ok := d.Behind.(*pb.Change); ok {
				behind = next.GetItem() + " " + next.GetVersion()
			}
			mu.Lock()
			defer mu.Unlock()
			got[c.GetItem()] = append(got[c.GetItem()], behind)
			return plan(ctx, d)
		}
		describe := func(b schemas.Body) kafka.Work { return kafka.Work{Key: b.(*pb.Change).GetItem()} }
		if err := run(t, time.Minute, pool(t, b, kafka.PoolConfig{Describe: describe}, h)); err != nil {
			t.Fatal(err)
		}
		for item, last := range map[string]string{"0": "0 8", "1": "1 9"} {
			want := []string{last, last, last, last, "none"}
			if !slices.Equal(got[item], want) {
				t.Errorf("item %s: got %q, want %q", item, got[item], want)
			}
		}
	})
}
