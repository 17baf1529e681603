package kafka

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
)

// A trackerModel remembers every operation on a tracker.
type trackerModel struct {
	tr     *tracker
	slots  []modelSlot
	offset int64
	taken  kgo.EpochOffset
	dead   bool
}

type modelSlot struct {
	at   kgo.EpochOffset // after the record
	done bool
	late bool // no longer in the ring, though not done
}

// head returns the first slot of the ring that is not done.
func (m *trackerModel) head() int {
	for i, s := range m.slots {
		if !s.done && !s.late {
			return i
		}
	}
	return len(m.slots)
}

// commit returns the offset to commit.
func (m *trackerModel) commit() (at kgo.EpochOffset) {
	for _, s := range m.slots {
		if s.late && !s.done {
			return kgo.EpochOffset{Epoch: s.at.Epoch, Offset: s.at.Offset - 1}
		}
	}
	if h := m.head(); h > 0 {
		at = m.slots[h-1].at
	}
	return at
}

// open returns the slots that are not done.
func (m *trackerModel) open() (slots []int) {
	for i, s := range m.slots {
		if !s.done {
			slots = append(slots, i)
		}
	}
	return slots
}

func (m *trackerModel) Add(t *rapid.T) {
	for range rapid.IntRange(1, 100).Draw(t, "n") {
		m.offset += rapid.Int64Range(1, 3).Draw(t, "gap")
		epoch := int32(m.offset / 50)
		slot, ok := m.tr.add(m.offset, epoch)
		if m.dead {
			continue
		}
		if room := len(m.slots)-m.head() < len(m.tr.ring); ok != room {
			t.Fatalf("add = %v, want %v", ok, room)
		}
		if ok && slot != uint64(len(m.slots)) {
			t.Fatalf("slot %d, want %d", slot, len(m.slots))
		}
		if ok {
			m.slots = append(m.slots, modelSlot{at: kgo.EpochOffset{Epoch: epoch, Offset: m.offset + 1}})
		}
	}
}

// Finish finishes any slots in flight, some of them again, and one that does not exist.
func (m *trackerModel) Finish(t *rapid.T) {
	for range rapid.IntRange(1, 60).Draw(t, "n") {
		slot := rapid.IntRange(m.head(), len(m.slots)).Draw(t, "slot")
		if open := m.open(); len(open) > 0 && rapid.Bool().Draw(t, "open") {
			slot = rapid.SampledFrom(open).Draw(t, "slot that is open")
		}
		want := !m.dead && slot < len(m.slots)
		if got := m.tr.finish(uint64(slot)); got != want {
			t.Fatalf("finish(%d) = %v, want %v", slot, got, want)
		}
		if want {
			m.slots[slot].done = true
		}
	}
}

func (m *trackerModel) FinishAll(*rapid.T) {
	for i := range m.slots {
		if !m.slots[i].done && m.tr.finish(uint64(i)) {
			m.slots[i].done = true
		}
	}
}

// Evict makes unfinished slots stragglers, if there are few.
func (m *trackerModel) Evict(t *rapid.T) {
	most := rapid.IntRange(0, 100).Draw(t, "most")
	head := m.head()
	if len(m.open()) > most {
		return
	}
	m.tr.evict(time.Time{})
	if !m.dead {
		for i := head; i < len(m.slots); i++ {
			m.slots[i].late = !m.slots[i].done
		}
	}
}

func (m *trackerModel) Take(t *rapid.T) {
	want := m.commit()
	at, moved := m.tr.take()
	if m.dead {
		if moved {
			t.Fatal("a dead tracker moved")
		}
		return
	}
	if !moved && want != m.taken || moved && at != want {
		t.Fatalf("take = %v, %v, want %v after %v", at, moved, want, m.taken)
	}
	m.taken = want
}

func (m *trackerModel) Kill(t *rapid.T) {
	if rapid.IntRange(0, 20).Draw(t, "die") == 0 {
		m.tr.discard()
		m.dead = true
	}
}

func (m *trackerModel) Check(t *rapid.T) {
	if got, want := m.tr.inFlight(), len(m.slots)-m.head(); !m.dead && got != want {
		t.Fatalf("in flight %d, want %d", got, want)
	}
	if m.dead {
		return
	}
	if got, want := m.tr.unfinished, len(m.open()); got != want {
		t.Fatalf("%d are not done, want %d", got, want)
	}
	// What it lists as done is done, and nothing below its end is left out.
	a, all := m.tr.completedAhead(false, 1000), m.tr.completedAhead(true, 1000)
	for i, s := range m.slots {
		if done := all.isDone(s.at.Offset-1, s.at.Epoch); done != (s.done && s.at.Offset-1 >= m.commit().Offset) &&
			s.at.Offset-1 >= m.commit().Offset {
			t.Fatalf("slot %d at %d: done is %v, and %v by %v, with the ring", i, s.at.Offset-1, s.done, done, all)
		}
		if at := s.at.Offset - 1; a.isDone(at, s.at.Epoch) && !s.done || at < a.end.Offset && s.done &&
			!a.isDone(at, s.at.Epoch) {
			t.Fatalf("slot %d at %d: done is %v, and %v by %v", i, at, s.done, a.isDone(at, s.at.Epoch), a)
		}
	}
}

// The tracker against the model: offsets with gaps, finished in any order, over many turns of the ring.
func TestTracker(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		m := &trackerModel{tr: newTracker(rapid.IntRange(1, 200).Draw(t, "window"))}
		t.Repeat(rapid.StateMachineActions(m))
	})
}
