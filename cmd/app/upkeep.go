package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
)

// groupOffsetInterval is the time between two recordings of the groups' offsets. If the brokers
// delete the offsets of a group, the group repeats the work since the last recording.
const groupOffsetInterval = 10 * time.Minute

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

// publishGroupOffsets publishes the offsets of groups that are not recorded, for the case that the
// brokers delete their offsets. Each is published by itself: one that is too large does not block the
// others. The next run repeats what failed.
func (a *App) publishGroupOffsets(ctx context.Context) {
	all, err := a.admin.OffsetCheckpoints(ctx)
	errs := []error{err}
	for _, m := range all {
		err := a.producer.Publish(ctx, m)
		errs = append(errs, err)
		if err != nil && !errors.Is(err, schemas.ErrTooLarge) {
			break
		}
	}
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		a.log.Warn("record group offsets", "retry_after", groupOffsetInterval, "err", err)
	}
}

// newTrimmer returns a trimmer that deletes the records that every reader has handled, and keeps those
// from the offsets of neededStarts on.
func (a *App) newTrimmer(neededStarts func(context.Context) (map[schemas.Topic]map[int32]int64, error)) *admin.Trimmer {
	var topics []schemas.Topic
	for _, roleTopics := range positionTopics() {
		topics = append(topics, roleTopics...)
	}
	slices.Sort(topics)
	t := admin.NewTrimmer(a.admin, a.cfg.Trim.Keep)
	t.Hold(slices.Compact(topics), neededStarts)
	return t
}

// trimTopics is the split of the trimmer.
const trimTopics = "topics"

// trimSplit returns the split of the trimmer.
func (a *App) trimSplit(t *admin.Trimmer) sweep.Split {
	return a.job(trimJob, trimTopics, StoreName{},
		func(ctx context.Context, log *slog.Logger) (map[string]int64, error) { return trim(ctx, log, t) })
}

// trim trims once, and returns the number of removed records by topic.
func trim(ctx context.Context, log *slog.Logger, t *admin.Trimmer) (map[string]int64, error) {
	t.LogTo(log)
	removed, err := t.Trim(ctx)
	if err == nil && len(removed) > 0 {
		log.Info("trimmed topics", "removed", removed)
	}
	counts := map[string]int64{}
	for topic, n := range removed {
		counts[string(topic)] = n
	}
	return counts, err
}
