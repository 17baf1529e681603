package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// Bounds of one fetch: for all partitions together, and for each. When a Pool pauses a partition, the client
// drops the records that it has buffered, and fetches them again on resume. partitionBytes bounds that waste.
// With the default window, tasks of 5 ms and compressed records of 75 bytes, each record was read 1.9 times with
// 1 MiB, and 1.2 times with 256 KiB. Longer batches are still read: brokers return at least one.
const (
	fetchBytes     = 16 << 20
	partitionBytes = 256 << 10
)

// rebalanceTimeout is how long the brokers wait for a live member to give up its partitions. It is longer than
// any drain and than any time for which a poll is held.
func rebalanceTimeout(c client.Config) time.Duration {
	return cmp.Or(c.Drain, 4*time.Minute) + time.Minute
}

// A groupMember describes a client in one of a role's groups.
type groupMember struct {
	role   schemas.Role
	class  schemas.Class
	topics []string
	// coPartitioned: a member owns the same partitions of all topics.
	coPartitioned bool
	// drainsOutputs: on a revoke, the member waits until its outputs are published.
	drainsOutputs bool
}

// consumeOptions returns the options of m, a member with the settings c.
func consumeOptions(c client.Config, m groupMember) []kgo.Opt {
	heartbeat := 3 * time.Second
	if c.Heartbeat > 0 {
		heartbeat = c.Heartbeat
	}
	most := client.MaxReadBatch
	if slices.Contains(m.topics, c.Topic(schemas.Dead)) {
		most = client.MaxDeadBatch
	}
	timeout := rebalanceTimeout(c)
	if m.drainsOutputs {
		timeout += outputTimeout
	}
	opts := []kgo.Opt{
		kgo.ConsumerGroup(c.Group(m.role, m.class)),
		kgo.HeartbeatInterval(heartbeat),
		kgo.ConsumeTopics(m.topics...),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // no rebalance between a poll and its commit
		kgo.RebalanceTimeout(timeout),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // never skip removed records silently
		kgo.FetchMaxWait(250 * time.Millisecond),    // a resumed partition waits for the current fetch to end
		kgo.MetadataMaxAge(client.MetadataInterval),
		kgo.FetchMaxBytes(fetchBytes),
		kgo.FetchMaxPartitionBytes(partitionBytes),
		kgo.MaxDecompressBatchBytes(most),
		kgo.KeepRetryableFetchErrors(), // otherwise the client retries for ever without reporting
		kgo.AdjustFetchOffsetsFn(core.RestoreOffsets(c, c.Group(m.role, m.class))),
	}
	opts = append(opts, balanceOptions(c, m.coPartitioned)...)
	if c.ServerSide {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	if session := c.Session(); session > 0 {
		opts = append(opts, kgo.SessionTimeout(session))
	}
	if c.Instance != "" {
		opts = append(opts, kgo.InstanceID(c.Instance+"/"+string(m.role)+"/"+string(m.class)))
	}
	return opts
}

// balanceOptions returns the balancer of a group member: one that moves few partitions. With ServerSide the
// brokers have no cooperative protocol, but move partitions one by one anyway.
func balanceOptions(c client.Config, together bool) []kgo.Opt {
	switch {
	case together:
		return []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}
	case c.ServerSide:
		return []kgo.Opt{kgo.Balancers(kgo.StickyBalancer())}
	}
	m := newMembership()
	return []kgo.Opt{kgo.Balancers(m), kgo.WithHooks(m)}
}

// roleTopics returns the names of the topics that a role reads: those given, and the again topics of the role.
func roleTopics(c client.Config, role schemas.Role, given []schemas.Topic) ([]string, error) {
	if role == "" || len(given) == 0 {
		return nil, errors.New("kafka: Role and Topics must be set")
	}
	all := slices.Clone(given)
	for _, t := range append([]schemas.Topic{""}, given...) { // "": the again topic without a class
		again := schemas.AgainOf(role, t)
		if _, ok := schemas.Lookup(again); ok && !slices.Contains(all, again) {
			all = append(all, again)
		}
	}
	var names []string
	for _, t := range all {
		if !mayRead(c, role, t) {
			return nil, fmt.Errorf("kafka: role %s: topic %s is not in the catalogue", role, t)
		}
		names = append(names, c.Topic(t))
	}
	return names, nil
}

// mayRead reports whether a role may read a topic: any of the catalogue, and for the ingester foreign ones.
func mayRead(c client.Config, role schemas.Role, t schemas.Topic) bool {
	if name, ok := t.Foreign(); ok {
		return role == schemas.RoleIngester && slices.Contains(c.Foreign, name)
	}
	_, ok := schemas.Lookup(t)
	return ok
}
