package storagetest

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// facts are the errors that a caller interprets as facts about its call.
var facts = []error{
	storage.ErrNotFound, storage.ErrNoSpace, storage.ErrExists, storage.ErrNotEmpty, storage.ErrChanged,
	storage.ErrDigest, storage.ErrName, storage.ErrReadOnly, storage.ErrUnsupported, storage.ErrTooLarge,
	storage.ErrListing, storage.ErrSlowDown, storage.ErrCredentials, storage.ErrNoMarker, storage.ErrWrongMarker,
}

// OtherCall returns the error of another call, with which an errgroup may have cancelled the context of
// this one. It wraps all facts, and has a class and the NotApplied mark.
func OtherCall() error { return storage.NotApplied(retry.Permanent(otherCall{})) }

type otherCall struct{}

func (otherCall) Error() string   { return "the error of another call" }
func (otherCall) Unwrap() []error { return facts }

// wantEnded checks the error of a call after its context ended with OtherCall as the cause: it has nothing
// of that error.
func wantEnded(t *testing.T, call string, err error) {
	t.Helper()
	if err == nil { // the call succeeded nevertheless
		return
	}
	for _, fact := range facts {
		if errors.Is(err, fact) {
			t.Errorf("%s: got %v, which wraps %q", call, err, fact)
			return
		}
	}
	if c := retry.ClassOf(err); c != retry.Transient {
		t.Errorf("%s: got %v, whose class is %v", call, err, c)
	}
}

// ended makes calls with a context that ends with OtherCall as its cause: before the call and, for Put,
// after the bytes were read.
func (x *suite) ended(t *testing.T) {
	s := x.store(t)
	if err := s.WriteMarker(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, s, "a", "one")
	over, cancel := context.WithCancelCause(t.Context())
	cancel(OtherCall())
	for call, read := range map[string]func() error{
		"Stat":      func() error { _, err := s.Stat(over, space, "a"); return err },
		"StatSpace": func() error { _, err := s.StatSpace(over, space); return err },
		"Open":      func() error { return opened(s.Open(over, space, "a", "")) },
		"List":      func() error { return failed(s.List(over, space, "")) },
		"Spaces":    func() error { return failed(s.Spaces(over)) },
		"Marker":    func() error { return s.Marker(over) },
	} {
		err := read()
		if wantEnded(t, call, err); storage.IsNotApplied(err) {
			t.Errorf("%s: got %v, which is marked", call, err)
		}
	}
	for call, edit := range map[string]func(end func(), r *io.Reader, o *storage.PutOptions){
		"Put, before":     func(end func(), _ *io.Reader, _ *storage.PutOptions) { end() },
		"Put, at its end": func(end func(), r *io.Reader, _ *storage.PutOptions) { *r = endOf(*r, end) },
		"Put, in Verify":  func(end func(), _ *io.Reader, o *storage.PutOptions) { o.Verify = verifyEnds(end) },
		"Put, on condition": func(end func(), _ *io.Reader, o *storage.PutOptions) {
			o.Absent, o.Verify = true, verifyEnds(end)
		},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var r io.Reader = strings.NewReader("two")
		o := storage.PutOptions{Size: 3}
		edit(func() { cancel(OtherCall()) }, &r, &o)
		_, err := s.Put(ctx, space, call, r, o)
		wantEnded(t, call, err)
		switch {
		case err == nil:
			has(t, s, call, "two")
		case storage.IsNotApplied(err):
			lacks(t, s, call)
		}
	}
}

// endOf calls end at the end of r.
func endOf(r io.Reader, end func()) io.Reader {
	return io.MultiReader(r, readerFunc(func([]byte) (int, error) { end(); return 0, io.EOF }))
}

func verifyEnds(end func()) func(digest.Set, int64) error {
	return func(digest.Set, int64) error { end(); return nil }
}

func opened(r io.ReadCloser, _ storage.Object, err error) error {
	if err == nil {
		_, err = io.Copy(io.Discard, r)
		err = errors.Join(err, r.Close())
	}
	return err
}

func failed[T any](all func(func(T, error) bool)) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}
