package fixityreport

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A Comparison is what a round of the sweep reconcile has found: it has compared the listing of a space in a store with
// the copies on record. An item counts in one of the numbers after OnRecord, unless it is listed as it is on record.
type Comparison struct {
	Round    string    `json:"round"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	// Complete is false if something was not concluded: the listing lacks too much of the space, or Unknown is not 0.
	Complete bool `json:"complete"`
	// Listed and OnRecord are the items that the store has listed, and the live copies on record, that were compared. They
	// lack Stale, the items of which an old listing of other software shows something else than both.
	Listed   int64 `json:"listed"`
	OnRecord int64 `json:"on_record"`
	Stale    int64 `json:"stale"`
	// MissingTwice are copies on record that two listings in a row lack: only these count as lost, and are checked.
	// MissingOnce are the others that this listing lacks: the one before had them, or has concluded nothing.
	MissingOnce  int64 `json:"missing_once"`
	MissingTwice int64 `json:"missing_twice"`
	Extra        int64 `json:"extra"`     // listed, and not on record, or as deleted
	Different    int64 `json:"different"` // listed other than on record
	Unknown      int64 `json:"unknown"`   // being written, not shown by the store, or on record since an old listing
	Excluded     int64 `json:"excluded"`  // by sweep.spaces: not compared
	// Detail names the listing of other software that was compared; empty: it is that of the store.
	Detail string `json:"detail"`
}

// ComparisonOf returns the comparison of a report of kind reconcile.
func ComparisonOf(r read.RoundReport) *Comparison {
	n := func(counts ...string) int64 { return sum(r.Counts, counts...) }
	return &Comparison{Round: r.Round, Started: r.Started, Finished: r.Finished, Complete: r.Complete,
		Listed:   n("equal", "adopted", "resurrected", "updated", "different", "unsettled"),
		OnRecord: n("equal", "updated", "different", "missing", "lost", "deleted"), Stale: n("stale"),
		MissingOnce: n("missing"), MissingTwice: n("lost", "deleted"), Extra: n("adopted", "resurrected"),
		Different: n("updated", "different"), Unknown: n("unsettled", "unknown", "newer"), Excluded: n("excluded"),
		Detail: r.Detail}
}

// Words describes what was found; nil: that the space was not compared.
func (c *Comparison) Words() string {
	if c == nil {
		return "not compared"
	}
	var words []string
	for _, w := range []struct {
		n    int64
		what string
	}{
		{c.MissingTwice, "missing in two rounds"}, {c.MissingOnce, "missing (unconfirmed)"}, {c.Extra, "extra"},
		{c.Different, "different"}, {c.Unknown, "unknown"}, {c.Excluded, "excluded"}, {c.Stale, "stale"},
	} {
		if w.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", w.n, w.what))
		}
	}
	if len(words) == 0 {
		words = append(words, "equal")
	}
	if !c.Complete {
		words = append(words, "incomplete")
	}
	return strings.Join(words, ", ")
}
