package kafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

// An Ownership divides the keys of a topic between the processes of a role, by the partitions of the topic: each key
// has one owner, which changes if processes come or go, within the session timeout if one dies. It reads no records and
// commits nothing. A process that was frozen may take itself for the owner until it learns that it was removed.
type Ownership struct {
	name     string
	opts     []kgo.Opt
	onChange func()
	metrics  *metrics.Role
	checker  *pollChecker
	byKey    kgo.TopicPartitioner

	mu         sync.Mutex // guards the fields below
	owned      map[int32]bool
	partitions int // of the topic; 0: unknown
}

// ownershipPoll bounds a poll, which returns nothing but errors.
const ownershipPoll = time.Second

// NewOwnership returns an Ownership of the keys of a topic. It calls onChange after each change of what this process
// owns; onChange must not block.
func NewOwnership(cfg client.Config, role schemas.Role, topic schemas.Topic, onChange func()) (*Ownership, error) {
	if _, ok := schemas.Lookup(topic); !ok {
		return nil, fmt.Errorf("kafka: ownership: topic %s is not in the catalogue", topic)
	}
	o := &Ownership{
		name: cfg.Topic(topic), onChange: onChange, metrics: cfg.Metrics.Role(role, schemas.High),
		checker: newPollChecker(core.NewRouter(cfg, role, 0), nil), owned: map[int32]bool{},
		byKey: kgo.StickyKeyPartitioner(nil).ForTopic(cfg.Topic(topic)), // the partitioner of all producers
	}
	o.checker.nextOffset = func(core.Partition) int64 { return 0 }
	var err error
	o.opts, err = cfg.Options(string(role), append(consumeOptions(cfg, groupMember{role: role, topics: []string{o.name}}),
		kgo.OnPartitionsAssigned(o.change(metrics.PartitionsAssigned, true)),
		kgo.OnPartitionsRevoked(o.change(metrics.PartitionsRevoked, false)),
		kgo.OnPartitionsLost(o.change(metrics.PartitionsLost, false)))...)
	return o, err
}

// change returns a function that adds partitions to those that are owned, or removes them.
func (o *Ownership) change(
	kind metrics.RebalanceKind, owned bool,
) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		defer o.onChange()
		defer o.metrics.CountRebalance(kind, parts, time.Now())
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, id := range parts[o.name] {
			if owned {
				o.owned[id] = true
			} else {
				delete(o.owned, id)
			}
		}
	}
}

// Owns reports whether this process owns a key.
func (o *Ownership) Owns(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.partitions > 0 && o.owned[int32(o.byKey.Partition(&kgo.Record{Key: []byte(key)}, o.partitions))]
}

// Run is a member of the role's group until ctx is done, and then returns nil.
func (o *Ownership) Run(ctx context.Context) error {
	cl, leave, err := join(ctx, o.opts)
	if err != nil {
		return fmt.Errorf("own keys of %s: %w", o.name, err)
	}
	defer leave()
	cl.PauseFetchTopics(o.name)
	for ctx.Err() == nil {
		pctx, cancel := context.WithTimeout(ctx, ownershipPoll)
		fetches := cl.PollFetches(pctx)
		cancel()
		if err := o.checker.check(ctx, cl, fetches); err != nil && ctx.Err() == nil {
			return fmt.Errorf("own keys of %s: %w", o.name, err)
		}
		o.count(ctx, cl)
		cl.AllowRebalance()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.owned)
	return nil
}

// count counts the partitions of the topic, to which none is ever added. An error is transient: the next poll counts.
func (o *Ownership) count(ctx context.Context, cl *kgo.Client) {
	o.mu.Lock()
	known := o.partitions > 0
	o.mu.Unlock()
	if known {
		return
	}
	_, ends, err := core.Bounds(ctx, kadm.NewClient(cl), o.name)
	if err != nil {
		if ctx.Err() == nil {
			o.checker.router.Log.Warn("count the partitions whose keys are owned", "topic", o.name, "err", err)
		}
		return
	}
	o.mu.Lock()
	o.partitions = len(ends[o.name])
	o.mu.Unlock()
	o.onChange()
}
