package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/retry"
)

// prepare calls Prepare until it succeeds or Run must stop.
func (p *Pool) prepare() error {
	policy := retry.Policy{Wait: p.cfg.Retry.Wait, MaxWait: p.cfg.Retry.MaxWait}
	_, err := policy.Do(p.running, func() error { return p.cfg.Prepare(p.running) },
		func(attempt int, wait time.Duration, err error) {
			p.router.Log.Warn("retry prepare for assigned partitions", "attempt", attempt, "retry_after", wait, "err", err)
		})
	if err != nil {
		return fmt.Errorf("prepare for assigned partitions: %w", err)
	}
	return nil
}

// Owns returns a function that reports whether this member owns the partition of Topics that holds a key. The answer
// may be different a moment later.
func (p *Pool) Owns(ctx context.Context) (func(key string) bool, error) {
	f, name := p.fetchers[0], p.router.Config.Topic(p.cfg.Topics[0])
	if len(f.owned(nil)) == 0 { // it has no client before
		return func(string) bool { return false }, nil
	}
	_, ends, err := core.Bounds(ctx, kadm.NewClient(f.cl), name)
	if err != nil {
		return nil, fmt.Errorf("read the partitions of %s: %w", name, err)
	}
	n := len(ends[name])
	byKey := kgo.StickyKeyPartitioner(nil).ForTopic(name) // the partitioner of all producers
	return func(key string) bool {
		id := byKey.Partition(&kgo.Record{Key: []byte(key)}, n)
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.assignments[core.Partition{Topic: name, ID: int32(id)}] != nil
	}, nil
}
