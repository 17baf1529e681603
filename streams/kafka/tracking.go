package kafka

// A Tracking is the bookkeeping that a Pool does for one partition, and nothing else of it:
// for figures of what it costs.
type Tracking struct {
	tr     *tracker
	slots  []uint64
	offset int64
}

// TrackingBurst is how many records are in flight at most.
const TrackingBurst = 1000

// NewTracking returns a Tracking with a window of 8192 records.
func NewTracking() *Tracking {
	return &Tracking{tr: newTracker(1 << 13), slots: make([]uint64, TrackingBurst)}
}

// Bursts delivers n bursts of TrackingBurst records, finishes each burst in a shuffled order, and looks
// after each where the partition may be committed. It returns that offset.
func (t *Tracking) Bursts(n int) int64 {
	for range n {
		for i := range t.slots {
			t.slots[i], _ = t.tr.add(t.offset, 1)
			t.offset++
		}
		for i := range t.slots {
			t.tr.finish(t.slots[i*7%len(t.slots)])
		}
		t.tr.take()
	}
	return t.tr.at.Offset
}
