package core

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
)

const (
	maxTimestamp = -3 // in a request for offsets: the newest record, by the time that the broker gave it
	// nearby is the number of offsets before an acknowledged record in which a record of its batch may be. A record with a
	// later time that is further back is from before the clock of the broker was set.
	nearby = 10_000
)

// CompareClock compares the clock of the process with Kafka's after a broker has acknowledged rec, once a minute: it
// asks for the time that the broker gave it, since the client keeps its own. It does not wait for the answer.
func (r *Router) CompareClock(ctx context.Context, cl *kgo.Client, rec *kgo.Record) {
	if _, ok := schemas.Lookup(r.Config.SchemaTopic(rec.Topic)); !ok || !r.Config.Metrics.ClockDue() {
		return
	}
	part := kmsg.NewListOffsetsRequestTopicPartition()
	part.Partition, part.Timestamp = rec.Partition, maxTimestamp
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic, topic.Partitions = rec.Topic, append(topic.Partitions, part)
	req := kmsg.NewPtrListOffsetsRequest()
	req.Topics = append(req.Topics, topic)
	sent, offset := rec.Timestamp, rec.Offset
	time.AfterFunc(0, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		resp, err := req.RequestWith(ctx, cl)
		if err != nil || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return // the next comparison is in a minute
		}
		newest := resp.Topics[0].Partitions[0]
		if newest.ErrorCode != 0 || newest.Timestamp <= 0 || newest.Offset < offset-nearby {
			return
		}
		ahead := clockOffset(time.UnixMilli(newest.Timestamp), sent, time.Now())
		if r.Config.Metrics.SetClockOffset(ahead) {
			r.Log.Error("detect wrong clock of this process or of Kafka", "ahead_of_kafka", ahead)
		}
	})
}

// clockOffset returns by how much the clock of the process is ahead of Kafka's, at least: a record has the time kafka
// that was appended between sent and now.
func clockOffset(kafka, sent, now time.Time) time.Duration {
	switch {
	case kafka.Before(sent):
		return sent.Sub(kafka)
	case kafka.After(now):
		return now.Sub(kafka)
	}
	return 0
}
