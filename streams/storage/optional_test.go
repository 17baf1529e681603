package storage_test

import (
	"errors"
	"io"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// bare hides what only some stores can do.
type bare struct{ storage.Store }

// A store that is no Ranger passes the same contract of ranges, by reading what comes before.
func TestOpenRangeOfAny(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store {
		s, err := mem.New(mem.Config{ID: "1"})
		if err != nil {
			t.Fatal(err)
		}
		return bare{s}
	}, storagetest.Only("OpenRange", "Copy"))
}

// A body that ends before its range does is no range that ends.
func TestOpenRangeCut(t *testing.T) {
	s, err := mem.New(mem.Config{ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	content := strings.Repeat("x", 1000)
	if err := s.CreateSpace(ctx, storage.Space{Name: "s"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, "s", "a", strings.NewReader(content), storage.PutOptions{Size: 1000}); err != nil {
		t.Fatal(err)
	}
	f := storagetest.NewFaulty(s)
	for name, tt := range map[string]struct {
		cut  int
		want error
	}{
		"before the range": {10, io.EOF},
		"in the range":     {510, io.ErrUnexpectedEOF},
		"behind the range": {600, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f.Script(storagetest.Fault{Method: "Open", Cut: true, After: tt.cut})
			r, _, err := storage.OpenRange(ctx, bare{f}, storage.Ref{Space: "s", Item: "a"}, storage.Range{Offset: 500, Length: 50})
			if err == nil {
				_, err = io.ReadAll(r)
				r.Close()
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestSorted(t *testing.T) {
	boom := errors.New("boom")
	tests := map[string]struct {
		after string
		in    []string // "!" is an error
		want  []string
		err   error
	}{
		"empty":                     {"", nil, nil, nil},
		"sorted":                    {"", []string{"a", "b", "c"}, []string{"a", "b", "c"}, nil},
		"an entry twice":            {"", []string{"a", "b", "b", "c"}, []string{"a", "b"}, storage.ErrListing},
		"a page twice":              {"", []string{"a", "b", "a", "b", "c"}, []string{"a", "b"}, storage.ErrListing},
		"not sorted":                {"", []string{"b", "a"}, []string{"b"}, storage.ErrListing},
		"begins where it was asked": {"b", []string{"b", "c"}, nil, storage.ErrListing},
		"begins before that":        {"b", []string{"a", "c"}, nil, storage.ErrListing},
		"its own error":             {"", []string{"a", "!", "b"}, []string{"a"}, boom},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var in iter.Seq2[storage.Object, error] = func(yield func(storage.Object, error) bool) {
				for _, id := range tt.in {
					var err error
					if id == "!" {
						err = boom
					}
					if !yield(storage.Object{Item: id}, err) {
						return
					}
				}
			}
			var got []string
			var err error
			for o, e := range storage.Sorted(tt.after, in) {
				if err != nil {
					t.Errorf("the listing went on to %q after %v", o.Item, err)
				}
				if err = e; e == nil {
					got = append(got, o.Item)
				}
			}
			if !slices.Equal(got, tt.want) || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Errorf("got %q, %v, want %q, %v", got, err, tt.want, tt.err)
			}
			for range storage.Sorted(tt.after, in) {
				break // it may be left at any point
			}
		})
	}
}
