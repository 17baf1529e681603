package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// offsets holds offsets by topic name and partition.
type offsets map[string]map[int32]int64

// bounds returns the start offsets and the last stable offsets of the partitions of topics. Readers get no record
// beyond the last stable offset while a transaction is open. Topics that do not exist are left out.
func bounds(ctx context.Context, adm *kadm.Client, topics ...string) (starts, ends offsets, err error) {
	if starts, err = collectOffsets(adm.ListStartOffsets(ctx, topics...)); err != nil {
		return nil, nil, fmt.Errorf("list start offsets: %w", err)
	}
	if ends, err = collectOffsets(adm.ListCommittedOffsets(ctx, topics...)); err != nil {
		return nil, nil, fmt.Errorf("list end offsets: %w", err)
	}
	return starts, ends, nil
}

// collectOffsets returns the offsets of a response, or its first error. Topics that do not exist are left out.
func collectOffsets(answer kadm.ListedOffsets, err error) (offsets, error) {
	if err != nil {
		return nil, err
	}
	out := offsets{}
	for topic, ps := range answer {
		for id, l := range ps {
			if errors.Is(l.Err, kerr.UnknownTopicOrPartition) {
				continue
			}
			if l.Err != nil {
				return nil, fmt.Errorf("%s: %w", partition{topic, id}, l.Err)
			}
			if out[topic] == nil {
				out[topic] = map[int32]int64{}
			}
			out[topic][id] = l.Offset
		}
	}
	return out, nil
}

// A partition names one partition of a topic. The topic includes the prefix.
type partition struct {
	topic string
	id    int32
}

func (p partition) String() string { return fmt.Sprintf("%s/%d", p.topic, p.id) }

// asMap returns the partition in the form of the client's functions.
func (p partition) asMap() map[string][]int32 { return map[string][]int32{p.topic: {p.id}} }

func eachPartition(parts map[string][]int32, f func(partition)) {
	for topic, ids := range parts {
		for _, id := range ids {
			f(partition{topic, id})
		}
	}
}

// maxClockSkew is how far a timestamp may be ahead of the local clock. Beyond that it counts as one of the future.
const maxClockSkew = 10 * time.Minute
