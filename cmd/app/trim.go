package app

import (
	"context"
	"slices"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
)

// newTrimmer returns a trimmer that deletes the records that every reader has handled, and keeps those
// from the offsets of gapStarts on.
func (a *App) newTrimmer(gapStarts func(context.Context) (map[schemas.Topic]map[int32]int64, error)) *admin.Trimmer {
	var topics []schemas.Topic
	for _, roleTopics := range positionTopics() {
		topics = append(topics, roleTopics...)
	}
	slices.Sort(topics)
	t := admin.NewTrimmer(a.admin, a.cfg.Trim.Keep)
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

// trim trims once, and publishes the result as a job. The next run repeats what failed.
func (a *App) trim(ctx context.Context, t *admin.Trimmer) {
	job := startJob("trim")
	removed, err := t.Trim(ctx)
	if ctx.Err() != nil {
		return
	}
	counts := map[string]int64{}
	for topic, n := range removed {
		counts[string(topic)] = n
	}
	if err != nil {
		a.log.Error("trim topics", "removed", removed, "err", err)
	} else if len(removed) > 0 {
		a.log.Info("trimmed topics", "removed", removed)
	}
	a.record(ctx, job, counts, err)
}
