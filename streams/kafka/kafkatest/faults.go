package kafkatest

import (
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
)

// A Fault is a way in which a request fails.
type Fault int

// The faults. After the first two, repeating the request succeeds.
const (
	// NotDone: the request had no effect, and its error is retriable.
	NotDone Fault = iota
	// DoneNotAcknowledged: the request took effect, but its response is a time-out. A write that waits for that when it
	// is mended succeeds.
	DoneNotAcknowledged
	// Refused: the request had no effect, and its error is not retriable.
	Refused
)

func (f Fault) err(retriable *kerr.Error) *kerr.Error {
	switch f {
	case DoneNotAcknowledged:
		return kerr.RequestTimedOut
	case Refused:
		return kerr.TopicAuthorizationFailed
	}
	return retriable
}

// FailProduce makes the next times writes to topic fail. If times is negative, all fail until mend is called.
func (b *Broker) FailProduce(topic schemas.Topic, f Fault, times int) (mend func()) {
	return b.failWrites(kfake.Fault{
		Topic: b.cfg.Prefix + string(topic), Err: f.err(kerr.NotEnoughReplicas), Count: times,
	})
}

// FailProduceTo makes writes to one partition of topic fail until mend is called.
func (b *Broker) FailProduceTo(topic schemas.Topic, partition int32, f Fault) (mend func()) {
	return b.failWrites(kfake.Fault{
		Topic: b.name(topic), Partitions: []int32{partition}, Err: f.err(kerr.NotEnoughReplicas), Count: -1,
	})
}

// writeTimeout is how long a write takes while all time out. A broker takes the time that the client gives it. Without
// any, clients send the same records four times a second, which is most of the cost of such a test.
const writeTimeout = 2 * time.Second

// failWrites makes writes fail. If all time out, each request with a write to the topic takes writeTimeout.
func (b *Broker) failWrites(f kfake.Fault) (mend func()) {
	remove, topic := b.fail(kmsg.Produce, f), b.cluster.TopicInfo(f.Topic)
	if f.Err != kerr.RequestTimedOut || f.Count >= 0 || topic == nil {
		return remove
	}
	mended, once := make(chan struct{}), new(sync.Once)
	b.cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case <-mended:
			b.cluster.DropControl()
			return nil, nil, false
		default:
		}
		if slices.ContainsFunc(r.(*kmsg.ProduceRequest).Topics, func(t kmsg.ProduceRequestTopic) bool {
			return t.Topic == topic.Topic || t.TopicID == topic.TopicID
		}) {
			b.cluster.SleepControl(func() {
				select {
				case <-mended:
				case <-time.After(writeTimeout):
				}
			})
		}
		return nil, nil, false
	})
	wake := func() { once.Do(func() { close(mended) }) }
	b.t.Cleanup(wake)
	return func() {
		remove()
		wake()
	}
}

// FailCommit is like FailProduce, for commits of a role's group.
func (b *Broker) FailCommit(role schemas.Role, f Fault, times int) (mend func()) {
	return b.fail(kmsg.OffsetCommit, kfake.Fault{
		Group: b.cfg.Prefix + string(role), Err: f.err(kerr.CoordinatorLoadInProgress), Count: times,
	})
}

// FailOffsets is like FailProduce, for requests for the committed offsets of a role's group.
func (b *Broker) FailOffsets(role schemas.Role, f Fault, times int) (mend func()) {
	return b.fail(kmsg.OffsetFetch, kfake.Fault{
		Group: b.cfg.Prefix + string(role), Err: f.err(kerr.CoordinatorLoadInProgress), Count: times,
	})
}

// FailFetch is like FailProduce, for fetches of topic.
func (b *Broker) FailFetch(topic schemas.Topic, f Fault, times int) (mend func()) {
	return b.fail(kmsg.Fetch, kfake.Fault{
		Topic: b.cfg.Prefix + string(topic), Err: f.err(kerr.NotLeaderForPartition), Count: times,
	})
}

// Corrupt makes each fetch of topic fail as if the broker could not read its log.
func (b *Broker) Corrupt(topic schemas.Topic) {
	b.fail(kmsg.Fetch, kfake.Fault{Topic: b.cfg.Prefix + string(topic), Err: kerr.CorruptMessage, Count: -1})
}

