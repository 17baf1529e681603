package app

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// upkeep returns the parts of the sweeper that repeat their work periodically. The trimmer and the
// tidier can be turned off.
func (a *App) upkeep() []part {
	parts := []part{a.periodic("group positions", positionInterval, a.publishPositions)}
	if every := a.cfg.Trim.Every; every > 0 {
		t := a.newTrimmer(a.gapStarts)
		parts = append(parts, a.periodic("trimmer", every, func(ctx context.Context) { a.trim(ctx, t) }))
	}
	if every := a.cfg.Tidy.Every; every > 0 {
		parts = append(parts, a.periodic("tidier", every, a.tidier()))
	}
	return parts
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

// startJob returns a job that starts now.
func startJob(name string) *pb.Job {
	return &pb.Job{Id: schemas.NewID(), Name: name, Started: timestamppb.New(time.Now())}
}

// record publishes a job that has just ended, with its counts and its error, which may be nil.
func (a *App) record(ctx context.Context, job *pb.Job, counts map[string]int64, failure error) {
	job.Counts, job.Finished = counts, timestamppb.New(time.Now())
	if failure != nil {
		job.Error = failure.Error()
	}
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Jobs, Body: job}); err != nil && ctx.Err() == nil {
		a.log.Error("record job", "job", job.GetName(), "err", err)
	}
}
