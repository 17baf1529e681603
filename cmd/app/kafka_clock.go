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

// Begin returns the time of rounds that a command begins now, by Kafka's clock. A dry run publishes nothing, and so goes
// by the clock of its host.
func (a *App) Begin(ctx context.Context, dry bool) (time.Time, error) {
	if !dry {
		known, err := a.newCheckpoints()
		if err != nil {
			return time.Time{}, err
		}
		if err := runDuring(ctx, known.Run, known.CatchUp); err != nil {
			return time.Time{}, err
		}
	}
	return a.kafka.Clock.Now().UTC().Truncate(time.Millisecond), nil
}

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
