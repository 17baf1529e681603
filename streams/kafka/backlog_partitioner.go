package kafka

import (
	"hash/fnv"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A backlogPartitioner chooses partitions by key. In backlog topics it also uses the slot of a record.
type backlogPartitioner struct {
	kgo.Partitioner
	backlogs func(topic string) bool
}

func (s backlogPartitioner) ForTopic(topic string) kgo.TopicPartitioner {
	p := s.Partitioner.ForTopic(topic)
	if s.backlogs(topic) {
		return backlogTopicPartitioner{p}
	}
	return p
}

type backlogTopicPartitioner struct{ kgo.TopicPartitioner }

func (backlogTopicPartitioner) RequiresConsistency(*kgo.Record) bool { return true }

// Before a record is sent to a backlog topic, its Partition says how to choose the partition: by key, or by
// slot.
const byKey = -1

func bySlot(slot int) int32 { return int32(byKey - 1 - slot) }

func (s backlogTopicPartitioner) Partition(rec *kgo.Record, n int) int {
	switch {
	case rec.Partition >= 0: // it is sent again
		return int(rec.Partition) % n
	case rec.Partition == byKey:
		return s.TopicPartitioner.Partition(rec, n)
	}
	return slotPartition(byKey-1-int(rec.Partition), rec.Key, n)
}

// slotPartition returns the partition of a key in a slot.
func slotPartition(slot int, key []byte, partitions int) int {
	width := (partitions + backlogSlots - 1) / backlogSlots
	return (slot*width + int(hashWords(string(key))%uint32(width))) % partitions
}

func hashWords(words ...string) uint32 {
	h := fnv.New32a()
	for _, w := range words {
		h.Write([]byte(w)) // never fails
		h.Write([]byte{0})
	}
	return h.Sum32()
}

const backlogSlots = 3 // parts of the partitions of a backlog topic; a flow uses one
