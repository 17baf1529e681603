package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/retry"
)

// lostPartitions returns the partitions for which the client detected a loss of records by the broker.
func lostPartitions(fetches kgo.Fetches) (parts []core.Partition) {
	fetches.EachError(func(topic string, id int32, err error) {
		if loss := (*kgo.ErrDataLoss)(nil); errors.As(err, &loss) {
			parts = append(parts, core.Partition{Topic: topic, ID: id})
		}
	})
	return parts
}

// outOfRange returns the diagnosis of offsets that are out of range for the members of g.
func (g *BatchGroup) outOfRange() outOfRangeDiagnosis {
	return outOfRangeDiagnosis{g.router, g.cfg.RecordLoss}
}

// checkPoll handles the errors of a poll. A partition with a truncated log is read again from its start:
// records that were stored may exist again under other offsets, and the sink recognizes those that it has.
// checkPoll returns these partitions; the records that the poll returned for them are stale. No rebalance
// happens meanwhile.
func (g *BatchGroup) checkPoll(
	ctx context.Context, cl *kgo.Client, fetches kgo.Fetches,
) (again map[core.Partition]bool, err error) {
	parts := lostPartitions(fetches)
	err = g.checker.check(ctx, cl, fetches)
	if out := (*core.OutOfRangeError)(nil); errors.As(err, &out) {
		var cut []groupPosition
		if cut, err = g.outOfRange().diagnose(ctx, cl, out); err == nil {
			for _, s := range cut {
				parts = append(parts, s.at)
			}
		}
	}
	if err != nil || len(parts) == 0 {
		return nil, err
	}
	again = map[core.Partition]bool{}
	for _, at := range parts {
		again[at] = true
	}
	return again, g.rereadFromStart(ctx, cl, again)
}

// rereadFromStart drops the records of parts that were read, and reads the partitions from their start.
func (g *BatchGroup) rereadFromStart(ctx context.Context, cl *kgo.Client, parts map[core.Partition]bool) error {
	owned := map[string][]int32{}
	for at := range parts {
		owned[at.Topic] = append(owned[at.Topic], at.ID)
	}
	starts, err := g.logStarts(ctx, cl, owned)
	if err != nil {
		return err
	}
	to := map[core.Partition]kgo.EpochOffset{}
	core.EachPartition(owned, func(at core.Partition) {
		to[at] = kgo.EpochOffset{Epoch: -1, Offset: starts[at.Topic][at.ID]}
		g.router.Log.Error("reread partition from start",
			"topic", at.Topic, "partition", at.ID, "from", starts[at.Topic][at.ID])
	})
	_, err = g.restartBatchers(cl, to)
	return err
}

// restartBatchers drops what the batchers of the partitions in to have read, and starts others that read from there. It
// returns the former ones. The caller holds a poll, so that no partition moves meanwhile.
func (g *BatchGroup) restartBatchers(cl *kgo.Client, to map[core.Partition]kgo.EpochOffset) ([]*batcher, error) {
	var old []*batcher
	for _, b := range g.owned(nil) {
		if _, ok := to[b.Partition]; ok {
			old = append(old, b)
		}
	}
	if stuck := g.stopBatchers(cl, old, false); stuck > 0 {
		return nil, fmt.Errorf("%d batches of partitions that are read again are still being stored after their cancellation",
			stuck)
	}
	g.seek(cl, to)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, b := range old {
		g.startBatcher(cl, b.Partition)
	}
	return old, nil
}

// addUnmarked marks partitions with stored records for which Mark failed. The poll loop reads these records
// again.
func (g *BatchGroup) addUnmarked(todo map[core.Partition]position) {
	g.mu.Lock()
	for at := range todo {
		g.unmarked[at] = true
	}
	g.mu.Unlock()
	g.requestRewind()
}

// anyUnmarked reports whether Mark failed for a partition in todo. The store may have been restored to an
// earlier state since, and Mark would then record rows that it does not have.
func (g *BatchGroup) anyUnmarked(todo map[core.Partition]position) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for at := range todo {
		if g.unmarked[at] {
			return true
		}
	}
	return false
}

// rereadUnmarked drops the stored and uncommitted records of partitions for which Mark failed, and reads from
// the committed offsets. The store may have been restored to an earlier state, without these records; the
// sink asks it. The caller holds a poll, so that no partition moves meanwhile.
func (g *BatchGroup) rereadUnmarked(ctx context.Context, cl *kgo.Client) error {
	g.mu.Lock()
	var parts []core.Partition
	for at := range g.unmarked {
		if g.batchers[at] == nil { // no longer assigned
			delete(g.unmarked, at)
			continue
		}
		parts = append(parts, at)
	}
	g.mu.Unlock()
	if len(parts) == 0 {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	all, err := g.outOfRange().groupPositions(limit, cl, parts)
	if err != nil {
		g.router.Log.Warn("retry reading committed offsets", "err", err)
		time.AfterFunc(time.Second, g.requestRewind)
		return nil
	}
	to := map[core.Partition]kgo.EpochOffset{}
	for _, s := range all {
		if to[s.at] = (kgo.EpochOffset{Epoch: -1, Offset: s.committed}); s.committed < 0 {
			to[s.at] = kgo.EpochOffset{Epoch: -1, Offset: s.start}
		}
	}
	former, err := g.restartBatchers(cl, to)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, old := range former {
		g.batchers[old.Partition].continueFrom(old, to[old.Partition].Offset)
	}
	return nil
}

// continueFrom makes b read from offset from, in the log of old.
func (b *batcher) continueFrom(old *batcher, from int64) {
	old.mu.Lock()
	o := old.origin
	old.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.origin = origin{o.incarnation, o.start, from}
}

// logStarts returns the start offsets of parts. It retries, because a broker that has just lost records may
// need a while to answer.
func (g *BatchGroup) logStarts(
	ctx context.Context, cl *kgo.Client, parts map[string][]int32,
) (starts core.Offsets, err error) {
	ctx, cancel := context.WithTimeout(ctx, outOfRangeTimeout)
	defer cancel()
	var topics []string
	for topic := range parts {
		topics = append(topics, topic)
	}
	policy := retry.Policy{Wait: 250 * time.Millisecond, MaxWait: 5 * time.Second, Elapsed: outOfRangeTimeout}
	_, err = policy.Do(ctx, func() error {
		starts, _, err = core.Bounds(ctx, kadm.NewClient(cl), topics...)
		return err
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("list start offsets after data loss: %w", err)
	}
	return starts, nil
}
