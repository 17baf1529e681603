package reconcile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
	"github.com/millrace/millrace/streams/sweep"
)

// list makes a listing of what the store has now, without versions, as find makes it.
func (w *world) list() {
	w.t.Helper()
	time.Sleep(time.Second)
	var all []storage.Object
	for o, err := range w.mem.List(w.t.Context(), "photos", "") {
		w.must(err)
		all = append(all, storage.Object{Item: o.Item, Size: o.Size, Modified: o.Modified})
	}
	w.listing = listingOf(time.Now(), all...)
	time.Sleep(time.Second)
}

func listingOf(at time.Time, all ...storage.Object) *Listing {
	return &Listing{ID: schemas.ID("listing", at.String()), Time: at,
		Items: func(_ context.Context, after string) iter.Seq2[storage.Object, error] {
			return func(yield func(storage.Object, error) bool) {
				for _, o := range all {
					if o.Item > after && !yield(o, nil) {
						return
					}
				}
			}
		}}
}

// Of ten items, i0000 to i0009, all are on record and in the listing, except for what the case changes before and after
// the listing is made. Nothing follows that the store does not show by now.
func TestListing(t *testing.T) {
	lose := func(items ...string) func(*world) {
		return func(w *world) {
			for _, item := range items {
				w.mem.Lose("photos", item)
			}
		}
	}
	put := func(item string) func(*world) { return func(w *world) { w.put(item, "other content") } }
	recorded := func(item string) func(*world) { return func(w *world) { w.put(item, "other content"); w.record(item) } }
	bury := func(w *world) { w.rows["i0003"] = Row{Item: "i0003", Time: w.rows["i0003"].Time} }
	unsaid := func(*world) {}
	for name, tt := range map[string]struct {
		before, after func(*world)
		external      bool
		want          []string
		counts        map[string]int64
		stats         int
	}{
		"as on record": {unsaid, unsaid, false, nil, map[string]int64{"equal": 10}, 0},
		"not on record": {put("new"), unsaid, false, []string{"+new"},
			map[string]int64{"equal": 10, "adopted": 1}, 2},
		"not on record, deleted since": {put("new"), lose("new"), false, nil,
			map[string]int64{"equal": 10, "stale": 1}, 2},
		"not on record, replaced since": {put("new"), put("new"), false, []string{"+new"},
			map[string]int64{"equal": 10, "adopted": 1}, 2},
		"under a tombstone, deleted since": {bury, lose("i0003"), false, nil, map[string]int64{"equal": 9, "stale": 1}, 2},
		"under a tombstone": {bury, unsaid, false,
			[]string{"?i0003"}, map[string]int64{"equal": 9, "resurrected": 1}, 2},
		"different": {put("i0003"), unsaid, false,
			[]string{"?i0003"}, map[string]int64{"equal": 9, "different": 1}, 2},
		"different, others write": {put("i0003"), unsaid, true, []string{"~i0003"},
			map[string]int64{"equal": 9, "updated": 1}, 2},
		"on record with another time": {func(w *world) {
			w.put("i0003", "other content")
			at := time.Now()
			w.put("i0003", "back")
			w.record("i0003")
			row := w.rows["i0003"]
			row.Time = at // as of an import
			w.rows["i0003"] = row
		}, unsaid, false, nil, map[string]int64{"equal": 9, "stale": 1}, 2},
		"different, deleted since": {put("i0003"), lose("i0003"), true, nil,
			map[string]int64{"equal": 9, "missing": 1}, 2},
		"absent": {lose("i0003"), unsaid, false, nil, map[string]int64{"equal": 9, "missing": 1}, 2},
		"absent, put since": {lose("i0003"), func(w *world) { w.put("i0003", "i0003"); w.rows["i0003"] = w.old("i0003") },
			false, nil, map[string]int64{"equal": 9, "stale": 1}, 2},
		"absent, put since, and others write": {lose("i0003"), put("i0003"), true, []string{"~i0003"},
			map[string]int64{"equal": 9, "updated": 1}, 2},
		"recorded since": {unsaid, recorded("new"), false, nil, map[string]int64{"equal": 10, "newer": 1}, 0},
		"replaced since": {unsaid, recorded("i0003"), false, nil, map[string]int64{"equal": 9, "newer": 1}, 0},
		"deleted since": {unsaid, func(w *world) {
			w.mem.Lose("photos", "i0003")
			w.rows["i0003"] = Row{Item: "i0003", Time: time.Now()}
		}, false, nil, map[string]int64{"equal": 9, "newer": 1}, 0},
		"lost since, unseen": {unsaid, lose("i0003"), false, nil, map[string]int64{"equal": 10}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.config.ExternalWrites = tt.external
				w.fill(10)
				tt.before(w)
				w.list()
				tt.after(w)
				counts := w.expects(tt.want...)
				maps.DeleteFunc(counts, func(k string, _ int64) bool { return strings.HasSuffix(k, "_bytes") })
				if n := w.store.Count("Stat"); !maps.Equal(counts, tt.counts) || n != tt.stats || w.store.Count("List") > 0 {
					t.Errorf("counts %v, want %v; %d looks, want %d", counts, tt.counts, n, tt.stats)
				}
			})
		})
	}
}

