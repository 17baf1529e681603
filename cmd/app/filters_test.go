package app

import (
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/sweep/filter"
)

// selecting returns the filter of two patterns, which may be empty.
func selecting(t *testing.T, include, exclude string) filter.Filter {
	t.Helper()
	var lists [2][]string
	for i, text := range []string{include, exclude} {
		if text != "" {
			lists[i] = []string{text}
		}
	}
	f, err := filter.New(lists[0], lists[1])
	must(t, err)
	return f
}

// A round by hand has its own filter. One over some items leaves no checkpoint of the space, and no report.
func TestFilterOfRoundsByHand(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 4)
	must(t, InitStore(t.Context(), s.a.cfg, s.a.log, StoreName{"acme", "1"}))
	s.a.cfg.Sweep.Spaces.Fixity.Exclude = []string{"acme"} // is of the scheduled rounds
	selecting := func(include, exclude string) filter.Filter { return selecting(t, include, exclude) }
	written := func() int { return len(s.b.Read(schemas.Checkpoints)) + len(s.b.Read(schemas.Reports)) }
	for name, tt := range map[string]struct {
		include, exclude string
		all              bool
		want             int // tasks
	}{
		"another space": {"acme/1/other", "", false, 0},
		"not this one":  {"", "*/1/photos", false, 0},
		"some items":    {"acme/1/photos/item-00[12]", "", false, 2},
		"all but one":   {"acme/*/ph*", "*/*/*/*3", true, 3},
		"no such item":  {"/acme/1/photos/none", "", false, 0},
	} {
		before := written()
		n := len(s.b.Bodies(schemas.FixityLow)) + len(s.b.Bodies(schemas.FixityHigh))
		rounds, err := s.a.SweepFixity(t.Context(), FixityRequest{Account: "acme", Store: "1", Begun: s.begun, All: tt.all,
			Filter: selecting(tt.include, tt.exclude), Detach: true})
		if err != nil {
			t.Fatal(name, err)
		}
		if got := len(s.b.Bodies(schemas.FixityLow)) + len(s.b.Bodies(schemas.FixityHigh)) - n; got != tt.want {
			t.Errorf("%s: %d tasks of %+v, want %d", name, got, rounds, tt.want)
		}
		if n := written() - before; n != 0 {
			t.Errorf("%s: %d checkpoints and reports", name, n)
		}
		dry, err := s.a.SweepFixity(t.Context(), FixityRequest{Account: "acme", Store: "1", Begun: s.begun, All: tt.all,
			Filter: selecting(tt.include, tt.exclude), DryRun: true})
		if err != nil || len(dry) > 1 || len(dry) == 1 && dry[0].Emitted != int64(tt.want) {
			t.Errorf("%s: a dry run: %+v, %v", name, dry, err)
		}
	}
	reconcile := func(include string) ([]SweptSpace, error) {
		return s.a.SweepReconcile(t.Context(), ReconcileRequest{SpacesRequest: SpacesRequest{Begun: s.begun, DryRun: true,
			Filter: selecting(include, "")}})
	}
	found, err := reconcile("acme/1/photos/*0")
	if err != nil || len(found) != 1 || found[0].Counts["excluded"] != 3 || found[0].Counts["inconclusive"] != 4 {
		t.Errorf("reconcile: %+v, %v", found, err)
	}
	if _, err := reconcile("acme/1/other"); !errors.Is(err, precondition.Err) {
		t.Errorf("reconcile of no space: %v", err)
	}
	r := SpacesRequest{Begun: s.begun, Filter: selecting("acme/1/photos/*", "")}
	if _, err := s.a.SweepGroups(t.Context(), r); !errors.Is(err, precondition.Err) {
		t.Errorf("groups of some items: %v", err)
	}
	if _, tasks := s.sweep(time.Minute, false); len(tasks) != 4 {
		t.Errorf("a round after those over some items requests %d checks", len(tasks))
	}
}

// Rounds over some items adopt and copy these, and no others; the next round over the space finds the rest.
func TestRoundsOverSomeItems(t *testing.T) {
	t.Parallel()
	x := newArchive(t, everyRole...)
	x.app.cfg.Reconcile.Settle = 10 * time.Millisecond
	x.put("known", "known", nil, "1", "2")
	x.idle()
	x.behind("1", "one", "1")
	x.behind("1", "two", "2")
	found, err := x.app.SweepReconcile(t.Context(), ReconcileRequest{SpacesRequest: SpacesRequest{Account: "acme",
		Store: "1", Begun: time.Now(), Filter: selecting(t, "acme/1/photos/one", "")}})
	if x.must(err); len(found) != 1 {
		t.Fatalf("got %v", found)
	}
	x.expect("some items", found[0].Counts, map[string]int64{"adopted": 1, "excluded": 2})
	x.idle()
	compared, err := x.app.SweepDuplication(t.Context(), SpacesRequest{Account: "acme", Begun: time.Now(),
		Filter: selecting(t, "", "acme/*/*/two")}, false)
	if x.must(err); len(compared) != 1 {
		t.Fatalf("compared %v", compared)
	}
	x.expect("all items but one", compared[0].Counts, map[string]int64{"excluded": 1})
	x.holds("2", map[string]string{"one": "1", "two": "absent"})
	x.expect("all", x.reconcile(), map[string]int64{"adopted": 1})
	x.holds("2", map[string]string{"two": "2"})
}
