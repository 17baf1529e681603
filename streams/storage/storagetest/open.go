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
	// A store that keeps versions may return the old one.
	if got, o, err := read(t, s, "a", one.Version); !errors.Is(err, storage.ErrChanged) &&
		(err != nil || got != "one" || o.Version != one.Version) {
		t.Errorf("Open of a replaced version: got %q, %+v, %v, want its bytes or ErrChanged", got, o, err)
	}
	if _, _, err := read(t, s, "a", "no such version"); !errors.Is(err, storage.ErrChanged) {
		t.Errorf("Open of an unknown version: got %v, want ErrChanged", err)
	}
	for _, version := range []string{two.Version, ""} {
		got, o, err := read(t, s, "a", version)
		if got != "two" || err != nil || o.Version != two.Version {
			t.Errorf("Open of version %q: got %q, %+v, %v, want two", version, got, o, err)
		}
	}
}

// openWhileChange replaces and deletes items that are being read: a reader gets the bytes of the opened
// version or ErrChanged, never a mixture.
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
