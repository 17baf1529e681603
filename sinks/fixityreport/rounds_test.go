package fixityreport

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// Copies that fail in the second of two rounds by chance have nothing in common, although a newer version has made that
// round, on another host and in another hour. A worker of one of the rounds that finds them all is named.
func TestCausesInRounds(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	const copies, rounds = 400, 4
	from := int64(0)
	for account, tt := range map[string]struct {
		fails func(n, round int) bool
		want  string
	}{
		"one":     {func(n, round int) bool { return n == 7 && round == 3 }, ""},
		"several": {func(n, round int) bool { return n%50 == 7 && n/50%3+1 == round }, ""},
		"worker":  {func(n, round int) bool { return n%10 == 1 && (n+round)%4 == 1 }, "worker worker1"},
	} {
		var all []schemas.Body
		for n := range copies {
			for round := range rounds {
				r := clickhousetest.Result(clickhousetest.Change(fmt.Sprint(n), 0),
					time.Duration(round)*24*time.Hour+time.Duration(n)*time.Millisecond)
				r.Account, r.Id = account, schemas.ID(account, r.GetId())
				r.Worker, r.Host = fmt.Sprint("worker", (n+round)%4), fmt.Sprint("host", round/2)
				r.Software = fmt.Sprint("millrace/", round)
				if tt.fails(n, round) {
					r.Verdict, r.Row, r.Finding = pb.Verdict_VERDICT_FAIL, 2, "content-corrupt"
				}
				all = append(all, r)
			}
		}
		clickhousetest.StoreBoth(t, db, schemas.FixityResults, from, all...)
		from += int64(len(all))
		totals, groups, err := read.Failures(t.Context(), db, read.FailureQuery{Account: account})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if causes := Causes(totals.Groups, groups); len(causes) > 0 {
			got = causes[0].Dimension + " " + causes[0].Value
			if tt.want == "" {
				t.Logf("%s: %+v", account, causes)
			}
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", account, got, tt.want)
		}
	}
}
