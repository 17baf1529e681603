package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
	"github.com/millrace/millrace/streams/sweep"
)

var photos = schemas.Copy{Account: "acme", Store: "1", Space: "photos"}

// A world is a store, the manifest of it, and what the sweep has published.
type world struct {
	t        *testing.T
	mem      *mem.Store
	store    *storagetest.Faulty
	rows     map[string]Row
	unread   error    // of the rows
	asked    []string // the parts whose rows were read, as AFTER..LAST
	waited   time.Duration
	settling func()                // during the wait
	fresh    func()                // when fresh records are asked for
	listed   func(*storage.Object) // changes a listed object
	incident string                // detail of the open incident
	opened   int
	gone     bool // is declared
	listing  *Listing
	approved bool // the Changes are
	previous []byte
	rounds   int
	begun    time.Time     // of the newest round
	later    time.Duration // of the next one; an hour
	config   Config
}

func in(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, rows: map[string]Row{}, begun: time.Now(), later: apart}
		var err error
		w.mem, err = mem.New(mem.Config{ID: "acme/1"})
		w.must(err)
		w.store = storagetest.NewFaulty(w.mem)
		w.mem.Mark("acme/1")
		w.must(w.mem.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
		w.config = Config{Space: photos, Settle: time.Minute, MaxMissing: 0.1, Page: 3, Large: 1000}
		test(t, w)
	})
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// put writes an item behind the system's back.
func (w *world) put(item, text string) storage.Object {
	w.t.Helper()
	time.Sleep(time.Second)
	o, err := w.mem.Put(w.t.Context(), "photos", item, strings.NewReader(text),
		storage.PutOptions{Size: storage.UnknownSize})
	w.must(err)
	return o
}

// record puts the item as it is on record.
func (w *world) record(items ...string) {
	w.t.Helper()
	for _, item := range items {
		o, err := w.mem.Stat(w.t.Context(), "photos", item)
		w.must(err)
		w.rows[item] = Row{Item: item, Live: true, Time: o.Modified, Size: o.Size, Version: o.Version, Digests: o.Digests}
	}
}

// fill writes n items and records them.
func (w *world) fill(n int) {
	w.t.Helper()
	for i := range n {
		item := fmt.Sprintf("i%04d", i)
		_, err := w.mem.Put(w.t.Context(), "photos", item, strings.NewReader(item), storage.PutOptions{Size: -1})
		w.must(err)
		w.record(item)
	}
}

// A changedStore is a store that knows when items were written to.
type changedStore struct {
	storage.Store
	w *world
}

