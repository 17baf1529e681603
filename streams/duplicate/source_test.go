package duplicate

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A serviced store copies items within its service, and counts the locations that it is given.
type serviced struct {
	*storagetest.Faulty
	kind   string
	locate error
	open   int // places
	from   []*storage.Location
}

func (s *serviced) Capabilities() storage.Capabilities {
	c := s.Faulty.Capabilities()
	c.Kind, c.MinSourceBytes = s.kind, 5
	return c
}

func (s *serviced) Locate(_ context.Context, ref storage.Ref) (storage.Location, error) {
	if s.locate != nil {
		return storage.Location{}, s.locate
	}
	s.open++
	return storage.Location{Kind: s.kind, Handle: ref, Close: func() error { s.open--; return nil }}, nil
}

func (s *serviced) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	s.from = append(s.from, o.Source)
	return s.Faulty.Put(ctx, space, item, r, o)
}

type servicedStores map[string]*serviced

func (s servicedStores) Store(_, id string) (storage.Store, bool) {
	store, ok := s[id]
	return store, ok
}

// A store whose service may copy gets the location of the version that is read. If there is no location, the bytes are
// copied.
func TestStoreGetsLocationOfTheSource(t *testing.T) {
	for name, tt := range map[string]struct {
		text    string
		kind    string
		locate  error
		located bool
	}{
		"long":              {"hello", "s3", nil, true},
		"short":             {"hell", "s3", nil, false},
		"of another kind":   {"hello", "file", nil, false},
		"not to be found":   {"hello", "s3", storage.ErrUnsupported, false},
		"changed":           {"hello", "s3", storage.ErrChanged, false},
		"a store that ails": {"hello", "s3", errors.New("boom"), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			one := &serviced{Faulty: w.faulty["1"], kind: tt.kind, locate: tt.locate}
			two := &serviced{Faulty: w.faulty["2"], kind: "s3"}
			var err error
			w.executor, err = New(Config{Now: w.time, WaitIntervals: intervals},
				servicedStores{"1": one, "2": two}, w, w.journal)
			w.must(err)
			c := command(w.added("1", tt.text))
			w.mustRun(c).ends("C5", "copied", done, 1, 1)
			w.holds("2", tt.text)
			if len(two.from) != 1 || one.open != 0 {
				t.Fatalf("%d puts, %d places are open, want 1 and none", len(two.from), one.open)
			}
			if got := two.from[0]; (got != nil) != tt.located {
				t.Fatalf("got location %+v, want one: %t", got, tt.located)
			}
			if !tt.located {
				return
			}
			from, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			ref := two.from[0].Handle.(storage.Ref)
			if ref.Version != from.Version || ref.Item != "a.jpg" || ref.Space != "photos" {
				t.Errorf("got location of %+v, want version %s", ref, from.Version)
			}
		})
	}
}
