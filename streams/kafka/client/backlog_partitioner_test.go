package client

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The messages of a slot use a third of the partitions and those of a key one, also when they are sent again.
func TestSlotPartitions(t *testing.T) {
	p := backlogPartitioner{kgo.StickyKeyPartitioner(nil), func(string) bool { return true }}.ForTopic("backlog.copier")
	for n := 1; n <= 50; n++ {
		all := map[int]bool{}
		for slot := range BacklogSlots {
			parts := map[int]bool{}
			for key := range 1000 {
				rec := &kgo.Record{Key: []byte(fmt.Sprint(key)), Partition: BySlot(slot)}
				at := p.Partition(rec, n)
				rec.Partition = int32(at)
				again := &kgo.Record{Key: rec.Key, Partition: rec.Partition}
				if at < 0 || at >= n || p.Partition(again, n) != at {
					t.Fatalf("partition %d of %d", at, n)
				}
				parts[at], all[at] = true, true
			}
			if want := (n + BacklogSlots - 1) / BacklogSlots; len(parts) != want {
				t.Fatalf("slot %d has %d of %d partitions, want %d", slot, len(parts), n, want)
			}
		}
		if len(all) != n {
			t.Fatalf("all slots have %d of %d partitions", len(all), n)
		}
	}
	whole := kgo.StickyKeyPartitioner(nil).ForTopic("deletions")
	for key := range 100 {
		rec := &kgo.Record{Key: []byte(fmt.Sprint(key)), Partition: ByKey}
		if got, want := p.Partition(rec, 12), whole.Partition(rec, 12); got != want {
			t.Fatalf("key %d is in partition %d, and in %d of the other topic", key, got, want)
		}
	}
}
