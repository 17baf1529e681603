package main

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/sinks/fixityreport"
)

// The state of the checks says what a sample finds, and says nothing of a store that is always read.
func TestFixityRow(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	s := app.SpaceFixity{Account: "acme", Sample: 5, Asserts: true, Period: 90 * 24 * time.Hour, Rate: 2,
		Objective: 0.999, Burn: 2,
		SpaceStatus: read.SpaceStatus{Store: "1", Space: "photos", Live: 2000, Overdue: 4, Oldest: now.Add(-time.Hour)}}
	sampled := fixityRowOf(&s, now)
	cells := fixityTable().cells(sampled)
	if got, want := cells[len(cells)-1], "5.0% of 1, 40.1% of 10, 99.4% of 100"; got != want {
		t.Errorf("detection %q, want %q", got, want)
	}
	if sampled.Share != 0.998 || sampled.Passed != 1996 || sampled.Objective != 0.999 || cells[6] != "2.00" ||
		!sampled.End.Equal(now.Add(2*time.Second)) {
		t.Errorf("got %+v", sampled)
	}
	s.Sample, s.Asserts = 100, false
	always := fixityRowOf(&s, now)
	if cells := fixityTable().cells(always); always.Detection != nil || cells[len(cells)-1] != "" {
		t.Errorf("always read: %+v", always)
	}
	if columns := strings.Split(fixityTable().columns, "\t"); len(columns) != len(cells) {
		t.Errorf("%d columns, %d cells", len(columns), len(cells))
	}
}

// A round whose space was compared by a listing of other software says so.
func TestRoundOfOtherListing(t *testing.T) {
	row := roundRowOf(fixityreport.Round{Compared: &fixityreport.Comparison{Complete: true, Detail: "by the listing x"}})
	if cells := roundTable().cells(row); cells[10] != "equal, by the listing x" {
		t.Errorf("got %q", cells)
	}
}
