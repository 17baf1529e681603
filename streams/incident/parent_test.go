package incident

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestParentOf(t *testing.T) {
	for name, tt := range map[string]struct {
		of   Subject
		want string // key; empty: none
	}{
		"a missing space": {missing("photos"), "acme/2///incidents-grouped/space-missing"},
		"a refused listing": {Subject{"acme", "2", "photos", ListingIncomplete, ""},
			"acme/2///incidents-grouped/listing-incomplete"},
		"held repairs":     {Subject{"acme", "2", "photos", RepairsHeld, ""}, "acme/2///repairs-held"},
		"those of a store": {Subject{"acme", "2", "", RepairsHeld, ""}, ""},
		"a list":           {Subject{"acme", "2", "photos", DeletesHeld, "brake-1"}, ""},
		"a group":          {Subject{"acme", "2", "photos", Grouped, "replaced"}, "acme/2///incidents-grouped/replaced"},
		"a parent":         {ParentOf(missing("photos")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if parent := ParentOf(tt.of); parent.Kind != "" {
				got = parent.Key()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func missing(space string) Subject {
	return Subject{Account: "acme", Store: "2", Space: space, Kind: SpaceMissing}
}

// The spaces of a store become children of the parent when it is open, and those that are opened then are children from
// their start. Only what is no child when it is opened is logged as a warning.
func TestChildrenOfAStore(t *testing.T) {
	var l topic
	var log bytes.Buffer
	b := NewBoard(&l, slog.New(slog.NewTextHandler(&log, nil)))
	other := missing("a")
	other.Store = "3"
	parent := ParentOf(missing("a"))
	for _, s := range []Subject{missing("a"), other, missing("b"), parent, missing("c")} {
		must(t, b.Open(t.Context(), s, "it is gone"))
	}
	id := parent.Incident().GetId()
	for n, want := range []string{"", "", "", "", id} { // the parent may never be opened: b has none yet
		if got := l.records[n].GetParent(); got != want {
			t.Errorf("record %d: the parent is %q, want %q", n, got, want)
		}
	}
	for range 2 {
		for _, space := range []string{"a", "b", "c", "d"} { // d is not open
			must(t, b.Join(t.Context(), missing(space), parent))
		}
	}
	l.checkNewest(t, isOpen, 7, "opened it is gone", "grouped acme/2///incidents-grouped/space-missing")
	if got := l.records[5]; got.GetParent() != id || got.GetSpace() != "a" {
		t.Errorf("the first one is %v", got)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 4 {
		t.Errorf("%d warnings, want 4: %s", n, log.String())
	}
	must(t, b.Close(t.Context(), parent, "all are back"))
	must(t, b.Close(t.Context(), missing("c"), "it is back"))
	must(t, b.Close(t.Context(), missing("b"), "it is back"))
	if got := b.Children(); len(got) != 2 || !slices.Equal(got[parent], []Subject{missing("a")}) {
		t.Errorf("the children are %v", got)
	}
	must(t, b.Close(t.Context(), missing("a"), "it is back"))
	must(t, b.Open(t.Context(), missing("a"), "it is gone"))
	if got := l.records[len(l.records)-1]; got.GetParent() != "" {
		t.Errorf("opened again: %v", got)
	}
}