// List implements storage.Store.
func (s changedStore) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		for o, err := range s.Store.List(ctx, space, after) {
			if s.w.listed != nil {
				s.w.listed(&o)
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

func (w *world) deps() Deps {
	return Deps{
		Store: changedStore{w.store, w}, Listing: w.listing,
		Rows: func(_ context.Context, of schemas.Copy, last string) iter.Seq2[Row, error] {
			return func(yield func(Row, error) bool) {
				w.asked = append(w.asked, of.Item+".."+last)
				if w.unread != nil {
					yield(Row{}, w.unread)
					return
				}
				for _, item := range slices.Sorted(maps.Keys(w.rows)) {
					if item > of.Item && (last == "" || item <= last) && !yield(w.rows[item], nil) {
						return
					}
				}
			}
		},
		Fresh: func(context.Context) error {
			if w.fresh != nil {
				w.fresh()
			}
			return w.unread
		},
		Settle: func(_ context.Context, d time.Duration, _ int) error {
			w.waited += d
			time.Sleep(d)
			if w.settling != nil {
				w.settling()
			}
			return nil
		},
		OpenIncident: func(_ context.Context, of schemas.Copy, detail string) error {
			if of != photos {
				w.t.Errorf("incident of %v", of)
			}
			w.incident, w.opened = detail, w.opened+1
			return nil
		},
		CloseIncident: func(context.Context, schemas.Copy, string) error { w.incident = ""; return nil },
		DeclaredGone:  func() bool { return w.gone },
	}
}

// end ends a round, as the sweeper does.
func (w *world) end(last sweep.Page) {
	w.t.Helper()
	if last.Ended != nil {
		w.must(last.Ended(w.t.Context()))
	}
}

// round runs a round, and returns what it has published, and its counts. The Changes are put on record.
func (w *world) round() (out []schemas.Message, counts map[string]int64, err error) {
	w.t.Helper()
	pages, err := New(w.config, w.deps())
	w.must(err)
	w.rounds++
	w.begun = w.begun.Add(w.later)
	round := sweep.Round{ID: schemas.ID("r", fmt.Sprint(w.rounds)), Started: w.begun, Previous: w.previous}
	counts = map[string]int64{}
	for cursor := []byte(nil); ; {
		page, err := pages(w.t.Context(), round, cursor)
		if err != nil {
			return out, counts, err
		}
		for _, m := range page.Messages {
			if err := schemas.Validate(m.Body); err != nil {
				w.t.Error(err)
			}
			out = append(out, m)
		}
		for k, n := range page.Counts {
			counts[k] += n
		}
		if cursor = page.Next; page.Last {
			w.end(page)
			w.previous = page.Next
			break
		}
	}
	for _, m := range out {
		if c, ok := m.Body.(*pb.Change); ok {
			w.rows[c.GetItem()] = Row{Item: c.GetItem(), Live: c.GetOp() != pb.Op_OP_DELETE,
				Inferred: c.GetOp() == pb.Op_OP_DELETE, Time: c.GetTime().AsTime(),
				Size: c.GetSize(), Version: c.GetVersion(), Digests: c.GetDigests()}
		}
	}
	return out, counts, nil
}

// expects runs a round and compares what it publishes: "+item" a Change that adds it, "~item" one that updates it,
// "-item" one that deletes it, "?item" a check.
func (w *world) expects(want ...string) map[string]int64 {
	w.t.Helper()
	out, counts, err := w.round()
	w.must(err)
	var got []string
	for _, m := range out {
		switch b := m.Body.(type) {
		case *pb.Change:
			mark := map[pb.Op]string{pb.Op_OP_ADD: "+", pb.Op_OP_UPDATE: "~", pb.Op_OP_DELETE: "-"}
			got = append(got, mark[b.GetOp()]+b.GetItem())
			if b.GetOrigin() != pb.Origin_ORIGIN_SWEEP || (b.GetApproved() != "") != w.approved || b.GetUser() != "" {
				w.t.Errorf("got %v", b)
			}
		case *pb.FixityTask:
			got = append(got, "?"+b.GetItem())
		}
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("round %d: got %q, want %q", w.rounds, got, want)
	}
	return counts
}

func TestAdopt(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(5)
		o := w.put("i0002x", "new")
		w.put("zz", "new too")
		counts := w.expects("+i0002x", "+zz")
		if counts["equal"] != 5 || counts["adopted"] != 2 || counts["adopted_bytes"] != 10 {
			t.Errorf("counts %v", counts)
		}
		if row := w.rows["i0002x"]; !row.Time.Equal(o.Modified) || row.Version != o.Version || len(row.Digests) == 0 {
			t.Errorf("adopted as %+v, it is %+v", row, o)
		}
		if w.waited > 2*time.Minute || w.waited < time.Minute {
			t.Errorf("waited %v", w.waited)
		}
		w.expects()
	})
}

// An item that other programs remove and make again is adopted, and an update of theirs is: as approved where the
// settings say so, since that is what the store is for. What comes back with an old date is checked.
func TestMadeAgain(t *testing.T) {
	for _, approves := range []bool{false, true} {
		t.Run(fmt.Sprint("approves ", approves), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.config.ExternalWrites = true
				w.config.Approves = func(time.Time) bool { return approves }
				w.fill(9)
				w.mem.Lose("photos", "i0004")
				w.expects()
				w.expects("-i0004")
				old := w.rows["i0004"].Time.Add(-time.Hour)
				w.put("i0004", "new")
				w.put("i0005", "newer")
				w.mem.Date("photos", "i0004", old)
				w.approved = approves
				w.expects("?i0004", "~i0005")
				w.mem.Date("photos", "i0004", time.Now())
				w.expects("+i0004")
				w.approved = false
				w.put("i0006x", "new") // no update: nothing is overwritten by it
				w.expects("+i0006x")
			})
		})
	}
}

