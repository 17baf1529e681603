package match

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
)

// Every entry is returned once, with the others of its key, in the order of their locations.
func TestEach(t *testing.T) {
	for name, n := range map[string]int{"few": 500, "many": 80_000} {
		t.Run(name, func(t *testing.T) {
			b := New()
			defer b.Close()
			want := map[Key][3][]Entry{}
			for i := range n {
				side := Side(i % 7 % 3)
				e := Entry{Location: Location{uint32(i % 3), uint16(i % 5), uint64(n - i)}, Tag: uint16(i & maxTag),
					Hash: uint64(i)}
				copy(e.Key[:], fmt.Sprintf("%016d", i/3%100))
				if err := b.Add(side, e); err != nil {
					t.Fatal(err)
				}
				all := want[e.Key]
				all[side] = append(all[side], e)
				want[e.Key] = all
			}
			got, parts := 0, 0
			err := b.Each(t.Context(), func(topic, view, table []Entry) error {
				key := slices.Concat(topic, view, table)[0].Key
				all := want[key]
				for _, side := range all {
					slices.SortFunc(side, func(a, b Entry) int { return a.Location.Compare(b.Location) })
				}
				if !slices.Equal(topic, all[Topic]) || !slices.Equal(view, all[View]) || !slices.Equal(table, all[Table]) {
					t.Fatalf("key %s:\n got %v %v %v\nwant %v", key, topic, view, table, all)
				}
				delete(want, key)
				got += len(topic) + len(view) + len(table)
				return nil
			}, func(part, of int) { parts = of - part })
			if err != nil || got != n || len(want) != 0 || parts != 0 {
				t.Errorf("%d of %d entries, %d keys and %d parts left, %v", got, n, len(want), parts, err)
			}
		})
	}
}

func TestEachStops(t *testing.T) {
	b := New()
	if err := b.Add(Topic, Entry{}); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	if err := b.Each(t.Context(), func([]Entry, []Entry, []Entry) error { return full }, nil); !errors.Is(err, full) {
		t.Errorf("got %v, want the callback's error", err)
	}
	if err := b.Add(Topic, Entry{Tag: maxTag + 1}); err == nil {
		t.Error("a mark that would be taken for a side was taken")
	}
}

func TestPlaces(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		var p LocationSet
		want := map[Location]bool{}
		for range rapid.IntRange(0, 12).Draw(t, "runs") {
			at := Location{rapid.Uint32Range(0, 1).Draw(t, "inc"), rapid.Uint16Range(0, 1).Draw(t, "part"),
				rapid.SampledFrom([]uint64{0, 5, 65_530, 131_070, 1 << 40, math.MaxInt64 - 20_000}).Draw(t, "off")}
			for range rapid.SampledFrom([]int{1, 2, 7, 5000}).Draw(t, "n") {
				p.Add(at)
				want[at] = true
				at.Offset++
			}
		}
		var ranges []Range
		for _, at := range slices.SortedFunc(maps.Keys(want), Location.Compare) {
			if !p.Has(at) {
				t.Fatalf("%v was added", at)
			}
			if next := (Location{at.Incarnation, at.Partition, at.Offset + 1}); p.Has(next) != want[next] {
				t.Fatalf("%v was not added", next)
			}
			if n := len(ranges); n > 0 && ranges[n-1].Incarnation == at.Incarnation && ranges[n-1].Partition == at.Partition &&
				ranges[n-1].Last+1 == at.Offset {
				ranges[n-1].Last++
				continue
			}
			ranges = append(ranges, Range{at.Incarnation, at.Partition, at.Offset, at.Offset})
		}
		limit := rapid.IntRange(0, 10).Draw(t, "limit")
		got, more := p.Ranges(limit)
		if n := min(limit, len(ranges)); !reflect.DeepEqual(append([]Range{}, got...), append([]Range{}, ranges[:n]...)) ||
			more != len(ranges)-n {
			t.Errorf("got %v and %d more\nwant %v and %d more", got, more, ranges[:n], len(ranges)-n)
		}
	})
}
