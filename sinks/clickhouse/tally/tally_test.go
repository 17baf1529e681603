package tally

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Every entry comes back once, with the others of its key, in the order of their places, also
// where most of them went to the file.
func TestEach(t *testing.T) {
	for name, n := range map[string]int{"in memory": 500, "in the file": 80_000} {
		t.Run(name, func(t *testing.T) {
			b := New()
			defer b.Close()
			want := map[Key][2][]Entry{}
			for i := range n {
				side := Side(i % 2)
				e := Entry{At: At{uint32(i % 3), uint16(i % 5), uint64(n - i)}, Mark: uint16(i % sideBit)}
				copy(e.Key[:], fmt.Sprintf("%016d", i/3%100))
				if err := b.Add(side, e); err != nil {
					t.Fatal(err)
				}
				both := want[e.Key]
				both[side] = append(both[side], e)
				want[e.Key] = both
			}
			if (b.file != nil) != (n > 500) {
				t.Errorf("%d entries: file is %v", n, b.file)
			}
			got, last := 0, 0
			err := b.Each(t.Context(), func(topic, table []Entry) error {
				key := slices.Concat(topic, table)[0].Key
				both := want[key]
				for _, side := range both {
					slices.SortFunc(side, func(a, b Entry) int { return a.At.Compare(b.At) })
				}
				if !slices.Equal(topic, both[Topic]) || !slices.Equal(table, both[Table]) {
					t.Fatalf("key %s:\n got %v %v\nwant %v", key, topic, table, both)
				}
				delete(want, key)
				got += len(topic) + len(table)
				return nil
			}, func(part, parts int) { last = part*1000 + parts })
			if err != nil || got != n || len(want) != 0 || last != buckets*1000+buckets {
				t.Errorf("%d of %d entries, %d keys left, last part %d, %v", got, n, len(want), last, err)
			}
		})
	}
}

// What is held in memory does not grow with what is added.
func TestMemory(t *testing.T) {
	b := New()
	defer b.Close()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var e Entry
	for i := range 1_500_000 { // 48 MB
		binary.BigEndian.PutUint64(e.Key[:], uint64(i))
		e.At.Offset = uint64(i)
		if err := b.Add(Side(i%2), e); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 32<<20 {
		t.Errorf("%d bytes are held", grown)
	}
	largest, n := 0, 0
	if err := b.Each(t.Context(), func(topic, table []Entry) error { n += len(topic) + len(table); return nil }, func(int, int) {}); err != nil || n != 1_500_000 {
		t.Errorf("%d entries, %v", n, err)
	}
	for i := range b.buckets {
		largest = max(largest, len(b.buckets[i].chunks))
	}
	if largest > 6 { // 1.5 million entries in 1,024 buckets are 3 chunks each
		t.Errorf("a bucket has %d chunks: keys that count up are not spread", largest)
	}
}

func TestEachStops(t *testing.T) {
	b := New()
	if err := b.Add(Topic, Entry{}); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	quiet := func(int, int) {}
	if err := b.Each(t.Context(), func([]Entry, []Entry) error { return full }, quiet); !errors.Is(err, full) {
		t.Errorf("got %v, want the callback's error", err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(full)
	if err := b.Each(ctx, func([]Entry, []Entry) error { return nil }, quiet); !errors.Is(err, full) {
		t.Errorf("got %v, want why the context ended", err)
	}
	if err := b.Add(Topic, Entry{Mark: sideBit}); err == nil {
		t.Error("a mark that would be taken for a side was taken")
	}
}

// A write that failed is told by whatever is called next: what was lost is not compared as if it never was.
func TestSpillFails(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()+"/nowhere")
	b := New()
	var err error
	for i := 0; i < chunkSize && err == nil; i++ {
		err = b.Add(Table, Entry{})
	}
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that there is no such directory", err)
	}
	if again := b.Each(t.Context(), nil, nil); !errors.Is(again, os.ErrNotExist) {
		t.Errorf("Each: got %v, want the same error", again)
	}
}

func TestPlaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Places
		want := map[At]bool{}
		for range rapid.IntRange(0, 12).Draw(t, "runs") {
			at := At{rapid.Uint32Range(0, 1).Draw(t, "inc"), rapid.Uint16Range(0, 1).Draw(t, "part"),
				rapid.SampledFrom([]uint64{0, 5, 65_530, 131_070, 1 << 40, math.MaxInt64 - 20_000}).Draw(t, "off")}
			for range rapid.SampledFrom([]int{1, 2, 7, 5000}).Draw(t, "n") {
				p.Add(at)
				want[at] = true
				at.Offset++
			}
		}
		var ranges []Range
		for _, at := range slices.SortedFunc(maps.Keys(want), At.Compare) {
			if !p.Has(at) {
				t.Fatalf("%v was added", at)
			}
			if next := (At{at.Incarnation, at.Partition, at.Offset + 1}); p.Has(next) != want[next] {
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
		if n := min(limit, len(ranges)); !reflect.DeepEqual(append([]Range{}, got...), append([]Range{}, ranges[:n]...)) || more != len(ranges)-n {
			t.Errorf("got %v and %d more\nwant %v and %d more", got, more, ranges[:n], len(ranges)-n)
		}
	})
}
