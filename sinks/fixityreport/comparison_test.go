package fixityreport

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func TestComparison(t *testing.T) {
	for name, tt := range map[string]struct {
		counts   map[string]int64
		complete bool
		want     Comparison
		words    string
	}{
		"equal": {map[string]int64{"equal": 5, "equal_bytes": 90}, true, Comparison{Listed: 5, OnRecord: 5}, "equal"},
		"empty": {nil, true, Comparison{}, "equal"},
		"everything": {map[string]int64{"equal": 100, "adopted": 1, "resurrected": 2, "updated": 3, "different": 4,
			"missing": 5, "lost": 6, "deleted": 7, "unsettled": 8, "unknown": 9, "newer": 10, "stale": 11, "excluded": 12},
			false,
			Comparison{Listed: 118, OnRecord: 125, Stale: 11, MissingOnce: 5, MissingTwice: 13, Extra: 3, Different: 7,
				Unknown: 27, Excluded: 12},
			"13 missing in two rounds, 5 missing (unconfirmed), 3 extra, 7 different, 27 unknown, 12 excluded, " +
				"11 stale, incomplete"},
		"an old listing of items that are neither there nor on record": {map[string]int64{"equal": 9, "stale": 1}, true,
			Comparison{Listed: 9, OnRecord: 9, Stale: 1}, "1 stale"},
		"too much is missing": {map[string]int64{"equal": 1, "missing": 9, "inconclusive": 9}, false,
			Comparison{Listed: 1, OnRecord: 10, MissingOnce: 9}, "9 missing (unconfirmed), incomplete"},
	} {
		tt.want.Round, tt.want.Started, tt.want.Finished, tt.want.Complete = "r", at, at.Add(time.Minute), tt.complete
		tt.want.Detail = "d"
		got := ComparisonOf(read.RoundReport{Kind: "reconcile", Round: "r", Started: at, Finished: at.Add(time.Minute),
			Counts: tt.counts, Complete: tt.complete, Detail: "d"})
		if !reflect.DeepEqual(*got, tt.want) || got.Words() != tt.words {
			t.Errorf("%s: got %+v, %q", name, got, got.Words())
		}
	}
}

// The reports that have rounds say how their spaces were compared, or that they were not.
func TestReportsCompare(t *testing.T) {
	r := round(map[string]int64{"pass": 1, "live": 1, "verified": 1}, true)
	if text := write(t, HTML, r); !strings.Contains(text, "<td>not compared</td>") {
		t.Errorf("the page does not say that nothing was compared:\n%s", text)
	}
	if text := write(t, JSON, r); !strings.Contains(text, `"comparison": null`) {
		t.Errorf("got %s", text)
	}
	r.Compared = ComparisonOf(read.RoundReport{Round: "c", Finished: at, Complete: true, Detail: "by the listing <i>",
		Counts: map[string]int64{"equal": 3, "lost": 2, "adopted": 1}})
	text := write(t, HTML, r)
	for _, want := range []string{"2 missing in two rounds, 1 extra: 4 listed, 5 on record", "2026-11-28 12:00:00 UTC",
		"by the listing &lt;i&gt;"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	var got []struct{ Comparison Comparison }
	if err := json.Unmarshal([]byte(write(t, JSON, r)), &got); err != nil || len(got) != 1 ||
		!reflect.DeepEqual(got[0].Comparison, *r.Compared) {
		t.Errorf("got %+v, %v", got, err)
	}
	if text := write(t, TSV, r); strings.Contains(text, "missing in two rounds") {
		t.Error("the columns of older tools have changed")
	}
}