// An item is adopted only if it has not changed over two looks, and is on no record by the second one.
func TestAdoptNever(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile func(w *world)
		want      []string
		counts    string
	}{
		"written over":  {func(w *world) { w.put("new", "longer") }, nil, "unsettled"},
		"removed again": {func(w *world) { w.mem.Lose("photos", "new") }, nil, ""},
		"on record":     {func(w *world) { w.record("new") }, nil, "equal"},
		"deleted by a client, and put back": {func(w *world) { w.rows["new"] = Row{Item: "new", Time: time.Now()} },
			[]string{"?new"}, "resurrected"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.put("new", "text")
				w.settling = func() { tt.meanwhile(w) }
				counts := w.expects(tt.want...)
				if tt.counts != "" && counts[tt.counts] != 1 || counts["adopted"] != 0 {
					t.Errorf("counts %v", counts)
				}
			})
		})
	}
}

// The second look reads the records of the part of a page that has candidates.
func TestSecondLookIsNarrow(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(9)
		w.config.Page = 100
		w.put("i0004x", "new")
		w.put("i0006x", "new too")
		w.expects("+i0004x", "+i0006x")
		if want := []string{"..", "i0004..i0006x"}; !slices.Equal(w.asked, want) {
			t.Errorf("read the rows of %q, want %q", w.asked, want)
		}
	})
}

// Items that no program has written to for long need no wait. If one item of a page was written lately, or is absent,
// the page waits.
func TestChangedLongAgo(t *testing.T) {
	for name, tt := range map[string]struct {
		changed []time.Duration // of two items, before the round
		lost    bool            // another one is
		waits   bool
	}{
		"long ago":                  {[]time.Duration{7 * time.Minute, time.Hour}, false, false},
		"one lately":                {[]time.Duration{7 * time.Minute, 5 * time.Minute}, false, true},
		"one ahead of the clock":    {[]time.Duration{-time.Minute, time.Hour}, false, true},
		"unknown":                   {nil, false, true},
		"long ago, and one is lost": {[]time.Duration{time.Hour, time.Hour}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.fill(5)
				if tt.lost {
					w.mem.Lose("photos", "i0003")
					w.expects()
				}
				w.put("x", "new")
				w.put("y", "new")
				w.waited = 0
				w.listed = func(o *storage.Object) {
					if i := strings.Index("xy", o.Item); i >= 0 && i < len(tt.changed) {
						o.Changed = time.Now().Add(-tt.changed[i])
					}
				}
				w.config.Page = 10
				want := []string{"+x", "+y"}
				if tt.lost {
					want = append([]string{"?i0003"}, want...)
				}
				w.expects(want...)
				if (w.waited > 0) != tt.waits {
					t.Errorf("waited %v", w.waited)
				}
			})
		})
	}
}

// Objects that appear whole need no second look apart in time.
func TestAppearsWhole(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.config.AppearsWhole = true
		w.put("new", "text")
		w.expects("+new")
		if w.waited > 0 {
			t.Errorf("waited %v", w.waited)
		}
	})
}

// What differs is checked, or reported if others write here. The Change of a newer item is dated as the item is.
func TestDifferent(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(2)
		w.put("i0001", "replaced behind the system's back")
		counts := w.expects("?i0001")
		if counts["different"] != 1 {
			t.Errorf("counts %v", counts)
		}
		w.config.ExternalWrites = true
		w.expects("~i0001")
		w.put("i0001", "dated ahead of each record")
		w.mem.Date("photos", "i0001", time.Now().Add(time.Hour))
		w.expects("?i0001")
		w.put("i0001", "once more")
		w.config.ExternalWritesSince = time.Now().Add(time.Hour)
		w.expects("?i0001") // written before the setting
	})
}

