package app

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
)

// A littered store has leftovers in each space.
type littered struct {
	*mem.Store
	swept []string
	fails string // the space whose sweep fails
}

func (l *littered) Sweep(_ context.Context, space string) (int, error) {
	l.swept = append(l.swept, space)
	if space == l.fails {
		return 0, errors.New("no answer")
	}
	return 2, nil
}

// Every space is swept, of a store that is the one that it should be and no other.
func TestEndLeftovers(t *testing.T) {
	for name, tt := range map[string]struct {
		marked bool
		fails  string
		swept  []string
		ended  int
		ok     bool
	}{
		"all":           {true, "", []string{"a", "b", "c"}, 6, true},
		"one fails":     {true, "b", []string{"a", "b"}, 2, false},
		"another store": {false, "", nil, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := mem.New(mem.Config{ID: "1"})
			if err != nil {
				t.Fatal(err)
			}
			for _, space := range []string{"a", "b", "c"} {
				if err := m.CreateSpace(t.Context(), storage.Space{Name: space}); err != nil {
					t.Fatal(err)
				}
			}
			if tt.marked {
				if err := m.WriteMarker(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			l := &littered{Store: m, fails: tt.fails}
			ended, err := endLeftovers(t.Context(), l, l)
			if ended != tt.ended || (err == nil) != tt.ok || !slices.Equal(l.swept, tt.swept) {
				t.Errorf("ended %d in %q: %v", ended, l.swept, err)
			}
		})
	}
}
