package kafka

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
)

// A Lag is what the group of one class of a role has still to handle of one topic.
type Lag struct {
	Role  schemas.Role
	Class schemas.Class
	Group string // as the brokers know it
	Topic schemas.Topic
	// Partitions holds how many offsets lie between what the group has committed and where a
	// partition ends; in a delay lane, up to the first record whose time has not come.
	Partitions map[int32]int64
	Records    int64 // all of them
	// Bytes is what Records weigh on disk: by the mean of the partition or, where the brokers do
	// not tell, of what this process has read of the topic. Nil: neither is known.
	Bytes *int64
	// Seconds is how long Records take at the rate at which the group moved between the last two
	// looks. Nil: there was but one, or it did not move.
	Seconds *float64
	// Undecided is how many offsets follow the beginning of a transaction that is open. No reader is handed them before
	// it ends, and Records leaves them out.
	Undecided int64
	// Paused says that the role is paused as a whole.
	Paused bool
}

// Due is how many records could be handled now.
func (l Lag) Due() int64 {
	if l.Paused {
		return 0
	}
	return l.Records
}

// Lags returns what roles have still to handle, by role and topic. What waits in a delay lane is
// the delayer's, once its time has come, and nobody's before.
func (a *Admin) Lags(ctx context.Context, roles ...schemas.Role) ([]Lag, error) {
	var lags []Lag
	done := map[schemas.Role]offsets{}
	var topics []string
	for _, role := range roles {
		var read []string
		for _, e := range a.catalogue(role) {
			read = append(read, a.cfg.topic(e.Topic))
			class := classOf(e, role)
			lags = append(lags, Lag{Role: role, Class: class, Group: a.cfg.group(role, class), Topic: e.Topic, Paused: a.cfg.Controls.Role(role)})
		}
		// First what was committed: what is committed meanwhile must not hide what was not.
		var err error
		if done[role], err = a.committed(ctx, role, read...); err != nil {
			return nil, explain(err)
		}
		topics = append(topics, read...)
	}
	if len(topics) == 0 {
		return nil, nil
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	written, err := listed(a.adm.ListEndOffsets(ctx, topics...)) // before the ends: what is written meanwhile is not undecided
	if err != nil {
		return nil, explain(fmt.Errorf("list end offsets: %w", err))
	}
	starts, ends, err := bounds(ctx, a.adm, topics...)
	if err != nil {
		return nil, explain(err)
	}
	due := maps.Clone(ends)
	if err := a.ripe(ctx, due); err != nil {
		return nil, err
	}
	weigh := a.scales(ctx, starts, ends)
	now := time.Now()
	open := a.undecided.update(a.cfg.logger(), ends, written, now)
	for i := range lags {
		l := &lags[i]
		name := a.cfg.topic(l.Topic)
		l.Undecided = open[name]
		at := positions(starts[name], ends[name], done[l.Role][name])
		l.Partitions = map[int32]int64{}
		for id, end := range due[name] {
			if n := max(end-at[id], 0); n > 0 {
				l.Partitions[id] = n
				l.Records += n
			}
		}
		l.Bytes = weigh(name, l.Partitions)
		l.Seconds = a.pace.seconds(pacer{l.Role, l.Topic}, at, l.Records, now)
	}
	return lags, nil
}

// positions returns where a group goes on reading: at what it has committed, or where the log
// starts.
func positions(starts, ends, done map[int32]int64) map[int32]int64 {
	at := map[int32]int64{}
	for id := range ends {
		at[id] = max(done[id], starts[id])
	}
	return at
}

// ripe moves the ends of delay lanes back to the first record that has not waited for as long as
// it should.
func (a *Admin) ripe(ctx context.Context, ends offsets) error {
	for _, lane := range a.cfg.lanes() {
		name := a.cfg.topic(schemas.Delay(lane.Name))
		if _, ok := ends[name]; !ok {
			continue
		}
		listed, err := a.adm.ListOffsetsAfterMilli(ctx, time.Now().Add(-lane.Delay).UnixMilli()+1, name)
		if err != nil {
			return fmt.Errorf("list offsets by time: %w", err)
		}
		ripe := map[int32]int64{}
		for id, l := range listed[name] {
			if errors.Is(l.Err, kerr.UnknownTopicOrPartition) {
				continue
			}
			if l.Err != nil {
				return fmt.Errorf("list offsets by time: %s: %w", partition{name, id}, l.Err)
			}
			ripe[id] = min(l.Offset, ends[name][id])
		}
		ends[name] = ripe
	}
	return nil
}

// sizesLimit bounds the question for the sizes of logs, which is worth no failure.
const sizesLimit = 5 * time.Second

// scales returns a function that weighs records of a topic, by partition; nil where it cannot.
func (a *Admin) scales(ctx context.Context, starts, ends offsets) func(topic string, records map[int32]int64) *int64 {
	ctx, cancel := context.WithTimeout(ctx, sizesLimit)
	defer cancel()
	sizes, err := a.sizes(ctx, ends)
	if err != nil {
		a.cfg.logger().Debug("the sizes of logs are not known", "err", err)
	}
	return func(topic string, records map[int32]int64) *int64 {
		var sum float64
		for id, n := range records {
			in := ends[topic][id] - starts[topic][id]
			each, ok := float64(sizes[topic][id])/float64(max(in, 1)), sizes[topic][id] > 0 && in > 0
			if !ok {
				each, ok = a.cfg.Metrics.meanRecordBytes(topic)
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

// sizes returns what the leaders of partitions say that their logs take; those that do not
// say are left out.
func (a *Admin) sizes(ctx context.Context, of offsets) (offsets, error) {
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
	// An error may be that of one broker: the others' answers count.
	dirs, err := a.adm.DescribeAllLogDirs(ctx, set)
	sizes := offsets{}
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

// minPace is the least time between two looks that tell a rate.
const minPace = time.Second

// A pace remembers where groups were at the last look. The zero value is ready to use, by
// many at a time.
type pace struct {
	mu   sync.Mutex
	last map[pacer]pacing
}

type pacer struct {
	role  schemas.Role
	topic schemas.Topic
}

type pacing struct {
	when time.Time
	at   map[int32]int64
}

// seconds returns how long left records take at the rate at which the group got from where
// it was to at; nil where that is not known.
func (p *pace) seconds(of pacer, at map[int32]int64, left int64, now time.Time) *float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.last[of]
	took := now.Sub(last.when)
	if !ok || took >= minPace {
		if p.last == nil {
			p.last = map[pacer]pacing{}
		}
		p.last[of] = pacing{now, at}
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
