package storagetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
)

func (x *suite) list(t *testing.T) {
	s := x.store(t)
	if got := ids(t, s, ""); len(got) != 0 {
		t.Errorf("List of an empty space: got %q", got)
	}
	items := x.keepable([]string{"a", "a-b", "a.b", "a/b", "a/c", "a0", "b/c/d", "b/c0", "b/c-d", "c"})
	for _, item := range items {
		put(t, s, item, content(item), func(o *storage.PutOptions) { o.Properties.MediaType = "text/plain" })
	}
	slices.Sort(items)
	var got []string
	for o, err := range s.List(t.Context(), space, "") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, o.Item)
		want, err := s.Stat(t.Context(), space, o.Item)
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Digests) == 0 && o.Properties.MediaType == "" { // a listing may omit them
			want.Digests, want.Properties = nil, storage.Properties{}
		}
		same(t, "List", o, want)
	}
	if !slices.Equal(got, items) {
		t.Errorf("List: got %q, want %q", got, items)
	}
	for _, after := range []string{"a", "a/", "a/b", "a/bb", "a-", "b", "b/c/d", "c", "d", "\xff"} {
		i, found := slices.BinarySearch(items, after)
		if found {
			i++
		}
		if got := ids(t, s, after); !slices.Equal(got, items[i:]) {
			t.Errorf("List after %q: got %q, want %q", after, got, items[i:])
		}
	}
	for range s.List(t.Context(), space, "") {
		break // a caller may stop at any entry
	}
	for _, err := range s.List(t.Context(), noSpace, "") {
		wantErr(t, "List of an absent space", err, storage.ErrNoSpace)
		return
	}
	t.Error("List of an absent space: got nothing, want ErrNoSpace")
}

func (x *suite) listCancelled(t *testing.T) {
	s := x.store(t)
	for i := range 10 {
		put(t, s, fmt.Sprintf("d%d/item", i), "x")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for _, err := range s.List(ctx, space, "") {
		if err != nil {
			wantErr(t, "List", err, context.Canceled)
			if n == 10 {
				t.Error("a listing that was cancelled went on to its end")
			}
			return
		}
		if n++; n == 2 {
			cancel()
		}
	}
	t.Error("a listing that was cancelled ended without an error")
}

// listModel puts, replaces and deletes items with unusual ids, and compares listings from random positions
// with a map.
func (x *suite) listModel(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		"a", "b", "-", "/", "/", ".", "..", "%", "%2F", "%25", "%+", "%=", "%f", "0", "é", " ", "\n", "\x00",
		strings.Repeat("x", 238),
	})
	id := rapid.Custom(func(t *rapid.T) string {
		pieces := rapid.SliceOfN(piece, 1, 6).Filter(func(p []string) bool {
			return len(strings.Join(p, "")) <= storage.MaxItemID
		})
		return strings.Join(pieces.Draw(t, "pieces"), "")
	})
	need.Check(t, func(rt *rapid.T) {
		s := x.store(t)
		some := rapid.SliceOfN(id, 2, 8).Filter(func(ids []string) bool { return len(x.keepable(ids)) > 0 })
		pool := x.keepable(some.Draw(rt, "pool"))
		there := map[string]string{}
		for i := range rapid.IntRange(1, 16).Draw(rt, "steps") {
			item := rapid.SampledFrom(pool).Draw(rt, "item")
			_, present := there[item]
			if rapid.IntRange(0, 2).Draw(rt, "op") > 0 {
				_, err := tryPut(rt, s, item, fmt.Sprint(item, i), absent)
				if present != errors.Is(err, storage.ErrExists) || !present && err != nil {
					rt.Fatalf("Put(%q) where absent: got %v, present %v", item, err, present)
				}
				put(rt, s, item, fmt.Sprint(item, i))
				there[item] = fmt.Sprint(item, i)
			} else {
				_, err := s.Delete(rt.Context(), space, item, storage.DeleteOptions{})
				if present != (err == nil) || !present && !errors.Is(err, storage.ErrNotFound) {
					rt.Fatalf("Delete(%q): got %v, present %v", item, err, present)
				}
				delete(there, item)
			}
		}
		x.agrees(rt, s, there, "")
		x.agrees(rt, s, there, id.Draw(rt, "after"))
		x.agrees(rt, s, there, rapid.SampledFrom(pool).Draw(rt, "after one of them"))
		for _, item := range pool {
			if _, ok := there[item]; !ok {
				lacks(rt, s, item)
			}
		}
	})
}

// listLong lists more items than fit into one page of a service.
func (x *suite) listLong(t *testing.T) {
	s := x.store(t)
	var items []string
	for i := range 1100 {
		items = append(items, fmt.Sprintf("d%d/%04d-%s", i%3, i, strings.Repeat("x", i%50)))
	}
	var g errgroup.Group
	g.SetLimit(16)
	for _, item := range items {
		g.Go(func() error { _, err := tryPut(t, s, item, content(item)); return err })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(items)
	for _, i := range []int{0, 1, 366, 367, 999, 1000, 1001, 1100} {
		after := ""
		if i > 0 {
			after = items[i-1]
		}
		if got := ids(t, s, after); !slices.Equal(got, items[i:]) {
			t.Errorf("List after %q: got %d items, want %d", after, len(got), len(items)-i)
		}
	}
}

// agrees compares a listing and its items with a model.
func (x *suite) agrees(t tb, s storage.Store, there map[string]string, after string) {
	t.Helper()
	want := slices.DeleteFunc(slices.Sorted(maps.Keys(there)), func(id string) bool { return id <= after })
	if got := ids(t, s, after); !slices.Equal(got, want) {
		t.Fatalf("List after %q: got %q, want %q", after, got, want)
	}
	for _, item := range want {
		has(t, s, item, there[item])
	}
}
