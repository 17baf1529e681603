package storagetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
)

// RunReadOnly checks that read-only stores keep the reading part of the contract, and refuse mutations with
// ErrReadOnly. fill returns such a store with its marker and these spaces, which map item ids to bytes.
func RunReadOnly(
	t *testing.T, fill func(t *testing.T, spaces map[string]map[string]string) storage.Store, opts ...Option,
) {
	x := &suite{}
	for _, o := range opts {
		o(x)
	}
	y := &readOnlySuite{x, fill}
	for name, f := range map[string]func(*testing.T){
		"Refuses":    y.refuses,
		"NotApplied": y.notApplied,
		"Spaces":     y.spaces,
		"OddIDs":     y.oddIDs,
		"BadNames":   y.badNames,
		"ListModel":  y.listModel,
		"Absent":     y.absent,
	} {
		if (len(x.only) == 0 || slices.Contains(x.only, name)) && !slices.Contains(x.except, name) {
			t.Run(name, f)
		}
	}
}

type readOnlySuite struct {
	*suite
	fill func(t *testing.T, spaces map[string]map[string]string) storage.Store
}

// items fills the space with items that contain content(id).
func (y *readOnlySuite) items(t *testing.T, ids ...string) storage.Store {
	t.Helper()
	all := map[string]string{}
	for _, id := range ids {
		all[id] = content(id)
	}
	return y.fill(t, map[string]map[string]string{space: all})
}

func (y *readOnlySuite) refuses(t *testing.T) {
	s := y.items(t, "a")
	ctx := t.Context()
	c := s.Capabilities()
	if !c.ReadOnly || c.ConditionalPut || c.ConditionalDelete || c.KeepsReplaced || c.SetProperties {
		t.Errorf("got %+v, want a store that can only be read", c)
	}
	was := has(t, s, "a", content("a"))
	refused := map[string]error{
		"CreateSpace": s.CreateSpace(ctx, storage.Space{Name: "new"}),
		"SetSpace":    s.SetSpace(ctx, storage.Space{Name: space, Properties: map[string]string{"k": "v"}}),
		"DeleteSpace": s.DeleteSpace(ctx, space),
		"WriteMarker": s.WriteMarker(ctx),
	}
	for _, item := range []string{"a", "new"} {
		_, refused["Put "+item] = tryPut(t, s, item, "x")
		_, refused["SetProperties "+item] = s.SetProperties(ctx, space, item, storage.Properties{MediaType: "a/b"},
			storage.Condition{})
		_, refused["Delete "+item] = s.Delete(ctx, space, item, storage.DeleteOptions{})
	}
	for call, err := range refused {
		wantErr(t, call, err, storage.ErrReadOnly)
	}
	same(t, "Stat", has(t, s, "a", content("a")), was)
	lacks(t, s, "new")
	if err := s.Marker(ctx); err != nil {
		t.Errorf("Marker: %v", err)
	}
}

// notApplied checks that each mutation is refused and marked by storage.NotApplied.
func (y *readOnlySuite) notApplied(t *testing.T) {
	for method, call := range mutations(t.Context(), y.items(t, "a")) {
		wantMark(t, method, call())
	}
}

func (y *readOnlySuite) spaces(t *testing.T) {
	want := []string{"A", "a", "b-c", "with space", "ü"}
	fill := map[string]map[string]string{}
	for _, name := range want {
		if y.refusedSpaces == nil || !y.refusedSpaces(name) {
			fill[name] = map[string]string{"of/" + name: name}
		}
	}
	want = slices.Sorted(maps.Keys(fill))
	s := y.fill(t, fill)
	var got []string
	for name, err := range s.Spaces(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, name)
		if about, err := s.StatSpace(t.Context(), name); err != nil || about.Name != name {
			t.Errorf("StatSpace(%q): got %+v, %v", name, about, err)
		}
		for o, err := range s.List(t.Context(), name, "") {
			if err != nil || o.Item != "of/"+name {
				t.Errorf("List of %q: got %+v, %v", name, o, err)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("Spaces: got %q, want %q", got, want)
	}
}

func (y *readOnlySuite) oddIDs(t *testing.T) {
	odd := y.keepable(OddIDs())
	s := y.items(t, odd...)
	for _, item := range odd {
		has(t, s, item, content(item))
	}
	if got := ids(t, s, ""); !slices.Equal(got, odd) {
		t.Errorf("List: got %q\nwant %q", got, odd)
	}
	for i := 0; i < len(odd); i += 7 {
		if got := ids(t, s, odd[i]); !slices.Equal(got, odd[i+1:]) {
			t.Errorf("List after %q: got %q\nwant %q", odd[i], got, odd[i+1:])
		}
	}
}

func (y *readOnlySuite) badNames(t *testing.T) {
	s := y.items(t, "a")
	for _, item := range []string{"", strings.Repeat("a", storage.MaxItemID+1), "a\xffb"} {
		_, err := s.Stat(t.Context(), space, item)
		wantErr(t, fmt.Sprintf("Stat(%.20q)", item), err, storage.ErrName)
		_, _, err = s.Open(t.Context(), space, item, "")
		wantErr(t, fmt.Sprintf("Open(%.20q)", item), err, storage.ErrName)
	}
	for _, name := range []string{"", strings.Repeat("a", storage.MaxSpaceName+1), "a\xff"} {
		_, err := s.StatSpace(t.Context(), name)
		wantErr(t, fmt.Sprintf("StatSpace(%.20q)", name), err, storage.ErrName)
	}
}

func (y *readOnlySuite) listModel(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "b", "-", "/", ".", "%", "%25", "%=", "0", "é", " "})
	id := rapid.Custom(func(t *rapid.T) string { return strings.Join(rapid.SliceOfN(piece, 1, 6).Draw(t, "pieces"), "") })
	need.Check(t, func(rt *rapid.T) {
		there := map[string]string{}
		for _, item := range y.keepable(rapid.SliceOfNDistinct(id, 0, 12, rapid.ID).Draw(rt, "ids")) {
			there[item] = content(item)
		}
		s := y.fill(t, map[string]map[string]string{space: there})
		y.agrees(rt, s, there, "")
		y.agrees(rt, s, there, id.Draw(rt, "after"))
	})
}

func (y *readOnlySuite) absent(t *testing.T) {
	s := y.items(t, "a/b")
	ctx := t.Context()
	for _, item := range []string{"a", "a/b/c", "b", "a/", "..", "../" + space + "/a/b", "./a/b", "a//b"} {
		lacks(t, s, item)
	}
	_, err := s.StatSpace(ctx, noSpace)
	wantErr(t, "StatSpace", err, storage.ErrNoSpace)
	_, err = s.Stat(ctx, noSpace, "a")
	wantErr(t, "Stat", err, storage.ErrNoSpace)
	_, _, err = s.Open(ctx, noSpace, "a", "")
	wantErr(t, "Open", err, storage.ErrNoSpace)
	for _, err := range s.List(ctx, noSpace, "") {
		wantErr(t, "List", err, storage.ErrNoSpace)
	}
	_, _, err = read(t, s, "a/b", "no such version")
	wantErr(t, "Open of another version", err, storage.ErrChanged)
}