// A missing item is checked when it was missing in two rounds in a row. Where others write, that is a delete.
func TestMissing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(7)
		w.mem.Lose("photos", "i0003")
		if counts := w.expects(); counts["missing"] != 1 {
			t.Errorf("counts %v", counts)
		}
		w.mem.Lose("photos", "i0005")
		if counts := w.expects("?i0003"); counts["lost"] != 1 || counts["missing"] != 1 {
			t.Errorf("counts %v", counts)
		}
		w.config.ExternalWrites = true
		w.expects("-i0005")
		if row := w.rows["i0005"]; row.Live || row.Time.After(time.Now()) || row.Time.Before(time.Now().Add(-time.Minute)) {
			t.Errorf("deleted as %+v", row)
		}
		// It came back between two rounds: the next absence is the first one.
		w.mem.Lose("photos", "i0006")
		w.expects("-i0003")
		w.put("i0006", "again")
		w.record("i0006")
		w.expects()
		w.mem.Lose("photos", "i0006")
		w.expects()
	})
}

// Rounds that begin within an hour, as restarts request them, conclude nothing of what they miss, and forget nothing.
// An item that was there meanwhile is missing anew.
func TestMissingInRoundsAtOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		external bool
		listing  bool // of the rounds between the first one and the last one
		want     string
	}{
		"a copy":                       {false, false, "?i000"},
		"a copy, by listings":          {false, true, "?i000"},
		"where other programs write":   {true, false, "-i000"},
		"so they do, and by a listing": {true, true, "-i000"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.config.ExternalWrites = tt.external
				w.fill(7)
				w.mem.Lose("photos", "i0003")
				w.mem.Lose("photos", "i0006")
				w.expects()
				w.later = apart / 6
				for range 3 {
					if w.listing = nil; tt.listing {
						w.list()
					}
					if counts := w.expects(); counts["missing"] != 2 {
						t.Errorf("counts %v", counts)
					}
				}
				w.listing = nil
				w.mem.Lose("photos", "i0005")
				w.put("i0006", "changed") // is looked at twice
				w.settling = func() { w.mem.Lose("photos", "i0006") }
				w.expects()
				w.settling, w.later = nil, apart/3
				w.expects(tt.want + "3")
				w.rows["i0003"] = Row{Item: "i0003"}
				w.expects()
				w.expects(tt.want+"5", tt.want+"6")
			})
		})
	}
}

// An item that is there by the second look is not missing.
func TestMissingIsLookedAtAgain(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(3)
		w.mem.Lose("photos", "i0001")
		w.expects()
		w.settling = func() {
			w.put("i0001", "back")
			w.record("i0001")
		}
		w.expects()
	})
}

// Copies that are on record only at the second look, as while tables are rebuilt, count as copies of the space: the one
// that the listing lacks is not all of it.
func TestRecordedMeanwhile(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(9)
		w.config.Page = 100
		w.mem.Lose("photos", "i0001")
		whole := maps.Clone(w.rows)
		maps.DeleteFunc(w.rows, func(item string, _ Row) bool { return item != "i0001" })
		w.settling = func() { maps.Copy(w.rows, whole) }
		if counts := w.expects(); w.incident != "" || counts["equal"] != 8 || counts["missing"] != 1 {
			t.Errorf("incident %q, counts %v", w.incident, counts)
		}
		w.expects("?i0001")
	})
}

// A listing that lacks too much of a space, or all of it, concludes nothing, however often it is repeated.
func TestTooMuchIsMissing(t *testing.T) {
	for name, tt := range map[string]struct {
		items, lost int
		tooMuch     bool
	}{
		"5 of 100":       {100, 5, false},
		"10 of 100":      {100, 10, false},
		"11 of 100":      {100, 11, true},
		"50 of 100":      {100, 50, true},
		"100 of 100":     {100, 100, true},
		"50 of 99":       {99, 50, false},
		"all of a small": {3, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.fill(tt.items)
				for i := range tt.lost {
					w.mem.Lose("photos", fmt.Sprintf("i%04d", i))
				}
				for n := range 3 {
					out, counts, err := w.round()
					w.must(err)
					if (w.incident != "") != tt.tooMuch || tt.tooMuch && (len(out) > 0 || counts["inconclusive"] == 0 ||
						counts["missing"] != int64(tt.lost)) { // in each round, as if it were the first
						t.Errorf("round %d: incident %q, %d messages, %v", n, w.incident, len(out), counts)
					}
					if n == 1 && !tt.tooMuch && len(out) != tt.lost {
						t.Errorf("%d checks", len(out))
					}
				}
			})
		})
	}
}

