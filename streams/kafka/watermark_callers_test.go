package kafka_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// Each of many callers returns once its own messages are committed, and not before. A caller that gives up does
// not hold up the others.
func TestWatermarkOfManyCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1, ShortFetches: true})
		parttest.Background(t, sink(t, b, kafka.BatchConfig{}, &memoryTable{}))
		time.Sleep(10 * time.Second)
		adm, err := admin.New(b.Config())
		must(t, err)
		defer adm.Close()
		w := adm.NewWatermark(schemas.Changes, map[schemas.Role][]schemas.Topic{schemas.RoleSink: {schemas.Changes}})
		var callers sync.WaitGroup
		for n := int64(1); n <= 20; n++ {
			b.Send(parttest.Change("a"))
			callers.Go(func() {
				got, err := w.Wait(t.Context())
				if err != nil || got[schemas.RoleSink][0].Next < n {
					t.Errorf("after %d records: %v, %v", n, got, err)
				}
			})
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				if _, err := w.Wait(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a caller that gives up: %v", err)
				}
			})
			time.Sleep(30 * time.Millisecond)
		}
		callers.Wait()
	})
}
