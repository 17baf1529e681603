package core

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/streams/kafka/client"
)

// CompareClock compares the clock of the process with Kafka's after a broker has acknowledged rec, once a minute. It
// does not wait.
func (r *Router) CompareClock(ctx context.Context, cl *kgo.Client, rec *kgo.Record) {
	if client.InCatalogue(r.Config.SchemaTopic(rec.Topic)) && r.Config.Clock.Due() {
		acked := *rec
		time.AfterFunc(0, func() { r.ReadClock(context.WithoutCancel(ctx), cl, &acked) })
	}
}

// ReadClock reads Kafka's clock after a broker has acknowledged rec: it asks for the time that the broker gave the
// newest record, since the client keeps its own of rec.
func (r *Router) ReadClock(ctx context.Context, cl *kgo.Client, rec *kgo.Record) {
	req := &kmsg.ListOffsetsRequest{ReplicaID: -1, Topics: []kmsg.ListOffsetsRequestTopic{{
		Topic: rec.Topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{{
			Partition: rec.Partition, CurrentLeaderEpoch: -1, Timestamp: -3, // the greatest time
		}},
	}}}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := req.RequestWith(ctx, cl)
	if err != nil || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return // the next comparison is in a minute
	}
	p := resp.Topics[0].Partitions[0]
	if p.ErrorCode != 0 || p.Timestamp <= 0 {
		return
	}
	ahead, counts := r.Config.Clock.Read(rec.Timestamp, time.UnixMilli(p.Timestamp))
	if counts && r.Config.Metrics.SetClockOffset(ahead) {
		r.Log.Error("detect wrong clock of this process or of Kafka", "ahead_of_kafka", ahead)
	}
}
