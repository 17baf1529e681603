package storagetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
)

// oddIDs stores all odd ids together, lists them, and deletes them one by one.
func (x *suite) oddIDs(t *testing.T) {
	s := x.store(t)
	var odd []string
	for _, item := range OddIDs() {
		_, err := tryPut(t, s, item, content(item), absent)
		if errors.Is(err, storage.ErrName) && x.mayRefuse(item, odd) {
			if _, err := s.Stat(t.Context(), space, item); !errors.Is(err, storage.ErrName) &&
				!errors.Is(err, storage.ErrNotFound) {
				t.Errorf("Stat(%q), which was refused: got %v, want ErrName or ErrNotFound", item, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("Put(%q): %v", item, err)
		}
		odd = append(odd, item)
	}
	for _, item := range odd {
		has(t, s, item, content(item))
		if _, err := tryPut(t, s, item, "other", absent); err == nil {
			t.Errorf("%q was put twice on the condition of absence", item)
		}
	}
	if got := ids(t, s, ""); !slices.Equal(got, odd) {
		t.Fatalf("List: got %q\nwant %q", got, odd)
	}
	for i := 0; i < len(odd); i += 7 {
		item := odd[i]
		if got := ids(t, s, item); !slices.Equal(got, odd[i+1:]) {
			t.Fatalf("List after %q: got %q\nwant %q", item, got, odd[i+1:])
		}
	}
	for i, item := range odd {
		if _, err := s.Delete(t.Context(), space, item, storage.DeleteOptions{}); err != nil {
			t.Fatalf("Delete(%q): %v", item, err)
		}
		gone(t, s, item)
		if i%9 == 0 {
			if got := ids(t, s, ""); !slices.Equal(got, odd[i+1:]) {
				t.Fatalf("List after the delete of %q: got %q\nwant %q", item, got, odd[i+1:])
			}
		}
	}
	if err := s.DeleteSpace(t.Context(), space); err != nil {
		t.Errorf("DeleteSpace, when all items were deleted: %v", err)
	}
}

func (x *suite) badNames(t *testing.T) {
	s := x.store(t)
	for name, item := range map[string]string{
		"empty": "", "too long": strings.Repeat("a", storage.MaxItemID+1), "not UTF-8": "a\xffb", "surrogate": "\xed\xa0\x80",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tryPut(t, s, item, "x")
			wantErr(t, "Put", err, storage.ErrName)
			_, err = s.Stat(t.Context(), space, item)
			wantErr(t, "Stat", err, storage.ErrName)
			_, _, err = s.Open(t.Context(), space, item, "")
			wantErr(t, "Open", err, storage.ErrName)
			_, err = s.SetProperties(t.Context(), space, item, storage.Properties{}, storage.Condition{})
			wantErr(t, "SetProperties", err, setError(s, storage.ErrName))
			_, err = s.Delete(t.Context(), space, item, storage.DeleteOptions{})
			wantErr(t, "Delete", err, storage.ErrName)
		})
	}
	for name, space := range map[string]string{
		"empty space": "", "space too long": strings.Repeat("a", storage.MaxSpaceName+1), "space not UTF-8": "a\xff",
	} {
		t.Run(name, func(t *testing.T) {
			wantErr(t, "CreateSpace", s.CreateSpace(t.Context(), storage.Space{Name: space}), storage.ErrName)
			_, err := s.StatSpace(t.Context(), space)
			wantErr(t, "StatSpace", err, storage.ErrName)
		})
	}
}

// nested returns ids that are each a path prefix of the next.
func nested() []string { return []string{"a", "a/b", "a/b/c", "a/b/c/d"} }

// nesting puts an item and items below its id in any order, and deletes them.
func (x *suite) nesting(t *testing.T) {
	all := nested()
	need.Check(t, func(rt *rapid.T) {
		s := x.store(t)
		there := map[string]string{}
		for range 2 {
			for _, item := range rapid.Permutation(all).Draw(rt, "puts") {
				there[item] = fmt.Sprint(content(item), len(there))
				put(rt, s, item, there[item])
				x.agrees(rt, s, there, "")
			}
			for _, item := range rapid.Permutation(all).Draw(rt, "deletes")[:rapid.IntRange(0, 4).Draw(rt, "n")] {
				if _, err := s.Delete(rt.Context(), space, item, storage.DeleteOptions{}); err != nil {
					rt.Fatalf("Delete(%q): %v", item, err)
				}
				delete(there, item)
				x.agrees(rt, s, there, "")
			}
		}
	})
}