// FailMetadata is like FailProduce, for metadata requests for topic.
func (b *Broker) FailMetadata(topic schemas.Topic, f Fault, times int) (mend func()) {
	return b.fail(kmsg.Metadata, kfake.Fault{
		Topic: b.cfg.Prefix + string(topic), Err: f.err(kerr.LeaderNotAvailable), Count: times,
	})
}

// FailListOffsets is like FailProduce, for requests for the start and end offsets of topic.
func (b *Broker) FailListOffsets(topic schemas.Topic, f Fault, times int) (mend func()) {
	return b.fail(kmsg.ListOffsets, kfake.Fault{
		Topic: b.cfg.Prefix + string(topic), Err: f.err(kerr.LeaderNotAvailable), Count: times,
	})
}

// FailLists makes metadata requests for all topics return an error for topic. Requests for topic by name succeed.
func (b *Broker) FailLists(topic schemas.Topic) {
	b.fail(kmsg.Metadata, kfake.Fault{Topic: b.cfg.Prefix + string(topic), Err: kerr.LeaderNotAvailable, Count: -1,
		When: func(req kmsg.Request) bool { return req.(*kmsg.MetadataRequest).Topics == nil }})
}

// FailRead makes fetches of a partition return err: the next times ones, or all if times is negative, until mend is
// called. Other partitions of the same request are not affected. asked returns the number of such fetches so far.
func (b *Broker) FailRead(
	topic schemas.Topic, partition int32, err *kerr.Error, times int,
) (mend func(), asked func() int) {
	f := b.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Fetch}, Topic: b.name(topic), Partitions: []int32{partition}, Err: err, Count: times,
	})
	return f.Remove, f.Hits
}

// FailDescribe makes the next times requests for the configuration of topic fail, as at a broker that does not know it
// yet.
func (b *Broker) FailDescribe(topic schemas.Topic, times int) {
	b.fail(kmsg.DescribeConfigs, kfake.Fault{
		Resource: b.cfg.Prefix + string(topic), Err: kerr.UnknownTopicOrPartition, Count: times,
	})
}

func (b *Broker) fail(key kmsg.Key, f kfake.Fault) (mend func()) {
	f.Keys = []kmsg.Key{key}
	return b.cluster.Fault(f).Remove
}

// Fence makes the group of role reject the next heartbeat as that of an unknown member. The member loses its
// partitions without a revoke, and rejoins.
func (b *Broker) Fence(role schemas.Role) {
	b.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Heartbeat}, Group: b.cfg.Prefix + string(role), TopLevel: true, Err: kerr.UnknownMemberID,
	})
}

// ReplaceMembers removes the members of the group of role without notice, and commits the offsets at for partitions of
// topic, as another member would.
func (b *Broker) ReplaceMembers(role schemas.Role, topic schemas.Topic, at map[int32]int64) {
	b.t.Helper()
	cl, ctx := b.client(), b.t.Context()
	defer cl.Close()
	adm, group, offsets := kadm.NewClient(cl), b.group(role, topic), kadm.Offsets{}
	groups, err := adm.DescribeGroups(ctx, group)
	if err != nil {
		b.t.Fatal(err)
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	for _, m := range groups[group].Members {
		req.Members = append(req.Members, kmsg.LeaveGroupRequestMember{MemberID: m.MemberID})
	}
	if _, err := req.RequestWith(ctx, cl); err != nil {
		b.t.Fatal(err)
	}
	for id, offset := range at {
		offsets.AddOffset(b.cfg.Prefix+string(topic), id, offset, -1)
	}
	if err := adm.CommitAllOffsets(ctx, group, offsets); err != nil {
		b.t.Fatal(err)
	}
}

// CountCommits returns a function that counts the commits of a role's group from now on.
func (b *Broker) CountCommits(role schemas.Role) (count func() int) {
	return b.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: b.cfg.Prefix + string(role), Observe: true, Count: -1,
	}).Hits
}

// CountWrites returns a function that counts the produce requests to topic from now on.
func (b *Broker) CountWrites(topic schemas.Topic) (count func() int) {
	return b.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: b.cfg.Prefix + string(topic), Observe: true, Count: -1,
	}).Hits
}

// Disconnect closes all connections of the clients under test, and lets them open none until mend is called.
func (b *Broker) Disconnect() (mend func()) {
	b.conns.mu.Lock()
	defer b.conns.mu.Unlock()
	b.conns.cut = true
	for c := range b.conns.open {
		c.Close()
	}
	clear(b.conns.open)
	return func() {
		b.conns.mu.Lock()
		defer b.conns.mu.Unlock()
		b.conns.cut = false
	}
}

