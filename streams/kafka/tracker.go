package kafka

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A tracker records which records of a partition were delivered and which are done, and so the offset to
// commit: the one after the last record before the first unfinished one. It consists of a ring of delivered
// offsets and a bitmap of done ones; gaps between offsets cost nothing. A few stragglers, records that take
// long, are kept outside the ring so that they do not block the window. The owner of a tracker guards it.
type tracker struct {
	ring       []kgo.EpochOffset // offsets of the slots from base to next
	bits       []uint64          // one bit per slot: done
	mask       uint64
	base       uint64      // the oldest slot of the ring that is not done
	next       uint64      // the slot of the next record
	unfinished int         // slots that are not done
	stragglers []straggler // unfinished slots below base, ascending

	end       kgo.EpochOffset // offset after the last record below base
	changed   bool            // the offset to commit has changed
	discarded bool
}

// A straggler is an unfinished record that is no longer in the ring.
type straggler struct {
	slot      uint64
	at        kgo.EpochOffset
	notBefore time.Time // lower bound of its timestamp
}

// newTracker returns a tracker with a window of size records, rounded up to a power of two and to 64 at
// least.
func newTracker(size int) *tracker {
	n := uint64(1) << bits.Len64(uint64(max(size, 64)-1))
	return &tracker{ring: make([]kgo.EpochOffset, n), bits: make([]uint64, n/64), mask: n - 1}
}

// inFlight returns the number of slots in the ring.
func (t *tracker) inFlight() int { return int(t.next - t.base) }

// doneCount returns how many slots in the ring are done.
func (t *tracker) doneCount() int { return t.inFlight() - (t.unfinished - len(t.stragglers)) }

// add adds a delivered record, and returns its slot. ok is false if the window is full.
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

// finish marks the record in slot as done. It reports false if the slot is unknown or the tracker was
// discarded.
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

// updateEnd sets end to the offset after the record before base.
func (t *tracker) updateEnd() {
	last := t.ring[(t.base-1)&t.mask]
	t.end = kgo.EpochOffset{Epoch: last.Epoch, Offset: last.Offset + 1}
}

func (t *tracker) finishStraggler(slot uint64) bool {
	i, ok := slices.BinarySearchFunc(t.stragglers, slot, func(s straggler, slot uint64) int {
		return cmp.Compare(s.slot, slot)
	})
	if !ok {
		return false
	}
	t.stragglers = slices.Delete(t.stragglers, i, i+1)
	t.unfinished--
	t.changed = t.changed || i == 0
	return true
}

// evict empties the ring. Its unfinished records become stragglers with a timestamp of from or later.
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

// completedAhead returns which records after the committed offset are done: those below base and, if ring is
// set, those in the ring until most records are unfinished.
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

// take returns the offset to commit, and whether it has changed since the last call.
func (t *tracker) take() (at kgo.EpochOffset, moved bool) {
	moved, t.changed = t.changed, false
	if len(t.stragglers) > 0 {
		return t.stragglers[0].at, moved
	}
	return t.end, moved
}

// discard makes the results of all records in flight ignored.
func (t *tracker) discard() { t.discarded, t.changed = true, false }
