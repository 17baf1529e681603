package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/groups"
)

// A dry run of a comparison says what it would find and request, in items and bytes, and how long that takes.
func TestDryRunOfComparison(t *testing.T) {
	seconds := 90.0
	split := func(space string, counts map[string]int64, copies sweep.Amount) app.SweptSpace {
		return app.SweptSpace{Copy: schemas.Copy{Account: "acme", Store: "1", Space: space}, Destination: "2",
			Result: sweep.Result{Counts: counts, Work: sweep.Work{Copies: copies}}}
	}
	splits := []app.SweptSpace{
		split("a", map[string]int64{"equal": 5, "equal_bytes": 50, "missing": 2, "missing_bytes": 20},
			sweep.Amount{Items: 2, Bytes: 20}),
		split("b", map[string]int64{"missing": 1, "missing_bytes": 4}, sweep.Amount{Items: 1, Bytes: 4}),
	}
	r := comparison{sweep: "duplication", dryRun: true, counts: comparedPairs, splits: splits, seconds: &seconds}
	text := func(r *comparison) string {
		t.Helper()
		var b bytes.Buffer
		must(t, r.print(&b, &sweepFlags{dryRun: true, output: &output{form: formText}}))
		return b.String()
	}
	const found = "2 spaces\n5 items of 50 bytes: equal\n3 items of 24 bytes: missing at the destination\n" +
		"a dry run: nothing was requested or put on record\nit would request 3 commands of the copier of 24 bytes\n"
	if got, want := text(&r), found+"they take 1m30s at least, by the rates of the last 30 days\n"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	document := func(r *comparison) (all map[string]any) {
		b, err := json.Marshal(r.document())
		if err == nil {
			err = json.Unmarshal(b, &all)
		}
		must(t, err)
		return all
	}
	all := document(&r)
	if all["missing"] != 3.0 || all["missing_bytes"] != 24.0 || all["seconds"] != 90.0 ||
		all["requested_copies"] != 3.0 || all["requested_copies_bytes"] != 24.0 || all["requested_checks"] != 0.0 ||
		all["spaces"].([]any)[1].(map[string]any)["missing_bytes"] != 4.0 {
		t.Errorf("got %v", all)
	}
	r.seconds = nil
	const unknown = "how long they take is unknown: in the last 30 days no such work was done\n"
	if got, want := text(&r), found+unknown; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if all := document(&r); all["seconds"] != nil {
		t.Errorf("an unknown time is %v", all["seconds"])
	}
	r = comparison{sweep: groups.Name, dryRun: true, counts: checkedGroups, splits: []app.SweptSpace{{
		Result: sweep.Result{Counts: map[string]int64{"whole": 1}}}}}
	const whole = "1 spaces\n1 groups: all chunks are on record as the document says, and have passed a check\n" +
		"a dry run: nothing was requested or put on record\n"
	if got, want := text(&r), whole; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
