package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// probe asks for the records up to the offsets of open: compaction may have left
// nothing before a partition's end, which no poll tells.
func (t *Table) probe(ctx context.Context, cl *kgo.Client, open map[int32]int64) error {
	adm := kadm.NewClient(cl)
	topics, err := adm.ListTopics(ctx, t.name)
	if err != nil {
		return fmt.Errorf("list topic: %w", err)
	}
	starts, _, err := bounds(ctx, adm, t.name)
	if err != nil {
		return err
	}
	var errs []error
	for id, end := range open {
		t.mu.Lock()
		from := max(t.seen[id], starts[t.name][id])
		t.mu.Unlock()
		next, err := from, error(nil)
		if from < end {
			next, err = firstFrom(ctx, cl, topics[t.name], id, from)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("partition %d: %w", id, err))
		} else {
			t.reached(id, next)
		}
	}
	return errors.Join(errs...)
}

// firstFrom returns the offset of the first record of a partition that is not below
// from; if batches without records are all there is, the offset behind them.
func firstFrom(ctx context.Context, cl *kgo.Client, topic kadm.TopicDetail, id int32, from int64) (int64, error) {
	part, ok := topic.Partitions[id]
	if !ok {
		return 0, kerr.UnknownTopicOrPartition
	}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxBytes, req.SessionEpoch = -1, 1<<20, -1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = topic.Topic, topic.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = id, from, 1<<20
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	got, err := cl.Broker(int(part.Leader)).RetriableRequest(ctx, req)
	if err != nil {
		return 0, fmt.Errorf("fetch: %w", err)
	}
	resp := got.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return 0, fmt.Errorf("fetch: %w", err)
	}
	if len(resp.Topics) == 0 || len(resp.Topics[0].Partitions) == 0 {
		return from, nil
	}
	o := kgo.ProcessFetchPartitionOpts{Offset: from, Topic: topic.Topic, Partition: id, KeepControlRecords: true}
	fp, next := kgo.ProcessFetchPartition(o, &resp.Topics[0].Partitions[0], kgo.DefaultDecompressor(), nil)
	switch {
	case fp.Err != nil:
		return 0, fmt.Errorf("fetch: %w", fp.Err)
	case len(fp.Records) > 0:
		return fp.Records[0].Offset, nil
	}
	return max(next, from), nil
}
