package sorted

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/heaptest"
	"github.com/millrace/millrace/internal/need"
)

// most keeps the larger value of a key.
func most(_, a, b []byte) ([]byte, error) {
	if bytes.Compare(a, b) < 0 {
		a = b
	}
	return slices.Clone(a), nil
}

// small returns a sorter with small limits.
func small(t testing.TB, size, fan int) *sorter {
	t.Helper()
	s := newSorter(t.TempDir(), most)
	s.size, s.fan, s.step = size, fan, 16
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// all returns the records from key on, as KEY=VALUE.
func all(f *file, key string) (got []string, err error) {
	for r := f.after(key); ; {
		if err = r.next(); err != nil {
			break
		}
		if string(r.key) >= key {
			got = append(got, fmt.Sprintf("%s=%s", r.key, r.value))
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return got, err
}

// Records come in the order of the bytes of their keys, each key once, from any key on, whatever the limits are. The
// sum is a function of the result.
func TestSort(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		type pair struct{ key, value string }
		text := rapid.StringOfN(rapid.RuneFrom([]rune("abé\x01\U0010ffff")), 0, 4, -1)
		pairs := rapid.SliceOf(rapid.Custom(func(t *rapid.T) pair {
			return pair{text.Draw(t, "key"), text.Draw(t, "value")}
		})).Draw(t, "pairs")
		want := map[string]string{}
		for _, p := range pairs {
			if old, ok := want[p.key]; !ok || old < p.value {
				want[p.key] = p.value
			}
		}
		sorted := func(pairs []pair) (f *file, sum []byte) {
			s := newSorter("", most)
			s.size, s.fan = rapid.IntRange(1, 200).Draw(t, "size"), rapid.IntRange(2, 4).Draw(t, "fan in")
			s.step = int64(rapid.IntRange(1, 50).Draw(t, "step"))
			for _, p := range pairs {
				must(t, s.add([]byte(p.key), []byte(p.value)))
			}
			f, err := s.finish(t.Context(), func(int64, int64) {})
			must(t, err)
			if len(f.runs) > 1 || len(f.runs) == 0 && len(pairs) > 0 {
				t.Fatalf("%d runs", len(f.runs))
			}
			for _, r := range f.runs {
				if sum = r.sum.Sum(nil); r.records != int64(len(want)) {
					t.Fatalf("%d records, want %d", r.records, len(want))
				}
			}
			return f, sum
		}
		f, sum := sorted(pairs)
		defer f.Close()
		from := text.Draw(t, "from")
		var records []string
		for _, key := range slices.Sorted(maps.Keys(want)) {
			if key >= from {
				records = append(records, key+"="+want[key])
			}
		}
		if got, err := all(f, from); err != nil || !slices.Equal(got, records) {
			t.Fatalf("from %q: got %q, %v, want %q", from, got, err, records)
		}
		other := slices.Clone(pairs)
		slices.Reverse(other)
		g, sum2 := sorted(other)
		defer g.Close()
		if !bytes.Equal(sum, sum2) {
			t.Fatal("another order has another sum")
		}
	})
}

// Records that come in order are one run, which is not copied.
func TestInOrder(t *testing.T) {
	s := small(t, 100, 2)
	for i := range 1000 {
		must(t, s.add(fmt.Appendf(nil, "%04d", i), []byte("v")))
	}
	before := s.out
	f, err := s.finish(t.Context(), func(int64, int64) { t.Error("merged") })
	must(t, err)
	defer f.Close()
	if got, err := all(f, "0990"); f != before || len(got) != 10 || err != nil {
		t.Errorf("the same file: %t; got %q, %v", f == before, got, err)
	}
}

// Memory does not grow with the number of records, and no file has a name.
func TestSortMemory(t *testing.T) {
	s := newSorter(t.TempDir(), most)
	defer s.Close()
	s.size, s.fan = 1<<20, 8
	const records = 300_000 // 19 MB
	value := []byte(strings.Repeat("v", 48))
	peak := heaptest.At(func(look func()) {
		for i := range records {
			must(t, s.add(binary.BigEndian.AppendUint64(nil, rand.Uint64()), value))
			if i%50_000 == 0 {
				look()
			}
		}
		n := 0
		f, err := s.finish(t.Context(), func(done, all int64) {
			if n++; n%20 == 0 {
				look()
			}
		})
		must(t, err)
		defer f.Close()
		if got := f.runs[0].records; got != records {
			t.Errorf("%d records", got)
		}
	})
	if peak > 8<<20 {
		t.Errorf("%d MiB of memory", peak>>20)
	}
	if files, err := os.ReadDir(s.dir); err != nil || len(files) > 0 {
		t.Errorf("files %v, %v", files, err)
	}
}

// A failed write or read, and a cancelled merge, are errors.
func TestSortFails(t *testing.T) {
	for name, damage := range map[string]func(*file){
		"cannot be written": func(f *file) { f.f.Close() },
		"is cut short":      func(f *file) { _ = errors.Join(f.w.Flush(), f.f.Truncate(f.end-1)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := small(t, 100, 2)
			for i := range 100 {
				must(t, s.add(fmt.Appendf(nil, "%04d", 100-i), nil))
			}
			must(t, s.spill())
			damage(s.out)
			if f, err := s.finish(t.Context(), func(int64, int64) {}); err == nil {
				t.Errorf("got %v", f)
			}
		})
	}
	s := small(t, 100, 2)
	s.dir = "/nowhere"
	if err := s.add(nil, make([]byte, 100)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// must fails the test with an error.
func must(tb rapid.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
