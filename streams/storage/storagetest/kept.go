package storagetest

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// allKept lists what is kept of items, and fails the test on an error or a wrong order.
func allKept(t *testing.T, s storage.Store, items ...string) (all []storage.Kept) {
	t.Helper()
	slices.Sort(items)
	for k, err := range storage.ListKept(t.Context(), s, space, items) {
		if err != nil {
			t.Fatalf("Kept(%.60q): %v", items, err)
		}
		all = append(all, k)
	}
	inOrder := slices.IsSortedFunc(all, func(a, b storage.Kept) int {
		if c := strings.Compare(a.Object.Item, b.Object.Item); c != 0 {
			return c
		}
		return a.At.Compare(b.At)
	})
	if !inOrder {
		t.Errorf("Kept(%.60q): got %+v, want them by item and time", items, all)
	}
	return all
}

// readKept checks that StatKept and OpenKept describe k alike, and returns the bytes.
func readKept(t *testing.T, s storage.Store, k storage.Kept) string {
	t.Helper()
	ref := storage.KeptRef{Space: space, Item: k.Object.Item, ID: k.ID}
	stat, err := storage.StatKept(t.Context(), s, ref)
	if err != nil {
		t.Fatalf("StatKept(%.60q): %v", ref, err)
	}
	r, o, err := storage.OpenKept(t.Context(), s, ref)
	if err != nil {
		t.Fatalf("OpenKept(%.60q): %v", ref, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %.60q: %v", ref, err)
	}
	for call, got := range map[string]storage.Kept{"StatKept": stat, "OpenKept": o, "Kept": k} {
		if got.ID != k.ID || got.Object.Item != k.Object.Item || got.Object.Size != int64(len(b)) ||
			got.Object.Digests.Compare(sums(string(b))) == digest.Disagree {
			t.Errorf("%s: got %+v, want id %q and %d bytes %.40q", call, got, k.ID, len(b), b)
		}
	}
	if call := stat.Object.Properties; call.MediaType != o.Object.Properties.MediaType {
		t.Errorf("StatKept: got properties %+v, and OpenKept %+v", call, o.Object.Properties)
	}
	return string(b)
}

// listKept replaces and deletes an item, and reads what is kept of it.
func (x *suite) listKept(t *testing.T) {
	s := x.store(t)
	keep := func(o *storage.PutOptions) {
		o.KeepReplaced = true
		o.Properties = storage.Properties{MediaType: "text/plain", User: map[string]string{"owner": "ä b"}}
	}
	if got := allKept(t, s, "i", "never"); len(got) != 0 {
		t.Fatalf("Kept in a new space: got %+v", got)
	}
	one := put(t, s, "i", "one", keep)
	put(t, s, "i", "", keep)
	put(t, s, "i-below", "below", keep)
	put(t, s, "i-beside", "beside", keep)
	if _, err := s.Delete(t.Context(), space, "i", storage.DeleteOptions{KeepDeleted: true}); err != nil {
		t.Fatal(err)
	}
	kept := allKept(t, s, "i", "never", "i-below")
	var got []string
	var why []storage.KeptReason
	for _, k := range kept {
		if k.Object.Item == "i" {
			got, why = append(got, readKept(t, s, k)), append(why, k.Reason)
		}
	}
	if !slices.Equal(got, []string{"one", ""}) || len(kept) != 2 {
		t.Fatalf("Kept: got %q, %+v, want the bytes of two versions", got, kept)
	}
	if want := []storage.KeptReason{storage.KeptReplaced, storage.KeptDeleted}; !slices.Equal(why, want) {
		// Quarantine in an object store does not record the reason.
		if !slices.Equal(why, []storage.KeptReason{storage.KeptUnknown, storage.KeptUnknown}) {
			t.Errorf("Kept: got reasons %q, want %q", why, want)
		}
	}
	if k := kept[0]; k.ID == "" || k.ID == kept[1].ID || k.At.IsZero() || earlier(s, k.At, one.Modified) {
		t.Errorf("Kept: got %+v, want an id of its own and a time after %v", k, one.Modified)
	}
	stat, err := storage.StatKept(t.Context(), s, storage.KeptRef{Space: space, Item: "i", ID: kept[0].ID})
	if err != nil || stat.Object.Properties.MediaType != "text/plain" || stat.Object.Properties.User["owner"] != "ä b" {
		t.Errorf("StatKept: got %+v, %v, want the properties that the item had", stat, err)
	}
	x.keptErrors(t, s, kept[0].ID)

	put(t, s, "i", "three", keep) // what is kept stays, and the item does not change it
	if got := allKept(t, s, "i"); len(got) != 2 || readKept(t, s, got[0]) != "one" {
		t.Errorf("Kept after another Put: got %+v", got)
	}
	has(t, s, "i", "three")
}

// keptErrors names what is not there, and what must not lead out of the space.
func (x *suite) keptErrors(t *testing.T, s storage.Store, id string) {
	t.Helper()
	for name, ref := range map[string]storage.KeptRef{
		"of another item":   {Space: space, Item: "i-beside", ID: id},
		"of another space":  {Space: emptySpace, Item: "i", ID: id},
		"of an absent item": {Space: space, Item: "never", ID: id},
		"no id":             {Space: space, Item: "i"},
		"another id":        {Space: space, Item: "i", ID: id + "0"},
		"a path":            {Space: space, Item: "i", ID: "../" + id},
		"a parent":          {Space: space, Item: "i", ID: ".."},
		"the marker":        {Space: space, Item: "i", ID: "../marker.json"},
		"an absolute path":  {Space: space, Item: "i", ID: "/etc/passwd"},
		"a zero byte":       {Space: space, Item: "i", ID: "\x00"},
	} {
		_, err := storage.StatKept(t.Context(), s, ref)
		wantErr(t, "StatKept "+name, err, storage.ErrNotFound)
		r, _, err := storage.OpenKept(t.Context(), s, ref)
		wantErr(t, "OpenKept "+name, err, storage.ErrNotFound)
		if err == nil {
			r.Close()
		}
	}
	for _, ref := range []storage.KeptRef{{Space: space, Item: "a\xff", ID: id}, {Space: "", Item: "i", ID: id}} {
		_, err := storage.StatKept(t.Context(), s, ref)
		wantErr(t, "StatKept of a bad name", err, storage.ErrName)
		for _, err := range storage.ListKept(t.Context(), s, ref.Space, []string{ref.Item}) {
			wantErr(t, "Kept of a bad name", err, storage.ErrName)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var last error
	for _, err := range storage.ListKept(ctx, s, space, []string{"i"}) {
		last = err
	}
	wantErr(t, "Kept after the end of the context", last, context.Canceled)
}

// keptOddIDs deletes items with odd ids, and reads all of them from what is kept.
func (x *suite) keptOddIDs(t *testing.T) {
	s := x.store(t)
	var odd []string
	for i, item := range OddIDs() {
		if i%3 > 0 && need.Amount(0, 1, 1) == 0 { // a delete that keeps bytes takes several syncs in a file store
			continue
		}
		_, err := tryPut(t, s, item, content(item), absent)
		if errors.Is(err, storage.ErrName) && x.mayRefuse(item, odd) {
			continue
		}
		if err != nil {
			t.Fatalf("Put(%q): %v", item, err)
		}
		odd = append(odd, item)
	}
	for _, item := range odd {
		if _, err := s.Delete(t.Context(), space, item, storage.DeleteOptions{KeepDeleted: true}); err != nil {
			t.Fatalf("Delete(%q): %v", item, err)
		}
	}
	var got []string
	for _, k := range allKept(t, s, slices.Clone(odd)...) {
		got = append(got, k.Object.Item)
		if b := readKept(t, s, k); b != content(k.Object.Item) {
			t.Errorf("kept of %q: got %q", k.Object.Item, b)
		}
	}
	if !slices.Equal(got, odd) {
		t.Errorf("Kept: got %q\nwant %q", got, odd)
	}
}
