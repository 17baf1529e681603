package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// own notes which partitions are assigned, or no longer are.
func (g *Group) own(assigned bool, parts map[string][]int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for topic, ids := range parts {
		for _, id := range ids {
			if assigned {
				g.owned[partition{topic, id}] = true
			} else {
				delete(g.owned, partition{topic, id})
			}
		}
	}
}

// owns reports whether any partition is assigned.
func (g *Group) owns() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.owned) > 0
}

// besides calls Beside if it is time. A poll is held, so no partition moves meanwhile.
func (g *Group) besides(ctx context.Context, cl *kgo.Client) {
	if g.cfg.Beside == nil || time.Since(g.beside) < g.cfg.Every || !g.owns() {
		return
	}
	g.beside = time.Now()
	bctx, cancel := context.WithTimeoutCause(ctx, groupHold/2, errHeld)
	defer cancel()
	err := g.callBeside(bctx, cl)
	if err != nil && ctx.Err() == nil {
		g.router.log.Warn("will be done again beside the messages", "wait", g.cfg.Every, "err", err)
	}
}

func (g *Group) callBeside(ctx context.Context, cl *kgo.Client) error {
	if ok, err := g.prepare(ctx); !ok {
		return err
	}
	name := g.router.cfg.topic(g.cfg.Topics[0])
	_, ends, err := bounds(ctx, kadm.NewClient(cl), name)
	if err != nil {
		return fmt.Errorf("read the partitions of %s: %w", name, err)
	}
	n := len(ends[name])
	byKey := kgo.StickyKeyPartitioner(nil).ForTopic(name) // as producers do
	return g.cfg.Beside(ctx, func(key string) bool {
		id := byKey.Partition(&kgo.Record{Key: []byte(key)}, n)
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.owned[partition{name, int32(id)}]
	})
}
