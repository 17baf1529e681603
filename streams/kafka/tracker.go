package kafka

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A tracker knows which records of one partition were delivered and which of them are
// done, and so up to where the partition may be committed: to behind the last record
// before the first unfinished one. It is a ring of what was delivered and a bitmap of what
// is done; gaps between offsets cost nothing. A few records that take long are kept apart from
// the ring, so that others are not held up by them. Its owner guards it.
type tracker struct {
	ring       []kgo.EpochOffset // of the slots base to next
	bits       []uint64          // slot is done, one bit each
	mask       uint64
	base       uint64      // the oldest slot of the ring that is not done
	next       uint64      // the slot of the next record
	unfinished int         // slots that are not done
	stragglers []straggler // those of them below base, in order

	end       kgo.EpochOffset // behind the last record below base
	changed   bool            // where to commit
	discarded bool
}

// A late record is not done, and no longer in the ring.
type straggler struct {
	slot      uint64
	at        kgo.EpochOffset
	notBefore time.Time // it is from then, or later
}

// newTracker returns a tracker for a window of at most size records in flight; size is
// rounded up to a power of two, of 64 at least.
func newTracker(size int) *tracker {
	n := uint64(1) << bits.Len64(uint64(max(size, 64)-1))
	return &tracker{ring: make([]kgo.EpochOffset, n), bits: make([]uint64, n/64), mask: n - 1}
}

// inFlight is how many slots stand between the oldest that is not done and the newest.
func (t *tracker) inFlight() int { return int(t.next - t.base) }

// done is how many of these are done.
func (t *tracker) doneCount() int { return t.inFlight() - (t.unfinished - len(t.stragglers)) }

// add takes note of a delivered record, and returns its slot. It refuses when the
// window is full.
func (t *tracker) add(offset int64, epoch int32) (slot uint64, ok bool) {
	if t.next-t.base > t.mask {
		return 0, false
	}
	slot = t.next
	t.ring[slot&t.mask] = kgo.EpochOffset{Epoch: epoch, Offset: offset}
	t.next++
	t.unfinished++
	return slot, true
}

// finish takes note that the record in slot is done. It reports whether that counts:
// in a tracker that was killed it does not.
func (t *tracker) finish(slot uint64) bool {
	if t.discarded || slot >= t.next {
		return false
	}
	if slot < t.base {
		return t.finishStraggler(slot)
	}
	i := slot & t.mask
	if bit := uint64(1) << (i % 64); t.bits[i/64]&bit == 0 {
		t.bits[i/64] |= bit
		t.unfinished--
	}
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
	t.updateEnd()
	t.changed = t.changed || len(t.stragglers) == 0
	return true
}

// passed takes note of the record before base.
func (t *tracker) updateEnd() {
	last := t.ring[(t.base-1)&t.mask]
	t.end = kgo.EpochOffset{Epoch: last.Epoch, Offset: last.Offset + 1}
}

func (t *tracker) finishStraggler(slot uint64) bool {
	i, ok := slices.BinarySearchFunc(t.stragglers, slot, func(l straggler, slot uint64) int { return cmp.Compare(l.slot, slot) })
	if !ok {
		return false
	}
	t.stragglers = slices.Delete(t.stragglers, i, i+1)
	t.unfinished--
	t.changed = t.changed || i == 0
	return true
}

// pass empties the ring, of records from then on: those that are not done are late.
func (t *tracker) evict(from time.Time) {
	if t.discarded || t.base == t.next {
		return
	}
	for ; t.base < t.next; t.base++ {
		i := t.base & t.mask
		if bit := uint64(1) << (i % 64); t.bits[i/64]&bit != 0 {
			t.bits[i/64] &^= bit
			continue
		}
		t.stragglers = append(t.stragglers, straggler{t.base, t.ring[i], from})
	}
	t.updateEnd()
	t.changed = true
}

// ahead returns what is done behind where to commit: below base and, if ring is set, in the ring, behind most records that
// are not.
func (t *tracker) completedAhead(ring bool, most int) (a completedAhead) {
	if len(t.stragglers) > 0 {
		a.end = t.end
	}
	for _, l := range t.stragglers {
		a.unfinished = append(a.unfinished, l.at.Offset)
	}
	if !ring {
		return a
	}
	left := a.unfinished
	for slot := t.base; slot < t.next && len(left) <= most; slot++ {
		i := slot & t.mask
		if t.bits[i/64]&(1<<(i%64)) == 0 {
			left = append(left, t.ring[i].Offset)
			continue
		}
		a.end = kgo.EpochOffset{Epoch: t.ring[i].Epoch, Offset: t.ring[i].Offset + 1}
		a.unfinished = left
	}
	return a
}

// take returns where to commit, and whether that has changed since it was last taken.
func (t *tracker) take() (at kgo.EpochOffset, moved bool) {
	moved, t.changed = t.changed, false
	if len(t.stragglers) > 0 {
		return t.stragglers[0].at, moved
	}
	return t.end, moved
}

// kill makes everything that is still in flight count for nothing.
func (t *tracker) discard() { t.discarded, t.changed = true, false }
