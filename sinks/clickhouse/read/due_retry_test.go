package read_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

const day = 24 * time.Hour

// retryDueOn reports whether a copy is due in the round that begins on a day, with a period of 90 days and a round each
// day. Days are those since the content was written; passed < 0: never.
func retryDueOn(t *testing.T, db *clickhouse.DB, on, passed, attempted int, period time.Duration) bool {
	t.Helper()
	at := func(n int) time.Time { return clickhousetest.Epoch.Add(time.Duration(n) * day) }
	good := time.Time{}
	if passed >= 0 {
		good = at(passed)
	}
	due, err := read.IsRetryDue(t.Context(), db, schemas.DueQuery{PassedBefore: at(on - 89),
		AttemptedBefore: at(on - 3), Begun: at(on), Period: period}, at(0), good, at(attempted))
	must(t, err)
	return due
}

// The time to the next check of a copy that does not pass doubles.
func TestRetryDue(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for name, tt := range map[string]struct {
		passed, attempted int // days after the content was written
		period            time.Duration
		first             int // day of the first round in which it is due
	}{
		"first failure at once":             {-1, 1, 90 * day, 5},
		"failed for a week":                 {-1, 7, 90 * day, 14},
		"failed for a month":                {-1, 30, 90 * day, 60},
		"failed for a period":               {-1, 90, 90 * day, 180},
		"failed for years":                  {-1, 900, 90 * day, 990},
		"passed, failed before it was due":  {10, 99, 90 * day, 103},
		"passed, failed when it was due":    {10, 100, 90 * day, 104},
		"passed, failed for ten days":       {10, 110, 90 * day, 120},
		"passed, failed for a year":         {10, 465, 90 * day, 555},
		"passed, failed in the period":      {10, 20, 90 * day, 24},
		"passed since":                      {20, 20, 90 * day, 21},
		"never attempted":                   {-1, 0, 90 * day, 1},
		"a month, of a round begun earlier": {-1, 30, 0, 34},
	} {
		for on := tt.attempted + 1; on < tt.attempted+100; on++ {
			if got, want := retryDueOn(t, db, on, tt.passed, tt.attempted, tt.period), on >= tt.first; got != want {
				t.Errorf("%s: due on day %d: %v, want %v", name, on, got, want)
				break
			}
		}
	}
}

// With a round each day a copy that never passes is checked six times in the first two periods, and once in each later
// one.
func TestRetriesOfAPeriod(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	checks, attempted := []int{}, 1
	for on := 2; on <= 260; on++ {
		if retryDueOn(t, db, on, -1, attempted, 90*day) {
			checks, attempted = append(checks, on), on
		}
	}
	if got, want := fmt.Sprint(checks), "[5 10 20 40 80 160 250]"; got != want {
		t.Errorf("checked on days %s, want %s", got, want)
	}
}
