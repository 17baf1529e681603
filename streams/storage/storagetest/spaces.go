package storagetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/storage"
)

func (x *suite) capabilities(t *testing.T) {
	c := x.open(t).Capabilities()
	if c.Kind == "" || c.TimeResolution <= 0 || c.TimeResolution > time.Minute || len(c.Digests) == 0 {
		t.Errorf("got %+v, want a kind, a resolution of times and digests", c)
	}
	if c.KeepsReplaced && x.kept == nil {
		t.Error("the store keeps what is replaced, and the suite cannot look: use WithKept")
	}
}

func (x *suite) spaces(t *testing.T) {
	s := x.open(t)
	spaces := func() []string {
		t.Helper()
		got := []string{}
		for name, err := range s.Spaces(t.Context()) {
			if err != nil {
				t.Fatalf("Spaces: %v", err)
			}
			got = append(got, name)
		}
		return got
	}
	if got := spaces(); len(got) != 0 {
		t.Errorf("Spaces of an empty store: got %q", got)
	}
	names := []string{"bbb", "a", "aaa", "a-b", "a/b", ".", "..", "%2F", "x-y", ".millrace", "Ä", "with space",
		strings.Repeat("s", 200)}
	names = slices.DeleteFunc(names, func(name string) bool {
		about := storage.Space{Name: name, Properties: map[string]string{"of": name}, ACL: map[string]string{"all": "r"}}
		err := s.CreateSpace(t.Context(), about)
		if errors.Is(err, storage.ErrName) && x.refusedSpaces != nil && x.refusedSpaces(name) {
			return true
		}
		if err != nil {
			t.Fatalf("CreateSpace(%q): %v", name, err)
		}
		wantErr(t, "CreateSpace again", s.CreateSpace(t.Context(), about), storage.ErrExists)
		x.about(t, s, about)
		return false
	})
	slices.Sort(names)
	if got := spaces(); !slices.Equal(got, names) {
		t.Fatalf("Spaces: got %q, want %q", got, names)
	}
	changed := storage.Space{Name: "aaa", Properties: map[string]string{"q": "w", "é": "\n"}}
	if err := s.SetSpace(t.Context(), changed); err != nil {
		t.Fatalf("SetSpace: %v", err)
	}
	x.about(t, s, changed)
	for i, name := range names {
		if err := s.DeleteSpace(t.Context(), name); err != nil {
			t.Fatalf("DeleteSpace(%q): %v", name, err)
		}
		if got := spaces(); !slices.Equal(got, names[i+1:]) {
			t.Fatalf("Spaces after the delete of %q: got %q, want %q", name, got, names[i+1:])
		}
	}
	if err := s.CreateSpace(t.Context(), storage.Space{Name: "aaa"}); err != nil {
		t.Fatalf("CreateSpace after its delete: %v", err)
	}
	x.about(t, s, storage.Space{Name: "aaa"})
	unknown := storage.Space{Name: "bbb", PropertiesUnknown: true}
	if err := s.CreateSpace(t.Context(), unknown); err != nil {
		t.Fatalf("CreateSpace with unknown properties: %v", err)
	}
	x.about(t, s, unknown)
	known := storage.Space{Name: "bbb", ACL: map[string]string{"all": "r"}}
	if err := s.SetSpace(t.Context(), known); err != nil {
		t.Fatalf("SetSpace of a space with unknown properties: %v", err)
	}
	x.about(t, s, known)
}

func (x *suite) about(t *testing.T, s storage.Store, want storage.Space) {
	t.Helper()
	got, err := s.StatSpace(t.Context(), want.Name)
	if err != nil || got.Name != want.Name || !maps.Equal(got.Properties, want.Properties) ||
		!maps.Equal(got.ACL, want.ACL) || got.PropertiesUnknown != want.PropertiesUnknown {
		t.Fatalf("StatSpace: got %+v, %v, want %+v", got, err, want)
	}
}

func (x *suite) spaceErrors(t *testing.T) {
	s := x.store(t)
	ctx := t.Context()
	const none = noSpace
	_, err := s.StatSpace(ctx, none)
	wantErr(t, "StatSpace", err, storage.ErrNoSpace)
	wantErr(t, "SetSpace", s.SetSpace(ctx, storage.Space{Name: none}), storage.ErrNoSpace)
	wantErr(t, "DeleteSpace", s.DeleteSpace(ctx, none), storage.ErrNoSpace)
	_, err = s.Stat(ctx, none, "a")
	wantErr(t, "Stat", err, storage.ErrNoSpace)
	_, _, err = s.Open(ctx, none, "a", "")
	wantErr(t, "Open", err, storage.ErrNoSpace)
	for _, c := range []storage.Condition{{}, {Absent: true}, {Version: "1"}} {
		_, err = s.Put(ctx, none, "a/b", strings.NewReader("x"), storage.PutOptions{Size: 1, Condition: c})
		wantErr(t, fmt.Sprintf("Put %+v", c), err, storage.ErrNoSpace)
	}
	_, err = s.SetProperties(ctx, none, "a", storage.Properties{}, storage.Condition{})
	if !errors.Is(err, storage.ErrNoSpace) { // a decorator may check it first
		wantErr(t, "SetProperties", err, setError(s, storage.ErrNoSpace))
	}
	_, err = s.Delete(ctx, none, "a", storage.DeleteOptions{})
	wantErr(t, "Delete", err, storage.ErrNoSpace)
	if _, err := s.StatSpace(ctx, none); err == nil {
		t.Error("a space came into being by itself")
	}

	put(t, s, "deep/down/item", "x")
	wantErr(t, "DeleteSpace of a space with an item", s.DeleteSpace(ctx, space), storage.ErrNotEmpty)
	has(t, s, "deep/down/item", "x")
	if _, err := s.Delete(ctx, space, "deep/down/item", storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteSpace(ctx, space); err != nil {
		t.Errorf("DeleteSpace of an emptied space: %v", err)
	}
	_, err = s.Stat(ctx, space, "deep/down/item")
	wantErr(t, "Stat in a deleted space", err, storage.ErrNoSpace)
}

func (x *suite) marker(t *testing.T) {
	s := x.open(t)
	ctx := t.Context()
	wantErr(t, "Marker of a new store", s.Marker(ctx), storage.ErrNoMarker)
	for range 2 {
		if err := s.WriteMarker(ctx); err != nil {
			t.Fatalf("WriteMarker: %v", err)
		}
		if err := s.Marker(ctx); err != nil {
			t.Fatalf("Marker: %v", err)
		}
	}
	for name, err := range s.Spaces(ctx) {
		t.Errorf("the marker made a space %q, %v", name, err)
	}
	if x.twin == nil {
		return
	}
	other := x.twin(t, s, "another store")
	wantErr(t, "Marker of another store", other.Marker(ctx), storage.ErrWrongMarker)
	wantErr(t, "WriteMarker over that of another store", other.WriteMarker(ctx), storage.ErrExists)
	if err := s.Marker(ctx); err != nil {
		t.Errorf("Marker after another store tried to write its own: %v", err)
	}
}
