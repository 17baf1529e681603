package client

import (
	"hash/fnv"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A backlogPartitioner chooses partitions by key. In backlog topics it also uses the slot of a record.
type backlogPartitioner struct {
	kgo.Partitioner
	backlogs func(topic string) bool
}

// ForTopic implements kgo.Partitioner.
func (s backlogPartitioner) ForTopic(topic string) kgo.TopicPartitioner {
	p := s.Partitioner.ForTopic(topic)
	if s.backlogs(topic) {
		return backlogTopicPartitioner{p}
	}
	return p
}

type backlogTopicPartitioner struct{ kgo.TopicPartitioner }

// RequiresConsistency implements kgo.TopicPartitioner.
func (backlogTopicPartitioner) RequiresConsistency(*kgo.Record) bool { return true }

// ByKey is the Partition of a record to a backlog topic whose partition is chosen by key.
const ByKey = -1

// BySlot returns the Partition of a record to a backlog topic whose partition is chosen by slot.
func BySlot(slot int) int32 { return int32(ByKey - 1 - slot) }

// Partition implements kgo.TopicPartitioner.
func (s backlogTopicPartitioner) Partition(rec *kgo.Record, n int) int {
	switch {
	case rec.Partition >= 0: // it is sent again
		return int(rec.Partition) % n
	case rec.Partition == ByKey:
		return s.TopicPartitioner.Partition(rec, n)
	}
	return slotPartition(ByKey-1-int(rec.Partition), rec.Key, n)
}

// slotPartition returns the partition of a key in a slot.
func slotPartition(slot int, key []byte, partitions int) int {
	width := (partitions + BacklogSlots - 1) / BacklogSlots
	return (slot*width + int(HashWords(string(key))%uint32(width))) % partitions
}

// HashWords returns a hash of words that is the same in every process.
func HashWords(words ...string) uint32 {
	h := fnv.New32a()
	for _, w := range words {
		h.Write([]byte(w)) // never fails
		h.Write([]byte{0})
	}
	return h.Sum32()
}

// BacklogSlots is the number of parts of the partitions of a backlog topic. A flow uses one of them.
const BacklogSlots = 3
