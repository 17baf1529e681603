package app

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
)

// trimmer deletes what every reader has handled, now and then, but not while the sweeper or everything
// is paused; no part where it is turned off.
func (a *App) trimmer() []part {
	if a.cfg.Trim.Every <= 0 {
		return nil
	}
	t := kafka.NewTrimmer(a.admin, a.cfg.Trim.Keep)
	return []part{{"trimmer", func(ctx context.Context) error {
		for a.leave(ctx, "trimming paused") {
			a.trim(ctx, t)
			_ = retry.Sleep(ctx, a.cfg.Trim.Every) // only ctx ends it early
		}
		return nil
	}}}
}

// leave waits until the sweeper is not paused, and says so. It returns false where ctx ends before.
func (a *App) leave(ctx context.Context, paused string) bool {
	changed, cancel := a.controls.Watch()
	defer cancel()
	for said := false; a.controls.Role(schemas.RoleSweeper) && ctx.Err() == nil; said = true {
		if !said {
			a.log.Info(paused)
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
	job.Finished = timestamppb.New(time.Now())
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Jobs, Body: job}); err != nil && ctx.Err() == nil {
		a.log.Error("a job is not on record", "job", job.GetName(), "err", err)
	}
}
