package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// A Lag is the lag of one group, that of a role and class, in one topic.
type Lag struct {
	Role  schemas.Role
	Class schemas.Class
	Group string // name of the consumer group
	Topic schemas.Topic
	// Partitions holds the number of offsets from the committed one to the end of each partition. In a delay lane it
	// counts up to the first record that is not due.
	Partitions map[int32]int64
	Records    int64 // sum of Partitions
	// Bytes is the estimated size of Records on disk: by the mean record size of the partition's log or, if brokers
	// do not report log sizes, of the records that this process has read of the topic. It is nil if neither is
	// known.
	Bytes *int64
	// Seconds is the time to handle Records at the rate between the last two calls of Lags. It is nil at the first
	// call, and if the group made no progress.
	Seconds *float64
	// Uncommitted is the number of offsets after the start of an open transaction. Readers get them when it ends.
	// Records does not include them.
	Uncommitted int64
	// Paused is set if the whole role is paused.
	Paused bool
}

// Due is the number of records that could be handled now: 0 while the role is paused.
func (l Lag) Due() int64 {
	if l.Paused {
		return 0
	}
	return l.Records
}

// Lags returns the lags of roles, by role and topic. Records in a delay lane are lag of the delayer once they are
// due, and of no role before.
func (a *Admin) Lags(ctx context.Context, roles ...schemas.Role) ([]Lag, error) {
	var lags []Lag
	done := map[schemas.Role]core.Offsets{}
	var topics []string
	for _, role := range roles {
		var read []string
		for _, e := range a.entries(role) {
			read = append(read, a.cfg.Topic(e.Topic))
			class := client.ClassOf(e, role)
			lags = append(lags, Lag{
				Role: role, Class: class, Group: a.cfg.Group(role, class), Topic: e.Topic,
				Paused: a.cfg.Controls.Role(role),
			})
		}
		// Read commits before ends: a commit made in between would hide lag.
		var err error
		if done[role], err = a.committed(ctx, role, read...); err != nil {
			return nil, client.Explain(err)
		}
		topics = append(topics, read...)
	}
	if len(topics) == 0 { // no error still means that the brokers answer
		if _, err := a.adm.BrokerMetadata(ctx); err != nil {
			return nil, client.Explain(fmt.Errorf("list the brokers: %w", err))
		}
		return nil, nil
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	// Read the log ends before the stable ends: records written in between would count as part of an open transaction.
	written, err := core.CollectOffsets(a.adm.ListEndOffsets(ctx, topics...))
	if err != nil {
		return nil, client.Explain(fmt.Errorf("list end offsets: %w", err))
	}
	starts, ends, err := core.Bounds(ctx, a.adm, topics...)
	if err != nil {
		return nil, client.Explain(err)
	}
	due := maps.Clone(ends)
	if err := a.dueEnds(ctx, due); err != nil {
		return nil, err
	}
	weigh := a.weigher(ctx, starts, ends)
	now := time.Now()
	open := a.transactions.update(a.cfg.Logger(), ends, written, now)
	for i := range lags {
		l := &lags[i]
		name := a.cfg.Topic(l.Topic)
		l.Uncommitted = open[name]
		at := positions(starts[name], ends[name], done[l.Role][name])
		l.Partitions = map[int32]int64{}
		for id, end := range due[name] {
			if n := max(end-at[id], 0); n > 0 {
				l.Partitions[id] = n
				l.Records += n
			}
		}
		l.Bytes = weigh(name, l.Partitions)
		l.Seconds = a.rates.seconds(rateKey{l.Role, l.Topic}, at, l.Records, now)
	}
	return lags, nil
}

// dueEnds sets the ends of delay lanes to the first record that is not due.
func (a *Admin) dueEnds(ctx context.Context, ends core.Offsets) error {
	for _, lane := range a.cfg.DelayLanes() {
		name := a.cfg.Topic(schemas.Delay(lane.Name))
		if _, ok := ends[name]; !ok {
			continue
		}
		listed, err := a.adm.ListOffsetsAfterMilli(ctx, a.cfg.Clock.Now().Add(-lane.Delay).UnixMilli()+1, name)
		if err != nil {
			return fmt.Errorf("list offsets by time: %w", err)
		}
		ripe := map[int32]int64{}
		for id, l := range listed[name] {
			if errors.Is(l.Err, kerr.UnknownTopicOrPartition) {
				continue
			}
			if l.Err != nil {
				return fmt.Errorf("list offsets by time: %s: %w", core.Partition{Topic: name, ID: id}, l.Err)
			}
			ripe[id] = min(l.Offset, ends[name][id])
		}
		ends[name] = ripe
	}
	return nil
}

// logSizesTimeout bounds the request for log sizes. Lags are returned without sizes if it fails.
const logSizesTimeout = 5 * time.Second

// weigher returns a function that estimates the bytes of records of a topic, given their number by partition. It
// returns nil if the size is unknown.
func (a *Admin) weigher(
	ctx context.Context, starts, ends core.Offsets,
) func(topic string, records map[int32]int64) *int64 {
	ctx, cancel := context.WithTimeout(ctx, logSizesTimeout)
	defer cancel()
	sizes, err := a.logSizes(ctx, ends)
	if err != nil {
		a.cfg.Logger().Debug("skip log sizes", "err", err)
	}
	return func(topic string, records map[int32]int64) *int64 {
		var sum float64
		for id, n := range records {
			in := ends[topic][id] - starts[topic][id]
			each, ok := float64(sizes[topic][id])/float64(max(in, 1)), sizes[topic][id] > 0 && in > 0
			if !ok {
				each, ok = a.cfg.Metrics.MeanRecordBytes(topic)
			}
			if !ok {
				return nil
			}
			sum += each * float64(n)
		}
		bytes := int64(sum)
		return &bytes
	}
}

// logSizes returns the log sizes that the leaders of partitions report. Unknown ones are left out.
func (a *Admin) logSizes(ctx context.Context, of core.Offsets) (core.Offsets, error) {
	var set kadm.TopicsSet
	for topic, ps := range of {
		set.Add(topic, slices.Collect(maps.Keys(ps))...)
	}
	if len(set) == 0 {
		return nil, nil
	}
	topics, err := a.adm.ListTopics(ctx, set.Topics()...)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	// The error may be of one broker only. The other answers count.
	dirs, err := a.adm.DescribeAllLogDirs(ctx, set)
	sizes := core.Offsets{}
	for topic, ps := range of {
		sizes[topic] = map[int32]int64{}
		for id := range ps {
			leader := topics[topic].Partitions[id].Leader
			if d, ok := dirs[leader].LookupPartition(topic, id); ok {
				sizes[topic][id] = d.Size
			}
		}
	}
	if err != nil {
		return sizes, fmt.Errorf("describe log directories: %w", err)
	}
	return sizes, nil
}

// minRateInterval is the minimum time over which a rate is measured.
const minRateInterval = time.Second

// A rateTracker keeps the last positions of groups to measure their rates. The zero value is ready to use. It is
// safe for concurrent use.
type rateTracker struct {
	mu   sync.Mutex
	last map[rateKey]groupProgress
}

type rateKey struct {
	role  schemas.Role
	topic schemas.Topic
}

type groupProgress struct {
	when time.Time
	at   map[int32]int64
}

// seconds returns how long the left records take at the rate at which the group got to at since the last call;
// nil if unknown.
func (p *rateTracker) seconds(of rateKey, at map[int32]int64, left int64, now time.Time) *float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.last[of]
	took := now.Sub(last.when)
	if !ok || took >= minRateInterval {
		if p.last == nil {
			p.last = map[rateKey]groupProgress{}
		}
		p.last[of] = groupProgress{now, at}
	}
	if left == 0 {
		return new(float64)
	}
	var moved int64
	for id, to := range at {
		if from, ok := last.at[id]; ok {
			moved += max(to-from, 0)
		}
	}
	if moved == 0 || took <= 0 {
		return nil
	}
	s := float64(left) / (float64(moved) / took.Seconds())
	return &s
}

// positions returns the offsets at which a group continues: the committed one, or the log start.
func positions(starts, ends, done map[int32]int64) map[int32]int64 {
	at := map[int32]int64{}
	for id := range ends {
		at[id] = max(done[id], starts[id])
	}
	return at
}

// totalLag returns the number of offsets from done, or from starts if nothing is committed, to ends.
func totalLag(starts, ends, done core.Offsets) (n int64) {
	for topic, ps := range ends {
		at := positions(starts[topic], ps, done[topic])
		for id, end := range ps {
			n += max(end-at[id], 0)
		}
	}
	return n
}
