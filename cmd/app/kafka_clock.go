package app

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// kafkaClockSweep is the name of a checkpoint that is published to read Kafka's clock.
const kafkaClockSweep = "clock"

// CatchUp returns when all checkpoints are known that were published before the call. It reads Kafka's clock if the
// process has not set it for a minute.
func (c *checkpoints) CatchUp(ctx context.Context) error {
	if c.app.kafka.Clock.IsSet() {
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
	c.app.kafka.Clock.Set(sent, c.clockRead)
	return nil
}
