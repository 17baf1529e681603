package pairs

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
)

// The pages of a store that is not the expected one fail, before and after its listing.
func TestMarkers(t *testing.T) {
	gone := storage.ErrNoMarker
	for name, tt := range map[string]struct {
		source, destination []error
		noSpace             bool
	}{
		"source, at the start":            {[]error{gone}, nil, false},
		"destination, at the start":       {nil, []error{gone}, false},
		"source, at the end":              {[]error{nil, gone}, nil, false},
		"destination, at the end":         {nil, []error{nil, gone}, false},
		"destination, after its no space": {nil, []error{nil, gone}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.source.has("a")
			w.source.marker, w.destination.marker, w.destination.noSpace = tt.source, tt.destination, tt.noSpace
			if page, err := w.page(""); !errors.Is(err, gone) || page.Messages != nil || page.Counts != nil {
				t.Errorf("got %+v, %v", page, err)
			}
			if slices.Contains(w.calls, "records") {
				t.Error("records are read for what is unknown")
			}
			if got := items(w.mustPage("")); !strings.HasSuffix(got, "a") {
				t.Errorf("with the marker back: got %q", got)
			}
		})
	}
}

// A listing that cannot be relied upon fails the page.
func TestListingFails(t *testing.T) {
	away := errors.New("away")
	for name, tt := range map[string]struct {
		n     int
		fault []string
		err   error
		after string
		want  error
	}{
		"at once":                     {0, nil, away, "", away},
		"after two":                   {2, nil, away, "", away},
		"at its end":                  {3, nil, away, "", away},
		"repeats an entry":            {2, []string{"b"}, nil, "", storage.ErrListing},
		"goes backwards":              {2, []string{"a"}, nil, "", storage.ErrListing},
		"begins before the cursor":    {0, []string{"a"}, nil, "a", storage.ErrListing},
		"the space goes":              {2, nil, storage.ErrNoSpace, "", storage.ErrNoSpace},
		"the space goes, second page": {1, nil, storage.ErrNoSpace, "a", storage.ErrNoSpace},
		"an empty id":                 {0, []string{""}, nil, "", storage.ErrListing},
	} {
		for _, side := range []string{"source", "destination"} {
			t.Run(side+" "+name, func(t *testing.T) {
				w := newHarness(t)
				at, other := w.source, w.destination
				if side == "destination" {
					at, other = other, at
				}
				at.has("a", "b", "c")
				other.has("x", "y")
				at.n, at.err = tt.n, tt.err
				for _, id := range tt.fault {
					at.fault = append(at.fault, *object(func(o *storage.Object) { o.Item = id }))
				}
				page, err := w.page(tt.after)
				if !errors.Is(err, tt.want) || page.Messages != nil || page.Counts != nil {
					t.Errorf("got %+v, %v", page, err)
				}
			})
		}
	}
}

// A listing without an end fills one page after the other.
func TestEndlessListing(t *testing.T) {
	w := newHarness(t)
	w.config.MaxEntries = 10
	name := func(n int) string { return fmt.Sprintf("%09d", n) }
	w.source.listing = func(after string) iter.Seq2[storage.Object, error] {
		first := 0
		_, _ = fmt.Sscanf(after, "%d", &first)
		return func(yield func(storage.Object, error) bool) {
			for n := first + 1; yield(storage.Object{Item: name(n), Version: "v"}, nil); n++ {
			}
		}
	}
	cursor := ""
	for n := range 3 {
		p := w.mustPage(cursor)
		if cursor = string(p.Next); p.Last || cursor != name(10*n+10) || p.Counts["missing"] != 10 {
			t.Fatalf("page %d: got %v, next %s", n, p.Counts, cursor)
		}
	}
}

// What no message can name is counted, and does not stop the sweep.
func TestNamesThatNoMessageCanHave(t *testing.T) {
	w := newHarness(t)
	w.config.Full = true
	w.source.has("a", strings.Repeat("b", storage.MaxItemID+1), "\xff")
	page := w.mustPage("")
	if items(page) != "/ a" || page.Counts["missing"] != 1 || page.Counts["unknown"] != 2 {
		t.Errorf("got %s, %v", items(page), page.Counts)
	}
}

func TestRecordsFail(t *testing.T) {
	away := errors.New("away")
	for name, fresh := range map[string]func([]*pb.CopyRecord) ([]*pb.CopyRecord, error){
		"error":   func([]*pb.CopyRecord) ([]*pb.CopyRecord, error) { return nil, away },
		"too few": func(all []*pb.CopyRecord) ([]*pb.CopyRecord, error) { return all[1:], nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.source.has("a")
			w.fresh = fresh
			if page, err := w.page(""); err == nil || page.Messages != nil || page.Counts != nil {
				t.Errorf("got %+v, %v", page, err)
			}
		})
	}
}
