package pairs

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/millrace/millrace/internal/heaptest"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
)

// generated lists a number of objects that it makes as it goes; every so manyth has another size.
func generated(items, every int, size int64) func(after string) iter.Seq2[storage.Object, error] {
	return func(after string) iter.Seq2[storage.Object, error] {
		first := 0
		if after != "" {
			_, _ = fmt.Sscanf(after, "dir/file%d", &first)
			first++
		}
		return func(yield func(storage.Object, error) bool) {
			id := []byte("dir/file00000000")
			for n := first; n < items; n++ {
				for i, rest := len(id)-1, n; i >= len("dir/file"); i, rest = i-1, rest/10 {
					id[i] = byte('0' + rest%10)
				}
				o := storage.Object{Item: string(id), Size: 1000, Version: "v1", Modified: when}
				if n%every == every-1 {
					o.Size = size
				}
				if !yield(o, nil) {
					return
				}
			}
		}
	}
}

// runAll reads all pages of a sweep and returns the numbers of ids and commands.
func runAll(tb testing.TB, w *harness, each func()) (compared, emitted int64) {
	tb.Helper()
	s := w.sweep()
	for cursor := []byte(nil); ; {
		p, err := s(context.Background(), round, cursor)
		if err != nil {
			tb.Fatal(err)
		}
		for f := range findings {
			compared += p.Counts[f.String()]
		}
		emitted += int64(len(p.Messages))
		each()
		if p.Last {
			return compared, emitted
		}
		cursor = p.Next
	}
}

// The memory of a sweep does not grow with the items.
func TestMemory(t *testing.T) {
	items := need.Amount(200_000, 1_000_000, 1_000_000)
	w := newHarness(t)
	w.source.listing = generated(items, items/100, 1000)
	w.destination.listing = generated(items, items/100, 1001)
	pages := 0
	most := heaptest.At(func(look func()) {
		runAll(t, w, func() { pages++; look() })
	})
	if most > 8<<20 {
		t.Errorf("%d bytes after one of %d pages", most, pages)
	}
}
