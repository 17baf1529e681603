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

// trimmer deletes what every reader has handled, now and then, but not while the sweeper or everything
// is paused; no part where it is turned off. Records that lacking returns are kept.
func (a *App) trimmer(lacking func(context.Context) (map[schemas.Topic]map[int32]int64, error)) []part {
	if a.cfg.Trim.Every <= 0 {
		return nil
	}
	t := a.newTrimmer(lacking)
	return []part{a.periodic("trimmer", a.cfg.Trim.Every, func(ctx context.Context) { a.trim(ctx, t) })}
}

func (a *App) newTrimmer(lacking func(context.Context) (map[schemas.Topic]map[int32]int64, error)) *kafka.Trimmer {
	var topics []schemas.Topic
	for _, of := range positionTopics() {
		topics = append(topics, of...)
	}
	slices.Sort(topics)
	t := kafka.NewTrimmer(a.admin, a.cfg.Trim.Keep)
	t.Keep(slices.Compact(topics), lacking)
	return t
}

// lacking returns where the gaps of the tables begin, which only Kafka may still have.
func (a *App) gapStarts(ctx context.Context) (map[schemas.Topic]map[int32]int64, error) {
	gaps, err := a.findGaps(ctx)
	first := map[schemas.Topic]map[int32]int64{}
	for _, g := range gaps {
		if g.Former { // Kafka has nothing of it
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

// chore is a part that runs do at the start and then once in every, except while the sweeper is paused.
func (a *App) periodic(name string, every time.Duration, do func(context.Context)) part {
	return part{name, func(ctx context.Context) error {
		for a.waitUntilResumed(ctx, name) {
			do(ctx)
			_ = retry.Sleep(ctx, every) // only ctx ends it early
		}
		return nil
	}}
}

// leave waits until the sweeper is not paused, and logs that a part waits. It returns false if ctx ends before.
func (a *App) waitUntilResumed(ctx context.Context, name string) bool {
	changed, cancel := a.controls.Watch()
	defer cancel()
	for said := false; a.controls.Role(schemas.RoleSweeper) && ctx.Err() == nil; said = true {
		if !said {
			a.log.Info("wait until the sweeper is resumed", "part", name)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return ctx.Err() == nil
}

// trim trims once, and puts on record what that came to. What failed is left to the next time.
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
		a.log.Error("trimming stopped short", "removed", removed, "err", err)
	} else if len(removed) > 0 {
		a.log.Info("trimmed", "removed", removed)
	}
	a.record(ctx, job)
}

// record publishes a job that has ended now.
func (a *App) record(ctx context.Context, job *pb.Job) {
	job.Finished = timestamppb.New(time.Now())
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Jobs, Body: job}); err != nil && ctx.Err() == nil {
		a.log.Error("a job is not on record", "job", job.GetName(), "err", err)
	}
}
