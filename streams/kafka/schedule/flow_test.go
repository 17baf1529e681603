package schedule

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
)

// queueOf returns a queue of n tasks; the first has sequence number seq.
func queueOf(seq uint64, n int) *keyQueue { return &keyQueue{head: &Task{seq: seq}, n: n} }

// The oldest key and the one with the most queued tasks alternate.
func TestReadyKeys(t *testing.T) {
	for name, tt := range map[string]struct {
		n    []int // tasks of each key, oldest first
		want []uint64
	}{
		"one":                        {[]int{3}, []uint64{0}},
		"all alike":                  {[]int{1, 1, 1, 1}, []uint64{0, 1, 2, 3}},
		"one with many queued tasks": {[]int{1, 1, 1, 600}, []uint64{0, 3, 1, 2}},
		"more and most":              {[]int{1, 1, 100, 1, 2000}, []uint64{0, 4, 1, 2, 3}},
		"the oldest has most":        {[]int{600, 1, 1}, []uint64{0, 1, 2}},
		"less than eight is little":  {[]int{1, 7, 1}, []uint64{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var h readyKeys
			for i, n := range tt.n {
				h.push(queueOf(uint64(i), n))
			}
			var got []uint64
			for h.len() > 0 {
				got = append(got, h.pop().head.seq)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// Each key comes out once. A peeked key stays the next one, whatever is added. The oldest key waits for at
// most one peeked key and one with many tasks.
func TestReadyKeysProperty(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		var (
			h     readyKeys
			seq   uint64
			in    []uint64 // oldest first
			since = map[uint64]int{}
		)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				seq++
				h.push(queueOf(seq, rapid.SampledFrom([]int{1, 5, 60, 500, 5000}).Draw(t, "n")))
				in = append(in, seq)
			},
			"pop": func(t *rapid.T) {
				if h.len() == 0 {
					t.Skip()
				}
				if rapid.Bool().Draw(t, "look") {
					looked := h.peek()
					seq++
					h.push(queueOf(seq, 5000))
					in = append(in, seq)
					if h.peek() != looked {
						t.Fatal("the peeked key is not the next one")
					}
				}
				got := h.pop().head.seq
				i := slices.Index(in, got)
				if i < 0 {
					t.Fatalf("%d is out of nowhere", got)
				}
				in = slices.Delete(in, i, i+1)
				delete(since, got)
				if len(in) > 0 {
					if since[in[0]]++; since[in[0]] > 3 { // the first made it the oldest
						t.Fatalf("%d is the oldest and waited for %d turns", in[0], since[in[0]]-1)
					}
				}
			},
			"removeAll": func(t *rapid.T) {
				keys := map[*keyQueue]bool{queueOf(seq+1, 1): true} // not ready
				for range rapid.IntRange(0, len(in)).Draw(t, "keys") {
					q := h.pop()
					h.push(q)
					keys[q] = true
				}
				for _, q := range h.removeAll(keys) {
					i := slices.Index(in, q.head.seq)
					if i < 0 || !keys[q] {
						t.Fatalf("%d was removed", q.head.seq)
					}
					in = slices.Delete(in, i, i+1)
					delete(keys, q)
				}
				if len(keys) != 1 {
					t.Fatalf("%d are left", len(keys)-1)
				}
				clear(since)
			},
			"": func(t *rapid.T) {
				if h.len() != len(in) {
					t.Fatalf("%d are in, want %d", h.len(), len(in))
				}
			},
		})
	})
}
