package integration

import (
	"slices"
	"testing"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/pairs"
)

// memStore makes a store in memory.
func memStore(t *testing.T, marked bool) (storage.Store, string) {
	t.Helper()
	s, err := mem.New(mem.Config{ID: "acme"})
	if err == nil && marked {
		err = s.WriteMarker(t.Context())
	}
	must(t, err)
	return s, ""
}

// sweepPair publishes what the sweep of the pair finds, and executes it. It returns the ends of the commands.
func (w *copyWorld) sweepPair() (ends []string) {
	w.t.Helper()
	pages, err := pairs.New(
		pairs.Config{Pair: pairs.Pair{Account: "acme", Space: copySpace, Source: "1", Destination: "2"}},
		pairs.Deps{Source: w.stores["1"], Destination: w.stores["2"], Rules: w, Records: w})
	w.must(err)
	page, err := pages(w.t.Context(), sweep.Round{ID: "round", Started: time.Now()}, nil)
	w.must(err)
	if !page.Last {
		w.t.Error("one item fills a page")
	}
	for _, m := range page.Messages {
		ends = append(ends, w.run(m.Body.(*pb.DuplicationCommand))...)
	}
	return ends
}

// What a sweep finds ends as the table of the executor says.
func TestSweepOfPairEnds(t *testing.T) {
	found := func(w *copyWorld, c *pb.Change) {
		c.Origin = pb.Origin_ORIGIN_SWEEP
		w.record(record.Seal(c))
	}
	for name, tt := range map[string]struct {
		before func(*copyWorld)
		waited bool // the command has waited until its last interval
		want   []string
		at     string // what the destination has then
	}{
		"nothing": {func(*copyWorld) {}, false, nil, ""},
		"equal":   {func(w *copyWorld) { w.run(w.put("new")) }, false, nil, "new"},
		"missing": {func(w *copyWorld) { w.put("new") }, false, []string{"C5 copied"}, "new"},
		"missing, and not on record": {func(w *copyWorld) {
			w.write("1", "new", named)
		}, false, []string{"C5 copied"}, "new"},
		"stale": {func(w *copyWorld) { w.run(w.put("old")); w.put("newer") }, false, []string{"C4 copied"}, "newer"},
		"stale, the source changed behind our back": {func(w *copyWorld) {
			w.run(w.put("old"))
			w.write("1", "newer", named)
		}, false, []string{"C4w wait"}, "old"},
		"stale, the source changed behind our back, waited": {func(w *copyWorld) {
			w.run(w.put("old"))
			w.write("1", "newer", named)
		}, true, []string{"C4w source-newer"}, "old"},
		"stale, the source's content found by a sweep": {func(w *copyWorld) {
			w.run(w.put("old"))
			found(w, record.Content(w.at("1"), w.write("1", "newer", named)))
		}, true, []string{"C4 copy-differs"}, "old"},
		"different, nothing on record": {func(w *copyWorld) {
			w.write("1", "one", named)
			w.write("2", "other", named)
		}, true, []string{"C4 copy-differs"}, "other"},
		"lost at the destination": {func(w *copyWorld) { w.run(w.put("new")); w.remove("2") }, false,
			[]string{"C4d was-lost"}, "new"},
		"replaced at the destination": {func(w *copyWorld) { w.run(w.put("new")); w.write("2", "other", named) }, false,
			[]string{"C4d destination-suspect"}, "other"},
		"lost at the source": {func(w *copyWorld) { w.run(w.put("new")); w.remove("1") }, false,
			[]string{"C6 wait"}, "new"},
		"orphan": {func(w *copyWorld) { w.write("2", "other", named) }, false, []string{"C7c orphan"}, "other"},
		"deleted": {func(w *copyWorld) { w.run(w.put("new")); w.delete() }, false,
			[]string{"C7 deletion-ordered", "C7 deleted", "C8 gone"}, ""},
		"found deleted by a sweep": {func(w *copyWorld) {
			w.run(w.put("new"))
			found(w, record.Delete(w.at("1"), w.remove("1")))
		}, false, []string{"C7b deletion-ordered", "C7b awaiting-approval", "C7b awaiting-approval"}, "new"},
		"without a space at the destination": {func(w *copyWorld) {
			w.put("new")
			w.must(w.stores["2"].DeleteSpace(w.t.Context(), copySpace))
		}, false, []string{"S1 created", "C5 copied"}, "new"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCopyWorld(t, memStore, memStore)
			tt.before(w)
			w.waited = tt.waited
			if got := w.sweepPair(); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if got := w.content("2"); got != tt.at {
				t.Errorf("the destination has %q, want %q", got, tt.at)
			}
			if w.waited = false; w.content("1") == tt.at && len(w.sweepPair()) > 0 {
				t.Error("another round finds a difference")
			}
		})
	}
}
