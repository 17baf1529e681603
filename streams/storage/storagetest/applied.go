package storagetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// notApplied makes the store refuse each mutation before its first visible step: the error is marked by
// storage.NotApplied.
func (x *suite) notApplied(t *testing.T) {
	s := x.store(t)
	ctx := t.Context()
	put(t, s, "a", "one")
	boom := errors.New("boom")
	putOf := func(space, item string, r io.Reader, edit func(*storage.PutOptions)) error {
		o := storage.PutOptions{Size: storage.UnknownSize}
		edit(&o)
		_, err := s.Put(ctx, space, item, r, o)
		return err
	}
	plain := func(*storage.PutOptions) {}
	set := func(space, item, version string) error {
		_, err := s.SetProperties(ctx, space, item, storage.Properties{MediaType: "x/y"}, storage.Condition{Version: version})
		return err
	}
	del := func(space, item, version string) error {
		_, err := s.Delete(ctx, space, item, storage.DeleteOptions{Condition: storage.Condition{Version: version}})
		return err
	}
	bytes := func() io.Reader { return strings.NewReader("two") }
	refusals := map[string]error{
		"Put without an id":           putOf(space, "", bytes(), plain),
		"Put into an absent space":    putOf(noSpace, "a", bytes(), plain),
		"Put where it must be absent": putOf(space, "a", bytes(), absent),
		"Put on another version":      putOf(space, "a", bytes(), version("no such version")),
		"Put on an absent version":    putOf(space, "b", bytes(), version("no such version")),
		"Put of other bytes": putOf(space, "a", bytes(),
			func(o *storage.PutOptions) { o.Digests = sums("other") }),
		"Put of another size": putOf(space, "a", bytes(), func(o *storage.PutOptions) { o.Size = 2 }),
		"Put of an unknown algorithm": putOf(space, "a", bytes(),
			func(o *storage.PutOptions) { o.Compute = []string{"crc0"} }),
		"Put of a stream that breaks": putOf(space, "a", FailingReader(bytes(), 2, boom), plain),
		"Put that is refused by Verify": putOf(space, "a", bytes(),
			func(o *storage.PutOptions) { o.Verify = func(digest.Set, int64) error { return boom } }),
		"SetProperties without an id": set(space, "", ""),
		"SetProperties in no space":   set(noSpace, "a", ""),
		"SetProperties of no item":    set(space, "b", ""),
		"SetProperties of a version":  set(space, "a", "no such version"),
		"Delete without an id":        del(space, "", ""),
		"Delete in an absent space":   del(noSpace, "a", ""),
		"Delete of an absent item":    del(space, "b", ""),
		"Delete of another version":   del(space, "a", "no such version"),
		"CreateSpace without a name":  s.CreateSpace(ctx, storage.Space{}),
		"CreateSpace that is there":   s.CreateSpace(ctx, storage.Space{Name: space}),
		"SetSpace without a name":     s.SetSpace(ctx, storage.Space{}),
		"SetSpace that is absent":     s.SetSpace(ctx, storage.Space{Name: noSpace}),
		"DeleteSpace without a name":  s.DeleteSpace(ctx, ""),
		"DeleteSpace that is absent":  s.DeleteSpace(ctx, noSpace),
		"DeleteSpace with an item":    s.DeleteSpace(ctx, space),
	}
	for call, err := range refusals {
		wantMark(t, call, err)
	}
	has(t, s, "a", "one")
}

func wantMark(t *testing.T, call string, err error) {
	t.Helper()
	if !storage.IsNotApplied(err) {
		t.Errorf("%s: got %v, want an error marked by storage.NotApplied", call, err)
	}
}

// mutations returns a call of each mutating method, for a store with item "a" in the space and an empty
// space.
func mutations(ctx context.Context, s storage.Store) map[string]func() error {
	return map[string]func() error{
		"Put": func() error {
			_, err := s.Put(ctx, space, "b", strings.NewReader("two"), storage.PutOptions{Size: 3})
			return err
		},
		"SetProperties": func() error {
			_, err := s.SetProperties(ctx, space, "a", storage.Properties{MediaType: "x/y"}, storage.Condition{})
			return err
		},
		"Delete": func() error {
			_, err := s.Delete(ctx, space, "a", storage.DeleteOptions{})
			return err
		},
		"CreateSpace": func() error { return s.CreateSpace(ctx, storage.Space{Name: noSpace}) },
		"SetSpace": func() error {
			return s.SetSpace(ctx, storage.Space{Name: space, Properties: map[string]string{"k": "v"}})
		},
		"DeleteSpace": func() error { return s.DeleteSpace(ctx, emptySpace) },
	}
}

// RunMarks checks that a decorator keeps the meaning of NotApplied: an error that the inner store marked
// stays marked, and the error of a mutation that was made is never marked, whatever it wraps and whatever
// the cause of an ended context is. open returns the decorator and its inner store, which is empty and has
// its marker.
func RunMarks(t *testing.T, open func(t *testing.T) (decorator storage.Store, inner *Faulty)) {
	for method := range mutations(t.Context(), nil) {
		for name, f := range map[string]Fault{
			"done, ended":         {Then: func() {}},
			"done, failed, ended": {Applied: true, Err: ErrFault, Then: func() {}},
			"marked":              {Err: storage.NotApplied(ErrFault)},
			"marked, permanent":   {Err: retry.Permanent(storage.NotApplied(ErrFault))},
			"marked, unavailable": {Err: fmt.Errorf("call: %w", storage.NotApplied(retry.Unavailable(ErrFault)))},
			"done":                {Applied: true},
			"done, unavailable":   {Applied: true, Err: retry.Unavailable(ErrFault)},
			"done, read-only":     {Applied: true, Err: errors.Join(ErrFault, storage.ErrReadOnly)},
			"done, absent":        {Applied: true, Err: errors.Join(ErrFault, storage.ErrNotFound)},
			"done, exists":        {Applied: true, Err: errors.Join(ErrFault, storage.ErrExists, storage.ErrChanged)},
		} {
			t.Run(method+" "+name, func(t *testing.T) {
				s, inner := open(t)
				err := errors.Join(inner.CreateSpace(t.Context(), storage.Space{Name: space}),
					inner.CreateSpace(t.Context(), storage.Space{Name: emptySpace}))
				if err != nil {
					t.Fatal(err)
				}
				put(t, inner, "a", "one")
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if f.Method = method; f.Then != nil {
					f.Then = func() { cancel(OtherCall()) }
				}
				inner.Script(f)
				err = mutations(ctx, s)[method]()
				if f.Err == nil && f.Then != nil {
					if wantEnded(t, method, err); storage.IsNotApplied(err) {
						t.Errorf("got %v, which is marked, although the mutation was made", err)
					}
					return
				}
				if marked := storage.IsNotApplied(err); !errors.Is(err, ErrFault) || marked == f.Applied {
					t.Errorf("got %v, marked %v, want the inner store's error, marked %v", err, marked, !f.Applied)
				}
			})
		}
	}
}
