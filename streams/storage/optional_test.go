package storage_test

import (
	"errors"
	"iter"
	"slices"
	"testing"

	"github.com/millrace/millrace/streams/storage"
)

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
					t.Errorf("the listing continued with %q after %v", o.Item, err)
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