// Compact removes superseded records of compacted topics, as brokers do from time to time.
func (b *Broker) Compact() { b.cluster.Compact() }

// Recreate deletes a topic and creates it again: empty, and with a new id.
func (b *Broker) Recreate(topic schemas.Topic, partitions int32) {
	b.t.Helper()
	b.Delete(topic)
	b.MakeTopic(topic, partitions, nil)
}

// Delete deletes a topic.
func (b *Broker) Delete(topic schemas.Topic) {
	b.t.Helper()
	if err := b.cluster.DeleteTopic(b.name(topic)); err != nil {
		b.t.Fatal(err)
	}
}

// MakeTopic creates a topic with its own configuration, as an operator might.
func (b *Broker) MakeTopic(topic schemas.Topic, partitions int32, settings map[string]string) {
	b.t.Helper()
	if err := b.cluster.CreateTopic(b.cfg.Prefix+string(topic), partitions, settings); err != nil {
		b.t.Fatal(err)
	}
}

// Setting returns a configuration of a topic, or "" if it has the default.
func (b *Broker) Setting(topic schemas.Topic, key string) string {
	b.t.Helper()
	info := b.cluster.TopicInfo(b.cfg.Prefix + string(topic))
	if info == nil {
		b.t.Fatalf("topic %s does not exist", topic)
	}
	if v := info.Configs[key]; v != nil {
		return *v
	}
	return ""
}

// Trim deletes the records of a partition below offset.
func (b *Broker) Trim(topic schemas.Topic, partition int32, offset int64) {
	b.t.Helper()
	if err := b.cluster.DeleteRecords(b.cfg.Prefix+string(topic), partition, offset); err != nil {
		b.t.Fatal(err)
	}
}

// WriteTransaction writes records of one topic in a transaction, and commits or aborts it. The log then ends with a
// control record, which readers do not get.
func (b *Broker) WriteTransaction(commit bool, recs ...Record) {
	b.t.Helper()
	b.BeginTransaction("test", recs...)(commit)
}

// BeginTransaction writes records of one topic in an open transaction. end commits or aborts it. It must be called
// within 15 minutes.
func (b *Broker) BeginTransaction(producer string, recs ...Record) (end func(commit bool)) {
	b.t.Helper()
	cl := b.client(kgo.TransactionalID(producer), kgo.TransactionTimeout(15*time.Minute),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := cl.BeginTransaction(); err != nil {
		b.t.Fatal(err)
	}
	for _, r := range recs {
		rec := &kgo.Record{Topic: b.cfg.Prefix + string(r.Topic), Key: r.Key, Value: r.Value, Partition: r.Partition}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		if err := cl.ProduceSync(b.t.Context(), rec).FirstErr(); err != nil {
			b.t.Fatal(err)
		}
	}
	return func(commit bool) {
		b.t.Helper()
		defer cl.Close()
		if err := cl.EndTransaction(b.t.Context(), kgo.TransactionEndTry(commit)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// WriteDamaged writes a batch of n records that readers cannot parse: it claims to be compressed, but is not.
func (b *Broker) WriteDamaged(topic schemas.Topic, partition, n int32) {
	b.t.Helper()
	cl := b.client()
	defer cl.Close()
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: 1, LastOffsetDelta: n - 1, NumRecords: n,
		FirstTimestamp: time.Now().UnixMilli(), MaxTimestamp: time.Now().UnixMilli(),
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, Records: []byte("damaged"),
	}
	const untilLength, untilCRC = 12, 21 // offsets in a batch: after its length, and after its checksum
	batch.Length = int32(len(batch.AppendTo(nil)) - untilLength)
	batch.CRC = int32(crc32.Checksum(batch.AppendTo(nil)[untilCRC:], crc32.MakeTable(crc32.Castagnoli)))
	topics, err := kadm.NewClient(cl).ListTopics(b.t.Context(), b.name(topic))
	if err != nil {
		b.t.Fatal(err)
	}
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.TopicID = b.name(topic), topics[b.name(topic)].ID
	rt.Partitions = []kmsg.ProduceRequestTopicPartition{{Partition: partition, Records: batch.AppendTo(nil)}}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis, req.Topics = -1, 10_000, []kmsg.ProduceRequestTopic{rt}
	resp, err := req.RequestWith(b.t.Context(), cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