// old returns the record of an item as it is, dated before any listing.
func (w *world) old(item string) Row {
	w.record(item)
	row := w.rows[item]
	row.Time = time.Time{}.AddDate(1999, 0, 0)
	return row
}

// Two looks at the store are Settle apart: what changes in between is not taken in, and not missing yet.
func TestListingSettles(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(7)
		w.mem.Lose("photos", "i0003")
		w.expects() // missed once
		w.put("new", "half")
		w.list()
		w.put("i0003", "back")
		w.settling = func() {
			w.put("new", "the whole")
			w.mem.Lose("photos", "i0003")
		}
		w.waited = 0
		if counts := w.expects(); counts["unsettled"] != 1 || counts["missing"] != 1 || w.waited < w.config.Settle {
			t.Errorf("counts %v, waited %v", counts, w.waited)
		}
	})
}

// Objects that appear whole are looked at once.
func TestListingOfWholeObjects(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.config.AppearsWhole = true
		w.fill(3)
		w.put("new", "text")
		w.list()
		w.mem.Lose("photos", "i0001")
		w.put("i0002", "replaced")
		w.listing = listingOf(w.listing.Time, storage.Object{Item: "new", Size: -1}) // of nothing else
		counts := w.expects("?i0002", "+new")
		if w.store.Count("Stat") != 4 || w.waited > 0 || counts["missing"] != 1 || counts["stale"] != 1 {
			t.Errorf("%d looks, waited %v, counts %v", w.store.Count("Stat"), w.waited, counts)
		}
	})
}

// What a listing shows is compared, and nothing else.
func TestMatches(t *testing.T) {
	at := time.Date(2026, 3, 1, 2, 3, 4, 567e6, time.UTC)
	md5, other := digest.Set{"md5": "aa"}, digest.Set{"md5": "bb"}
	row := Row{Item: "i", Live: true, Time: at, Size: 3, Version: "v", ETag: "e", Digests: md5}
	for name, tt := range map[string]struct {
		row  Row
		item storage.Object
		want bool
	}{
		"only the name":             {row, storage.Object{Size: -1}, true},
		"the size":                  {row, storage.Object{Size: 3}, true},
		"another size":              {row, storage.Object{Size: 4, Version: "v"}, false},
		"the version":               {row, storage.Object{Size: -1, Version: "v", Digests: other}, true},
		"another version":           {row, storage.Object{Size: 3, Version: "w", ETag: "e"}, false},
		"the ETag":                  {row, storage.Object{Size: 3, ETag: "e"}, true},
		"another ETag":              {row, storage.Object{Size: 3, ETag: "f", Digests: md5}, false},
		"the digest, another time":  {row, storage.Object{Size: 3, Digests: md5, Modified: hour(1)}, true},
		"another digest":            {row, storage.Object{Size: 3, Digests: other, Modified: at}, false},
		"a digest of another kind":  {row, storage.Object{Size: 3, Digests: digest.Set{"sha1": "cc"}}, true},
		"the time":                  {row, storage.Object{Size: 3, Modified: at.Add(1)}, true},
		"the second":                {row, storage.Object{Size: 3, Modified: at.Truncate(time.Second)}, true},
		"another time":              {row, storage.Object{Size: 3, Modified: at.Add(time.Millisecond)}, false},
		"a record without a size":   {Row{Size: -1, Time: at}, storage.Object{Size: 3, Modified: at}, true},
		"a record without versions": {Row{Size: 3, Time: at}, storage.Object{Size: 3, Version: "v", ETag: "e"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.row.matches(&tt.item); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// A round with a listing can be the second one that misses a copy, but not the first.
func TestListingMisses(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(7)
		w.mem.Lose("photos", "i0003")
		w.list()
		by := w.listing
		for range 3 {
			if counts := w.expects(); counts["missing"] != 1 {
				t.Errorf("counts %v", counts)
			}
		}
		w.listing = nil
		w.expects()
		w.listing = by
		if counts := w.expects("?i0003"); counts["lost"] != 1 {
			t.Errorf("counts %v", counts)
		}
		w.listing = nil
		w.expects()
		w.config.ExternalWrites = true
		w.listing = by
		w.expects("-i0003")
	})
}

// A store that does not answer for an item says nothing about it. One that is away, or another one, fails the round.
func TestListingOfAStoreThatFails(t *testing.T) {
	away := errors.New("away")
	in(t, func(t *testing.T, w *world) {
		w.fill(7)
		w.mem.Lose("photos", "i0003")
		w.expects() // missed once
		w.put("new", "text")
		w.list()
		w.store.Script(storagetest.Fault{Method: "Stat", Err: away, Times: -1})
		if counts := w.expects(); counts["unknown"] != 2 || counts["equal"] != 6 || w.opened > 0 {
			t.Errorf("counts %v, %d incidents", counts, w.opened)
		}
	})
	for n := range 3 {
		in(t, func(t *testing.T, w *world) {
			w.config.Page = 100
			w.fill(7)
			w.mem.Lose("photos", "i0003")
			w.expects()
			w.put("new", "text")
			w.list()
			reads := 0
			w.store.Before(func(_ context.Context, c storagetest.Call) error {
				if c.Method == "Marker" {
					if reads++; reads > n {
						w.mem.Mark("other")
					}
				}
				return nil
			})
			out, _, err := w.round()
			if !errors.Is(err, storage.ErrWrongMarker) || len(out) > 0 || w.opened > 0 {
				t.Errorf("marker gone at reading %d: %v, %v", n, out, err)
			}
		})
	}
	in(t, func(t *testing.T, w *world) { // the listing cannot be read to its end
		w.fill(7)
		w.listing = &Listing{ID: "x", Time: time.Now(),
			Items: func(context.Context, string) iter.Seq2[storage.Object, error] {
				return func(yield func(storage.Object, error) bool) {
					_ = yield(storage.Object{Item: "i0001", Size: -1}, nil) && yield(storage.Object{}, away)
				}
			}}
		if out, _, err := w.round(); !errors.Is(err, away) || len(out) > 0 || w.opened > 0 {
			t.Errorf("got %v, %v, %d incidents", out, err, w.opened)
		}
	})
}

// A store that lacks too much opens the incident, and a listing that says otherwise does not close it.
func TestListingOfAnEmptyStore(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(120)
		w.list()
		full := w.listing
		for i := range 50 {
			w.mem.Lose("photos", fmt.Sprintf("i%04d", i))
		}
		w.list()
		if counts := w.expects(); w.opened != 1 || counts["inconclusive"] != 50 || counts["missing"] != 50 ||
			!strings.Contains(w.incident, "lacks 50 of 120 copies") {
			t.Errorf("counts %v, incident %q", counts, w.incident)
		}
		w.listing = full
		if counts := w.expects(); counts["equal"] != 120 || w.incident == "" {
			t.Errorf("counts %v, incident %q", counts, w.incident)
		}
	})
}