// A store that is unmounted, or another one, concludes nothing, also if it is exchanged during a round.
func TestMarker(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(5)
		w.mem.Lose("photos", "i0001")
		w.expects()
		before := w.previous
		w.config.Page = 10
		for n := range 3 { // before and after the listing, and after the second look
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
			if !errors.Is(err, storage.ErrWrongMarker) || len(out) > 0 {
				t.Errorf("marker gone at reading %d: %v, %v", n, out, err)
			}
			w.store.Before(nil)
			w.mem.Mark("acme/1")
			w.previous = before
		}
	})
}

// A space that is absent has lost all: nothing is concluded.
func TestSpaceIsGone(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.config.Space.Space = "papers"
		w.config.Space = schemas.Copy{Account: "acme", Store: "1", Space: "papers"}
		d := w.deps()
		d.OpenIncident = func(_ context.Context, _ schemas.Copy, detail string) error { w.incident = detail; return nil }
		w.rows["a"] = Row{Item: "a", Live: true, Size: 1, Version: "v"}
		pages, err := New(w.config, d)
		w.must(err)
		page, err := pages(t.Context(), sweep.Round{ID: "r", Started: time.Now()}, nil)
		w.end(page)
		if err != nil || !page.Last || len(page.Messages) > 0 || !strings.Contains(w.incident, "the space is absent") {
			t.Errorf("got %+v, %v; incident %q", page, err, w.incident)
		}
		w.gone = true
		page, err = pages(t.Context(), sweep.Round{ID: "r", Started: time.Now(), Previous: page.Next}, nil)
		w.end(page)
		if err != nil || w.incident != "" {
			t.Errorf("declared gone: %v, incident %q", err, w.incident)
		}
	})
}

// A listing or records that cannot be read fail the page, and report nothing as missing.
func TestFailures(t *testing.T) {
	away := errors.New("away")
	for name, fail := range map[string]func(*world){
		"the records": func(w *world) { w.unread = away },
		"the listing": func(w *world) { w.store.Script(storagetest.Fault{Method: "List", Err: away}) },
		"stat": func(w *world) {
			for i := range maxRefused + 1 {
				w.put(fmt.Sprintf("new%04d", i), "x")
			}
			w.config.Page = 1000
			w.store.Script(storagetest.Fault{Method: "Stat", Err: away, Times: -1})
		},
		"fresh records": func(w *world) { w.put("new", "x"); w.fresh = func() { w.unread = away } },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.fill(3)
				fail(w)
				out, _, err := w.round()
				if !errors.Is(err, away) || len(out) > 0 || w.opened > 0 {
					t.Errorf("got %v, %v; %d incidents", out, err, w.opened)
				}
			})
		})
	}
}

// A listing that repeats or goes backwards fails the page.
func TestListingOutOfOrder(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(2)
		d := w.deps()
		d.Store = backwards{w.mem}
		pages, err := New(w.config, d)
		w.must(err)
		if _, err := pages(t.Context(), sweep.Round{ID: "r", Started: time.Now()}, nil); !errors.Is(err, storage.ErrListing) {
			t.Errorf("got %v", err)
		}
	})
}

type backwards struct{ storage.Store }

func (backwards) List(context.Context, string, string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		_ = yield(storage.Object{Item: "b"}, nil) && yield(storage.Object{Item: "a"}, nil)
	}
}

// One item that the store does not show, or that no message can report, does not stop the rest.
func TestUnknownItems(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for _, item := range []string{"future", "good", "old", "refused"} {
			w.put(item, item)
		}
		w.mem.Date("photos", "future", time.Now().Add(time.Hour))
		w.mem.Date("photos", "old", time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC))
		w.store.Script(storagetest.Fault{Method: "Stat", Item: "refused", Err: errors.New("forbidden"), Times: -1})
		if counts := w.expects("+future", "+good", "+old"); counts["unknown"] != 1 {
			t.Errorf("counts %v", counts)
		}
	})
}

// An item that was missing, and begins to be written during the second look, is not taken in.
func TestWrittenDuringTheSecondLook(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.config.ExternalWrites = true
		w.fill(3)
		w.mem.Lose("photos", "i0001")
		w.expects()
		w.settling = func() { w.put("i0001", "half of it") }
		if counts := w.expects(); counts["unsettled"] != 1 {
			t.Errorf("counts %v", counts)
		}
	})
}

