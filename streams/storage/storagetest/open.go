package storagetest

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/storage"
)

func (x *suite) openPinned(t *testing.T) {
	s := x.store(t)
	one := put(t, s, "a", "one")
	two := put(t, s, "a", "two")
	// A store with versions may still have the old one: then it is that which is read.
	if got, o, err := read(t, s, "a", one.Version); !errors.Is(err, storage.ErrChanged) && (err != nil || got != "one" || o.Version != one.Version) {
		t.Errorf("Open of a version that was replaced: got %q, %+v, %v, want it, or ErrChanged", got, o, err)
	}
	if _, _, err := read(t, s, "a", "no such version"); !errors.Is(err, storage.ErrChanged) {
		t.Errorf("Open of a version that never was: got %v, want ErrChanged", err)
	}
	for _, version := range []string{two.Version, ""} {
		got, o, err := read(t, s, "a", version)
		if got != "two" || err != nil || o.Version != two.Version {
			t.Errorf("Open of version %q: got %q, %+v, %v, want two", version, got, o, err)
		}
	}
}

// openWhileChange replaces and deletes items that are being read: a reader gets the
// bytes of the version that it opened, or ErrChanged, never a mixture.
func (x *suite) openWhileChange(t *testing.T) {
	s := x.store(t)
	old := strings.Repeat("old ", 1<<18)
	for name, change := range map[string]func(item string) error{
		"replaced": func(item string) error {
			_, err := tryPut(t, s, item, strings.Repeat("new ", 1<<18))
			return err
		},
		"deleted": func(item string) error {
			_, err := s.Delete(t.Context(), space, item, storage.DeleteOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := put(t, s, name, old)
			r, _, err := s.Open(t.Context(), space, name, o.Version)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			first := make([]byte, 1000)
			if _, err := io.ReadFull(r, first); err != nil {
				t.Fatal(err)
			}
			if err := change(name); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(r)
			if errors.Is(err, storage.ErrChanged) {
				return
			}
			if err != nil || string(first)+string(rest) != old {
				t.Errorf("got %d bytes, %v, want the old ones or ErrChanged", len(first)+len(rest), err)
			}
		})
	}
}

// openRange opens pieces of an item, of stores that cannot do that by themselves too.
func (x *suite) openRange(t *testing.T) {
	s := x.store(t)
	content := strings.Repeat("0123456789abcde\n", 10_000)
	size := int64(len(content))
	was := put(t, s, "i", content)
	put(t, s, "empty", "")
	ref := storage.Ref{Space: space, Item: "i", Version: was.Version}
	for name, tt := range map[string]struct {
		storage.Range
		want string
	}{
		"all":                   {storage.Range{Length: -1}, content},
		"all, by its size":      {storage.Range{Length: size}, content},
		"the first byte":        {storage.Range{Length: 1}, content[:1]},
		"the last byte":         {storage.Range{Offset: size - 1, Length: 1}, content[size-1:]},
		"from the middle":       {storage.Range{Offset: 77_777, Length: -1}, content[77_777:]},
		"a piece":               {storage.Range{Offset: 5, Length: 70_000}, content[5:70_005]},
		"past the end":          {storage.Range{Offset: size - 3, Length: 100}, content[size-3:]},
		"nothing, where it can": {storage.Range{Offset: 9}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, o, err := readRange(t, s, ref, tt.Range)
			if got != tt.want || err != nil {
				t.Errorf("got %d bytes %.20q, %v, want %d bytes %.20q", len(got), got, err, len(tt.want), tt.want)
			}
			same(t, "OpenRange", o, has(t, s, "i", content))
		})
	}
	for name, tt := range map[string]struct {
		storage.Range
		item, version string
		want          error
	}{
		"at the end":       {storage.Range{Offset: size, Length: 1}, "i", "", storage.ErrRange},
		"behind the end":   {storage.Range{Offset: size + 1, Length: -1}, "i", "", storage.ErrRange},
		"before the start": {storage.Range{Offset: -1, Length: 3}, "i", "", storage.ErrRange},
		"of no bytes":      {storage.Range{Length: -1}, "empty", "", storage.ErrRange},
		"of an absent one": {storage.Range{Length: 1}, "absent", "", storage.ErrNotFound},
		"of no version":    {storage.Range{Length: 1}, "i", "no such version", storage.ErrChanged},
	} {
		_, _, err := readRange(t, s, storage.Ref{Space: space, Item: tt.item, Version: tt.version}, tt.Range)
		wantErr(t, "range "+name, err, tt.want)
	}
	_, _, err := readRange(t, s, storage.Ref{Space: noSpace, Item: "i"}, storage.Range{Length: 1})
	wantErr(t, "range in an absent space", err, storage.ErrNoSpace)
	put(t, s, "i", strings.ToUpper(content))
	got, _, err := readRange(t, s, ref, storage.Range{Offset: 10, Length: 5})
	if !errors.Is(err, storage.ErrChanged) && (err != nil || got != content[10:15]) {
		t.Errorf("range of a version that was replaced: got %q, %v, want its bytes, or ErrChanged", got, err)
	}
}

func readRange(t tb, s storage.Store, ref storage.Ref, r storage.Range) (string, storage.Object, error) {
	body, o, err := storage.OpenRange(t.Context(), s, ref, r)
	if err != nil {
		return "", o, err
	}
	b, err := io.ReadAll(body)
	return string(b), o, errors.Join(err, body.Close())
}
