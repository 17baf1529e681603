package kafka

import (
	"math/bits"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A tracker knows which records of one partition were delivered and which of them are
// done, and so up to where the partition may be committed: to behind the last record
// before the first unfinished one. It is a ring of what was delivered and a bitmap of what
// is done; gaps between offsets cost nothing. Its owner guards it.
type tracker struct {
	ring []kgo.EpochOffset // of the slots base to next
	bits []uint64          // slot is done, one bit each
	mask uint64
	base uint64 // the oldest slot that is not done
	next uint64 // the slot of the next record

	at    kgo.EpochOffset // where to commit, if moved
	moved bool
	dead  bool
}

// newTracker returns a tracker for a window of at most size records in flight; size is
// rounded up to a power of two, of 64 at least.
func newTracker(size int) *tracker {
	n := uint64(1) << bits.Len64(uint64(max(size, 64)-1))
	return &tracker{ring: make([]kgo.EpochOffset, n), bits: make([]uint64, n/64), mask: n - 1}
}

// inFlight is how many slots stand between the oldest that is not done and the newest.
func (t *tracker) inFlight() int { return int(t.next - t.base) }

// add takes note of a delivered record, and returns its slot. It refuses when the
// window is full.
func (t *tracker) add(offset int64, epoch int32) (slot uint64, ok bool) {
	if t.next-t.base > t.mask {
		return 0, false
	}
	slot = t.next
	t.ring[slot&t.mask] = kgo.EpochOffset{Epoch: epoch, Offset: offset}
	t.next++
	return slot, true
}

// finish takes note that the record in slot is done. It reports whether that counts:
// in a tracker that was killed it does not.
func (t *tracker) finish(slot uint64) bool {
	if t.dead || slot < t.base || slot >= t.next {
		return false
	}
	i := slot & t.mask
	t.bits[i/64] |= 1 << (i % 64)
	if slot != t.base {
		return true
	}
	for t.base < t.next {
		i := t.base & t.mask
		word := t.bits[i/64] >> (i % 64)
		run := uint64(bits.TrailingZeros64(^word)) // done slots from base on, within the word
		if run == 0 {
			break
		}
		run = min(run, t.next-t.base)
		t.bits[i/64] &^= (1<<run - 1) << (i % 64)
		t.base += run
	}
	last := t.ring[(t.base-1)&t.mask]
	t.at, t.moved = kgo.EpochOffset{Epoch: last.Epoch, Offset: last.Offset + 1}, true
	return true
}

// take returns where to commit, if that has changed since it was last taken.
func (t *tracker) take() (at kgo.EpochOffset, moved bool) {
	moved, t.moved = t.moved, false
	return t.at, moved
}

// kill makes everything that is still in flight count for nothing.
func (t *tracker) kill() { t.dead, t.moved = true, false }