// Pages are bounded by what is looked at, too, however little the listing has.
func TestListingWithoutItems(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(10)
		w.put("i0004", "other")
		w.listing = listingOf(time.Now(), storage.Object{Item: "i0008", Size: -1})
		time.Sleep(time.Second)
		counts := w.expects("?i0004")
		if counts["stale"] != 8 || counts["equal"] != 1 || w.store.Count("Stat") != 18 {
			t.Errorf("counts %v, %d looks", counts, w.store.Count("Stat"))
		}
		if want := []string{"..", "i0002..", "i0005..", "i0009.."}; !slices.Equal(partsOf(w.asked), want) {
			t.Errorf("read the rows of %q, want %q", w.asked, want)
		}
	})
}

// partsOf returns the parts without those of second looks.
func partsOf(asked []string) (first []string) {
	for _, a := range asked {
		if strings.HasSuffix(a, "..") {
			first = append(first, a)
		}
	}
	return first
}

// A round goes on with its listing after a kill, and with no other.
func TestListingIsResumed(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(9)
		w.list()
		round := sweep.Round{ID: "r", Started: time.Now()}
		page := func(state []byte) (sweep.Page, error) {
			pages, err := New(w.config, w.deps())
			w.must(err)
			return pages(t.Context(), round, state)
		}
		first, err := page(nil)
		w.must(err)
		if id, err := ListingOf(first.Next); err != nil || id != w.listing.ID || first.Last || first.Counts["equal"] != 3 {
			t.Fatalf("got %+v of listing %q, %v", first, id, err)
		}
		mine := w.listing
		for name, other := range map[string]*Listing{"another": listingOf(hour(1)), "none": nil} {
			w.listing = other
			if p, err := page(first.Next); !errors.Is(err, errOtherListing) || len(p.Messages) > 0 {
				t.Errorf("with %s: got %+v, %v", name, p, err)
			}
		}
		w.listing = mine
		second, err := page(first.Next)
		if err != nil || second.Counts["equal"] != 3 {
			t.Errorf("got %+v, %v", second, err)
		}
		w.listing = nil
		plain, err := page(nil)
		w.must(err)
		if id, err := ListingOf(plain.Next); id != "" || err != nil {
			t.Errorf("listing %q, %v", id, err)
		}
		w.listing = mine
		if _, err := page(plain.Next); !errors.Is(err, errOtherListing) {
			t.Errorf("a round without a listing: %v", err)
		}
	})
	if id, err := ListingOf(nil); id != "" || err != nil {
		t.Errorf("no cursor: %q, %v", id, err)
	}
	if _, err := ListingOf([]byte("{")); err == nil {
		t.Error("a damaged cursor is read")
	}
}
