package main

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A name with line breaks and tabs stays in its line and its column.
func TestAnalysisOfOddNames(t *testing.T) {
	groups := []read.FailureGroup{{Dimension: read.ByPrefix, Value: "photos/a\n0 copies\thave failed", Total: 10,
		Failed: 10, All: 100, AllFailed: 10}}
	var b strings.Builder
	a := analysisOf(read.FailureTotals{Copies: 100, Failed: 10, Groups: 1}, groups, time.Time{}, true)
	if err := a.print(&b); err != nil || len(a.Causes) != 1 || len(a.Groups) != 1 {
		t.Fatal(a, err)
	}
	text := b.String()
	if strings.Contains(text, "\n0 copies") || strings.Count(text, "a 0 copies\uFFFDhave failed") != 2 {
		t.Errorf("got\n%s", text)
	}
}
