package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

// leaveTimeout bounds the request to leave a group. If the brokers do not answer, the session times out.
const leaveTimeout = 4 * time.Second

// join returns a client that is a member of a group. leave leaves the group and closes the client, whether or
// not the brokers answer.
func join(ctx context.Context, opts []kgo.Opt) (cl *kgo.Client, leave func(), err error) {
	alive, cancel := context.WithCancel(context.WithoutCancel(ctx)) // a stop still needs the brokers
	cl, err = kgo.NewClient(append(slices.Clip(opts), kgo.WithContext(alive))...)
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("new client: %w", err)
	}
	return cl, func() {
		defer cancel()
		cl.AllowRebalance()
		ctx, done := context.WithTimeout(alive, leaveTimeout)
		defer done()
		if err := cl.LeaveGroupContext(ctx); err != nil && ctx.Err() != nil {
			cancel() // otherwise Close waits for each connection
		}
		cl.Close()
		cl.AllowRebalance() // Close polls once more; a leave that it starts would wait for ever
	}, nil
}

// CommitTimeout bounds one commit, including Mark. No partition can be revoked meanwhile.
const CommitTimeout = 10 * time.Second

// selectPartitions returns the values of parts in all, or all values if parts is nil.
func selectPartitions[T any](all map[core.Partition]T, parts map[string][]int32) []T {
	if parts == nil {
		return slices.Collect(maps.Values(all))
	}
	var some []T
	core.EachPartition(parts, func(at core.Partition) {
		if v, ok := all[at]; ok {
			some = append(some, v)
		}
	})
	return some
}

// A position is the state to commit for a partition.
type position struct {
	kgo.EpochOffset
	metadata string
	origin   // of a BatchGroup
}

// commits holds positions that are done and not committed. It is safe for concurrent use.
type commits struct {
	mu      sync.Mutex
	todo    map[core.Partition]position
	deleted *client.DeletedTopics // their positions are not committed: they belong to the deleted topics

	metrics *metrics.Role
	// before is called with the positions of a commit, and prevents the commit by an error. May be nil.
	before  func(ctx context.Context, todo map[core.Partition]position) error
	sending chan struct{} // holds one element from taking positions until their commit is answered
}

func newCommits(deleted *client.DeletedTopics) *commits {
	return &commits{
		todo: map[core.Partition]position{}, deleted: cmp.Or(deleted, &client.DeletedTopics{}),
		sending: make(chan struct{}, 1),
	}
}

// done stages a commit: all records of p below at are settled.
func (c *commits) done(p core.Partition, at kgo.EpochOffset) { c.set(p, position{EpochOffset: at}) }

// set stages a commit of at for p.
func (c *commits) set(p core.Partition, at position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.todo[p] = at
}

// drop removes the staged commit of p. It does not wait for a commit of p that is running.
func (c *commits) drop(p core.Partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.todo, p)
}

// forget removes the staged commit of p, which is no longer assigned, after running commits have ended.
func (c *commits) forget(p core.Partition) {
	c.sending <- struct{}{}
	defer func() { <-c.sending }()
	c.drop(p)
}

// pending reports whether a commit is staged for a partition for which match returns true. A nil match selects all.
func (c *commits) pending(match func(core.Partition) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.todo {
		if match == nil || match(p) {
			return true
		}
	}
	return false
}

// send commits all staged positions. Those that fail stay staged.
func (c *commits) send(ctx context.Context, cl *kgo.Client) error { return c.sendOf(ctx, cl, nil) }

// sendOf is send for the partitions for which match returns true. A nil match selects all.
func (c *commits) sendOf(ctx context.Context, cl *kgo.Client, match func(core.Partition) bool) error {
	c.sending <- struct{}{}
	defer func() { <-c.sending }()
	offsets, sent := c.take(match)
	if len(offsets) == 0 {
		return nil
	}
	if c.before != nil {
		if err := c.before(ctx, sent); err != nil {
			return err
		}
	}
	var first error
	member := membershipOf(cl)
	group := groupOf(cl)
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		if err := member.checkCommit(req); err != nil {
			return err
		}
		for _, t := range req.Topics {
			for i := range t.Partitions {
				if m := sent[core.Partition{Topic: t.Topic, ID: t.Partitions[i].Partition}].metadata; m != "" {
					t.Partitions[i].Metadata = &m
				}
			}
		}
		return nil
	})
	onDone := func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			first = client.Refused(fmt.Errorf("commit: %w", err), "Read", "", group)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				at := core.Partition{Topic: t.Topic, ID: p.Partition}
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					if first == nil {
						first = client.Refused(fmt.Errorf("commit %s: %w", at, err), "Read", at.Topic, group)
					}
					continue
				}
				if c.todo[at] == sent[at] {
					delete(c.todo, at)
				}
			}
		}
	}
	cl.CommitOffsetsSync(ctx, offsets, onDone)
	if !errors.Is(first, context.Canceled) { // Canceled: given up because the process stops
		c.metrics.CountCommit(first)
	}
	return first
}

// take returns the staged positions of the partitions for which match returns true, as the client needs them and
// as they are staged.
func (c *commits) take(
	match func(core.Partition) bool,
) (map[string]map[int32]kgo.EpochOffset, map[core.Partition]position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	offsets, sent := map[string]map[int32]kgo.EpochOffset{}, map[core.Partition]position{}
	maps.DeleteFunc(c.todo, func(p core.Partition, _ position) bool { return c.deleted.Has(p.Topic) })
	for p, at := range c.todo {
		if match != nil && !match(p) {
			continue
		}
		sent[p] = at
		if offsets[p.Topic] == nil {
			offsets[p.Topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[p.Topic][p.ID] = at.EpochOffset
	}
	return offsets, sent
}

// commitFatal reports whether repeating the commit cannot succeed.
func commitFatal(err error) bool {
	var code *kerr.Error
	return errors.As(err, &code) && !code.Retriable && !core.GroupMovedOn(err)
}
