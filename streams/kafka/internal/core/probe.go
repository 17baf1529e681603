package core

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// FirstRecordOffset returns the offset of the first record of a partition at from or later. If there are only
// batches without records, it returns the offset after them.
func FirstRecordOffset(
	ctx context.Context, cl *kgo.Client, topic kadm.TopicDetail, id int32, from int64,
) (int64, error) {
	got, err := fetchFrom(ctx, cl, topic, id, from)
	if err != nil || got == nil {
		return from, err
	}
	o := kgo.ProcessFetchPartitionOpts{
		Offset: from, Topic: topic.Topic, Partition: id,
		IsolationLevel: kgo.ReadCommitted(), KeepControlRecords: true,
	}
	fp, next := kgo.ProcessFetchPartition(o, got, kgo.DefaultDecompressor(), nil)
	switch {
	case fp.Err != nil:
		return 0, fmt.Errorf("fetch: %w", fp.Err)
	case len(fp.Records) > 0:
		return fp.Records[0].Offset, nil
	}
	return max(next, from), nil
}

// readCommitted is the isolation level of fetches that return no records of open or aborted transactions.
const readCommitted = 1

// fetchFrom fetches a partition from an offset on, from its leader. It returns nil if the response is empty.
func fetchFrom(
	ctx context.Context, cl *kgo.Client, topic kadm.TopicDetail, id int32, from int64,
) (*kmsg.FetchResponseTopicPartition, error) {
	part, ok := topic.Partitions[id]
	if !ok {
		return nil, kerr.UnknownTopicOrPartition
	}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxBytes, req.SessionEpoch, req.IsolationLevel = -1, 1<<20, -1, readCommitted
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = topic.Topic, topic.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = id, from, 1<<20
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	got, err := cl.Broker(int(part.Leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	resp := got.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	if len(resp.Topics) == 0 || len(resp.Topics[0].Partitions) == 0 {
		return nil, nil
	}
	return &resp.Topics[0].Partitions[0], nil
}

// OffsetAfterBatch returns the offset after the batch that holds offset. It works for batches that cannot be parsed.
func OffsetAfterBatch(ctx context.Context, cl *kgo.Client, at Partition, offset int64) (int64, error) {
	topics, err := kadm.NewClient(cl).ListTopics(ctx, at.Topic)
	if err != nil {
		return 0, fmt.Errorf("list topic: %w", err)
	}
	got, err := fetchFrom(ctx, cl, topics[at.Topic], at.ID, offset)
	if err != nil {
		return 0, err
	}
	if got != nil {
		end := got.HighWatermark
		if got.LastStableOffset >= 0 { // fetches end there
			end = min(end, got.LastStableOffset)
		}
		if next, ok := parseNextBatch(got.RecordBatches, offset, end); ok {
			return next, nil
		}
	}
	return 0, errNextBatchUnknown
}

// errNextBatchUnknown is returned by OffsetAfterBatch if the fetch response does not show where the next batch starts.
var errNextBatchUnknown = errors.New("the start of the next batch is unknown")

// parseNextBatch returns the base offset of the second batch in batches; the first one holds offset. Without a
// second batch it returns the log end, if the header of the first batch agrees. Of the first batch only the
// length is trusted otherwise: the rest of the header may be damaged.
func parseNextBatch(batches []byte, offset, end int64) (next int64, ok bool) {
	const head = 61 // length of a batch header, in bytes
	if len(batches) < head {
		return 0, false
	}
	first, length := int64(binary.BigEndian.Uint64(batches)), int64(binary.BigEndian.Uint32(batches[8:]))
	if rest := batches[min(12+length, int64(len(batches))):]; len(rest) >= 8 {
		next = int64(binary.BigEndian.Uint64(rest))
	} else {
		next = first + int64(binary.BigEndian.Uint32(batches[23:])) + 1
		if next != end {
			return 0, false
		}
	}
	return next, first <= offset && offset < next && next <= end
}
