package app

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
)

// trimmer periodically deletes the records that every reader has handled, except while the sweeper
// or everything is paused. There is no part if trim.every is 0. Records from the offsets of
// gapStarts on are kept.
func (a *App) trimmer(gapStarts func(context.Context) (map[schemas.Topic]map[int32]int64, error)) []part {
	if a.cfg.Trim.Every <= 0 {
		return nil
	}
	t := a.newTrimmer(gapStarts)
	return []part{a.periodic("trimmer", a.cfg.Trim.Every, func(ctx context.Context) { a.trim(ctx, t) })}
}

func (a *App) newTrimmer(gapStarts func(context.Context) (map[schemas.Topic]map[int32]int64, error)) *kafka.Trimmer {
	var topics []schemas.Topic
	for _, roleTopics := range positionTopics() {
		topics = append(topics, roleTopics...)
	}
	slices.Sort(topics)
	t := kafka.NewTrimmer(a.admin, a.cfg.Trim.Keep)
	t.Hold(slices.Compact(topics), gapStarts)
	return t
}

// gapStarts returns the first offsets of the gaps of the tables. Possibly only Kafka still has
// these records.
func (a *App) gapStarts(ctx context.Context) (map[schemas.Topic]map[int32]int64, error) {
	gaps, err := a.findGaps(ctx)
	first := map[schemas.Topic]map[int32]int64{}
	for _, g := range gaps {
		if g.Former { // of a deleted topic: Kafka has none of the records
			continue
		}
		if first[g.Topic] == nil {
			first[g.Topic] = map[int32]int64{}
		}
		if at, ok := first[g.Topic][g.Partition]; !ok || g.From < at {
			first[g.Topic][g.Partition] = g.From
		}
	}
	return first, err
}

// periodic returns a part that runs do at startup and then at the interval every, except while the
// sweeper is paused.
func (a *App) periodic(name string, every time.Duration, do func(context.Context)) part {
	return part{name, func(ctx context.Context) error {
		for a.waitUntilResumed(ctx, name) {
			do(ctx)
			_ = retry.Sleep(ctx, every) // only ctx ends it early
		}
		return nil
	}}
}

// waitUntilResumed waits while the sweeper is paused, and logs the wait. It returns false if ctx
// ends first.
func (a *App) waitUntilResumed(ctx context.Context, name string) bool {
	changed, cancel := a.controls.Watch()
	defer cancel()
	for logged := false; a.controls.Role(schemas.RoleSweeper) && ctx.Err() == nil; logged = true {
		if !logged {
			a.log.Info("wait for the sweeper to be resumed", "part", name)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return ctx.Err() == nil
}

// trim trims once, and publishes the result as a job. The next run repeats what failed.
func (a *App) trim(ctx context.Context, t *kafka.Trimmer) {
	job := &pb.Job{Id: schemas.NewID(), Name: "trim", Started: timestamppb.New(time.Now()), Counts: map[string]int64{}}
	removed, err := t.Trim(ctx)
	if ctx.Err() != nil {
		return
	}
	for topic, n := range removed {
		job.Counts[string(topic)] = n
	}
	if err != nil {
		job.Error = err.Error()
		a.log.Error("trim topics", "removed", removed, "err", err)
	} else if len(removed) > 0 {
		a.log.Info("trimmed topics", "removed", removed)
	}
	a.record(ctx, job)
}

// record publishes a job that has just ended.
func (a *App) record(ctx context.Context, job *pb.Job) {
	job.Finished = timestamppb.New(time.Now())
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Jobs, Body: job}); err != nil && ctx.Err() == nil {
		a.log.Error("record job", "job", job.GetName(), "err", err)
	}
}
