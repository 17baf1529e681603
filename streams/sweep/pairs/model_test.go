package pairs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
)

// Over any listings, in pages of any size, interrupted and continued anywhere, each difference has one command, nothing
// else has one, and each item is counted once.
func TestPagesModel(t *testing.T) {
	need.Check(t, func(rt *rapid.T) {
		w := newHarness(t)
		id := rapid.SampledFrom([]string{"a", "a/", "a/b", "b", "é", "z", "\U0001F600", "a b", "A", "a%", "..", "/", "zz"})
		sizes := rapid.Int64Range(-1, 2)
		draw := func(s *listed, name string) map[string]int64 {
			at := rapid.MapOf(id, sizes).Draw(rt, name)
			for _, id := range slices.Sorted(maps.Keys(at)) {
				s.objects = append(s.objects, storage.Object{Item: id, Size: at[id], Version: "v", Modified: when})
			}
			return at
		}
		from, to := draw(w.source, "source"), draw(w.destination, "destination")
		w.source.noSpace = len(from) == 0 && rapid.Bool().Draw(rt, "no source")
		w.destination.noSpace = len(to) == 0 && rapid.Bool().Draw(rt, "no destination")
		w.config.Full = rapid.Bool().Draw(rt, "full")
		want := map[string]int{}
		if w.source.noSpace != w.destination.noSpace || w.config.Full && !w.source.noSpace {
			want[""] = 1
		}
		counts := map[string]int64{}
		all := maps.Clone(from)
		maps.Copy(all, to)
		for id := range all {
			a, inA := from[id]
			b, inB := to[id]
			f := "equal"
			switch {
			case !inB:
				f = "missing"
			case !inA:
				f = "extra"
			case a < 0 || b < 0:
				f = "unknown"
			case a != b:
				f = "different"
			}
			counts[f]++
			if bytes := max(a, 0); inA && a >= 0 || !inB {
				counts[f+"_bytes"] += bytes
			} else {
				counts[f+"_bytes"] += max(b, 0)
			}
			if w.config.Full || f != "equal" && f != "unknown" {
				want[id]++
			}
		}
		got, sum, emitted := map[string]int{}, map[string]int64{}, int64(0)
		for cursor := []byte(nil); ; {
			w.config.MaxEntries = rapid.IntRange(0, 4).Draw(rt, "entries")
			w.config.MaxCommands = rapid.IntRange(0, 3).Draw(rt, "commands")
			w.source.err, w.destination.err = nil, nil
			if rapid.IntRange(0, 3).Draw(rt, "fails") == 0 {
				at := []*listed{w.source, w.destination}[rapid.IntRange(0, 1).Draw(rt, "side")]
				at.n, at.err = rapid.IntRange(0, 3).Draw(rt, "after"), errors.New("away")
			}
			page, err := w.sweep()(context.Background(), round, cursor)
			if err != nil {
				continue // the runner reads the page again
			}
			for _, c := range commands(page) {
				got[c.GetItem()]++
			}
			emitted += page.Emitted
			for k, n := range page.Counts {
				sum[k] += n
			}
			if page.Last {
				break
			}
			if string(page.Next) <= string(cursor) {
				rt.Fatalf("cursor %q after %q", page.Next, cursor)
			}
			cursor = page.Next
		}
		if !maps.Equal(got, want) {
			rt.Fatalf("commands %v, want %v", got, want)
		}
		for f := range findings {
			for _, k := range []string{f.String(), f.String() + "_bytes"} {
				if sum[k] != counts[k] {
					rt.Fatalf("%s: counted %d, want %d", k, sum[k], counts[k])
				}
			}
		}
		if emitted != int64(len(want)) {
			rt.Fatalf("emitted %d, want %d", emitted, len(want))
		}
	})
}
