package app

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// kafkaClockSweep is the name of a checkpoint that is published to read Kafka's clock.
const kafkaClockSweep = "clock"

// A kafkaClock is Kafka's clock, from the last time that the process has read it. Before that it is the clock of the
// process. It does not step with that afterwards.
type kafkaClock struct{ read atomic.Pointer[clockReading] }

type clockReading struct{ at, kafka time.Time }

// Now returns the time.
func (c *kafkaClock) Now() time.Time {
	if r := c.read.Load(); r != nil {
		return r.kafka.Add(time.Since(r.at))
	}
	return time.Now()
}

// CatchUp returns when all checkpoints are known that were published before the call. It reads Kafka's clock if that
// was not read for a minute: the clock stands still while the machine is suspended.
func (c *checkpoints) CatchUp(ctx context.Context) error {
	if r := c.app.clock.read.Load(); r != nil && time.Since(r.at) < time.Minute {
		return c.Table.CatchUp(ctx)
	}
	sent := time.Now()
	if err := c.app.producer.Publish(ctx, schemas.Message{Topic: schemas.Checkpoints,
		Body: &pb.Checkpoint{Id: schemas.NewID(), Sweep: kafkaClockSweep}}); err != nil {
		return fmt.Errorf("read Kafka's clock: %w", err)
	}
	if err := c.Table.CatchUp(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now() // by a right clock Kafka's time of the checkpoint is between sent and now
	ahead := max(sent.Truncate(time.Millisecond).Sub(c.clockRead), 0) + min(at.Sub(c.clockRead), 0)
	c.app.clock.read.Store(&clockReading{at, at.Add(-ahead)})
	return nil
}