// More missing items than a round remembers are all checked in the end, also if they stay missing.
func TestManyMissing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.config.Page, w.config.MaxMissing = 100_000, 1
		for i := range 2*maxMissing + 100 {
			item := fmt.Sprintf("i%06d", i)
			w.rows[item] = Row{Item: item, Live: true, Version: "v", Size: 1}
		}
		w.put("there", "x")
		w.record("there")
		checked := map[string]bool{}
		for range 8 {
			out, _, err := w.round()
			w.must(err)
			for _, m := range out {
				checked[m.Body.(*pb.FixityTask).GetItem()] = true
			}
		}
		if len(checked) != 2*maxMissing+100 {
			t.Errorf("%d of %d were checked", len(checked), 2*maxMissing+100)
		}
	})
}

// The hashes of two rounds fit into a checkpoint, however much is missing.
func TestCheckpointIsBounded(t *testing.T) {
	var c cursor
	p := part{cursor: c}
	for i := range 3 * maxMissing {
		p.remember(fmt.Sprint(i))
	}
	if n := p.cursor.Missing.len(); n != maxMissing || len(p.cursor.Missing.set()) != n {
		t.Fatalf("%d are remembered", n)
	}
	state, err := json.Marshal(p.cursor)
	if err != nil {
		t.Fatal(err)
	}
	_, err = schemas.Encode(schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{Id: schemas.ID("x"),
		Sweep: Name, Split: strings.Repeat("s", 1024), Round: schemas.ID("r"), Cursor: state, Previous: state,
		Started: timestamppb.Now(), Time: timestamppb.Now()}})
	if err != nil {
		t.Error(err)
	}
}

// Items that are not selected are counted, and nothing follows from them.
func TestItemsThatAreExcluded(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(5)
		w.put("new", "text")
		w.put("new.tmp", "text")
		w.put("lost.tmp", "text")
		w.record("lost.tmp")
		w.mem.Lose("photos", "lost.tmp")
		w.rows["gone.tmp"] = Row{Item: "gone.tmp", Time: time.Now()}
		w.config.Items = func(item string) bool { return !strings.HasSuffix(item, ".tmp") }
		counts := w.expects("+new")
		if counts["excluded"] != 2 || counts["excluded_bytes"] != 4 || counts["missing"] != 0 || counts["equal"] != 5 {
			t.Errorf("counts %v", counts)
		}
		w.expects()
	})
}

// A request is answered by a round that begins after it: while the newest round began before it, another one is due,
// and a round that a request began goes on whatever the schedule says. A round by the schedule answers it, too.
func TestRequestedRounds(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fill(5) // two pages
		requested := func(finished bool, request string, want bool) {
			t.Helper()
			last := &pb.Checkpoint{Cursor: w.previous}
			if finished {
				last.Finished = timestamppb.Now()
			}
			if got := IsRequested(last, request); got != want {
				t.Errorf("request %q, finished %v: got %v, cursor %s", request, finished, got, w.previous)
			}
		}
		if IsRequested(nil, "") || !IsRequested(nil, "one") {
			t.Error("without a round, a request and nothing else makes one due")
		}
		w.expects()
		requested(true, "", false)
		requested(true, "one", true)
		w.config.Request = "one"
		w.expects()
		requested(true, "one", false)
		requested(false, "one", true)
		requested(true, "two", true)
		w.expects() // by the schedule
		requested(false, "one", false)
		next := Skipped(&pb.Checkpoint{Cursor: []byte(`{"request":"two","after":"x"}`), Previous: w.previous})
		if IsRequested(&pb.Checkpoint{Cursor: next, Finished: timestamppb.Now()}, "two") {
			t.Errorf("a skipped round begins again: %s", next)
		}
		next = Skipped(&pb.Checkpoint{Previous: w.previous}) // before its first page
		if IsRequested(&pb.Checkpoint{Cursor: next, Finished: timestamppb.Now()}, "one") {
			t.Errorf("a request that was answered is new after the skip of a later round: %s", next)
		}
	})
}
