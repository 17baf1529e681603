package kafka_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// What a task has left behind may still report progress. The next task of the same worker is cancelled all the same when
// it makes none.
func TestProgressOfAnotherTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		const stall = time.Minute
		first, ended := make(chan context.Context, 1), make(chan time.Duration, 1)
		p := pool(t, b, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}, Workers: 1, Stall: stall},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				if d.Body.(*pb.Change).GetItem() == "a" {
					first <- ctx
					return nil, nil
				}
				began := time.Now()
				<-ctx.Done()
				ended <- time.Since(began)
				return nil, retry.Permanent(errors.New("cancelled"))
			})
		background(t, p)
		b.Send(change("a"), change("b"))
		left := <-first
		for end := time.Now().Add(5 * stall); time.Now().Before(end); time.Sleep(stall / 10) {
			retry.Alive(left)
		}
		select {
		case took := <-ended:
			if took < stall || took > 2*stall {
				t.Errorf("the task was cancelled after %v, want %v", took, stall)
			}
		default:
			t.Error("the task is not cancelled, although it makes no progress")
		}
	})
}
