package app

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
)

// kafkaClockSweep is the name of a checkpoint that is published to read Kafka's clock.
const kafkaClockSweep = "clock"

// Begin returns the time of rounds that a command begins now, by Kafka's clock. A dry run publishes nothing, and goes
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

// readClock reads a table of checkpoints to the end, and Kafka's clock by a checkpoint that it publishes. newest
// returns the time of the newest of these that the table has read.
func (a *App) readClock(ctx context.Context, table *kafka.Table, newest func() time.Time) error {
	sent := time.Now()
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Checkpoints,
		Body: &pb.Checkpoint{Id: schemas.NewID(), Sweep: kafkaClockSweep}}); err != nil {
		return fmt.Errorf("read Kafka's clock: %w", err)
	}
	if err := table.CatchUp(ctx); err != nil {
		return err
	}
	a.kafka.Clock.Set(sent, newest())
	return nil
}

// CatchUp returns when all checkpoints are known that were published before the call. It reads Kafka's clock if the
// process has not set it for a minute.
func (c *checkpoints) CatchUp(ctx context.Context) error {
	if c.app.kafka.Clock.IsSet() {
		return c.Table.CatchUp(ctx)
	}
	return c.app.readClock(ctx, c.Table, func() time.Time {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.clockRead
	})
}
