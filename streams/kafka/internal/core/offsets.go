package core

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/streams/kafka/client"
)

// Offsets holds offsets by topic name and partition.
type Offsets map[string]map[int32]int64

// Bounds returns the start offsets and the last stable offsets of the partitions of topics. Readers get no record
// beyond the last stable offset while a transaction is open. Topics that do not exist are left out.
func Bounds(ctx context.Context, adm *kadm.Client, topics ...string) (starts, ends Offsets, err error) {
	all := strings.Join(topics, " or ") // the error of the client does not say which of them is refused
	if starts, err = CollectOffsets(adm.ListStartOffsets(ctx, topics...)); err != nil {
		return nil, nil, client.Refused(fmt.Errorf("list start offsets: %w", err), "Describe", all, "")
	}
	if ends, err = CollectOffsets(adm.ListCommittedOffsets(ctx, topics...)); err != nil {
		return nil, nil, client.Refused(fmt.Errorf("list end offsets: %w", err), "Describe", all, "")
	}
	return starts, ends, nil
}

// CollectOffsets returns the offsets of a response, or its first error. Topics that do not exist are left out.
func CollectOffsets(answer kadm.ListedOffsets, err error) (Offsets, error) {
	if err != nil {
		return nil, err
	}
	out := Offsets{}
	for topic, ps := range answer {
		for id, l := range ps {
			if errors.Is(l.Err, kerr.UnknownTopicOrPartition) {
				continue
			}
			if l.Err != nil {
				return nil, client.Refused(fmt.Errorf("%s: %w", Partition{topic, id}, l.Err), "Describe", topic, "")
			}
			if out[topic] == nil {
				out[topic] = map[int32]int64{}
			}
			out[topic][id] = l.Offset
		}
	}
	return out, nil
}

// A Partition names one partition of a topic. The topic includes the prefix.
type Partition struct {
	Topic string
	ID    int32
}

// String returns TOPIC/ID.
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.ID) }

// AsMap returns the partition in the form of the client's functions.
func (p Partition) AsMap() map[string][]int32 { return map[string][]int32{p.Topic: {p.ID}} }

// EachPartition calls f for each partition in parts.
func EachPartition(parts map[string][]int32, f func(Partition)) {
	for topic, ids := range parts {
		for _, id := range ids {
			f(Partition{topic, id})
		}
	}
}
