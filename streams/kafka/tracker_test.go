package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// The tracker against a model that remembers everything: offsets with gaps, finished in
// any order, some twice, over many turns of the ring.
func TestTracker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := newTracker(rapid.IntRange(1, 200).Draw(t, "window"))
		type rec struct {
			offset int64
			epoch  int32
			done   bool
		}
		var (
			model  []rec // by slot
			offset int64
			taken  kgo.EpochOffset
			dead   bool
		)
		head := func() int { // the first slot that is not done
			for i, r := range model {
				if !r.done {
					return i
				}
			}
			return len(model)
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for range rapid.IntRange(1, 100).Draw(t, "n") {
					offset += rapid.Int64Range(1, 3).Draw(t, "gap")
					epoch := int32(offset / 50)
					slot, ok := tr.add(offset, epoch)
					if dead {
						continue
					}
					if room := len(model)-head() < len(tr.ring); ok != room {
						t.Fatalf("add = %v, want %v", ok, room)
					}
					if ok {
						if slot != uint64(len(model)) {
							t.Fatalf("slot %d, want %d", slot, len(model))
						}
						model = append(model, rec{offset, epoch, false})
					}
				}
			},
			"finish": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip()
				}
				for range rapid.IntRange(1, 60).Draw(t, "n") {
					slot := rapid.IntRange(head(), len(model)).Draw(t, "slot")
					want := !dead && slot < len(model)
					if got := tr.finish(uint64(slot)); got != want {
						t.Fatalf("finish(%d) = %v, want %v", slot, got, want)
					}
					if want {
						model[slot].done = true
					}
				}
			},
			"finish all": func(t *rapid.T) {
				for slot := range model {
					if !model[slot].done && tr.finish(uint64(slot)) {
						model[slot].done = true
					}
				}
			},
			"take": func(t *rapid.T) {
				var want kgo.EpochOffset
				if h := head(); h > 0 {
					want = kgo.EpochOffset{Epoch: model[h-1].epoch, Offset: model[h-1].offset + 1}
				}
				at, moved := tr.take()
				if dead {
					if moved {
						t.Fatal("a dead tracker moved")
					}
					return
				}
				if moved != (want != taken) || moved && at != want {
					t.Fatalf("take = %v, %v, want %v after %v", at, moved, want, taken)
				}
				taken = want
			},
			"kill": func(t *rapid.T) {
				if rapid.IntRange(0, 20).Draw(t, "die") == 0 {
					tr.kill()
					dead = true
				}
			},
			"": func(t *rapid.T) {
				if !dead && tr.inFlight() != len(model)-head() {
					t.Fatalf("in flight %d, want %d", tr.inFlight(), len(model)-head())
				}
			},
		})
	})
}

// Delivered and done in bursts of 1000, each burst finished in a shuffled order.
func BenchmarkTracker(b *testing.B) {
	tr := newTracker(1 << 13)
	var slots [1000]uint64
	offset := int64(0)
	b.ReportAllocs()
	for i := 0; i < b.N; i += len(slots) {
		for j := range slots {
			slots[j], _ = tr.add(offset, 1)
			offset++
		}
		for j := range slots {
			tr.finish(slots[j*7%len(slots)])
		}
		tr.take()
	}
	if tr.inFlight() != 0 {
		b.Fatalf("%d in flight", tr.inFlight())
	}
}
