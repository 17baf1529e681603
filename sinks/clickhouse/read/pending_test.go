package read_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A copy is pending from its first inconclusive check to the next conclusive one.
func TestPending(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	seen := 0
	check := func(account, item string, d time.Duration, verdict pb.Verdict, final bool) *pb.FixityResult {
		seen++
		r := &pb.FixityResult{
			Id: schemas.ID(item, fmt.Sprint(seen)), Task: schemas.ID(item),
			Account: account, Store: "1", Space: "photos", Item: item,
			Verdict: verdict, Row: 8, Finding: "content-missing", Final: final,
			Started: clickhousetest.At(d), Finished: clickhousetest.At(d + time.Second),
		}
		if !final {
			r.Next = timestamppb.New(r.Finished.AsTime().Add(24 * time.Hour))
		}
		return r
	}
	const (
		pass, undecided = pb.Verdict_VERDICT_PASS, pb.Verdict_VERDICT_UNDECIDED
		unknown, gone   = pb.Verdict_VERDICT_UNKNOWN, pb.Verdict_VERDICT_MISSING
		skipped         = pb.Verdict_VERDICT_SKIPPED
	)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0,
		check("acme", "removed", 0, pass, true),
		check("acme", "removed", time.Hour, undecided, false),
		check("acme", "removed", 90*time.Minute, skipped, true), // by a sweep meanwhile
		check("acme", "removed", 2*time.Hour, undecided, false),
		check("acme", "concluded", 0, undecided, false),
		check("acme", "concluded", time.Hour, gone, true),
		check("acme", "well", 0, pass, true),
		check("acme", "outage", 3*time.Hour, unknown, false),
		check("acme", "long ago", -50*24*time.Hour, undecided, false),
		check("umbrella", "removed", 0, undecided, false),
	)
	list := func(account string) (got string) {
		t.Helper()
		all, err := read.Pending(t.Context(), db, schemas.Copy{Account: account}, clickhousetest.Epoch.Add(-time.Hour))
		must(t, err)
		for _, p := range all {
			got += fmt.Sprintln(p.Copy, p.Verdict, p.Finding, p.Row,
				p.Since.Sub(clickhousetest.Millis(clickhousetest.At(0)).AsTime()),
				p.Next.Sub(clickhousetest.Millis(clickhousetest.At(0)).AsTime()), p.Checks)
		}
		return got
	}
	const removed = "acme/1/photos/removed undecided content-missing 8 1h0m0s 26h0m1s 2\n"
	const outage = "acme/1/photos/outage unknown content-missing 8 3h0m0s 27h0m1s 1\n"
	if got, want := list("acme"), removed+outage; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := list(""), "umbrella/1/photos/removed undecided content-missing 8 0s 24h0m1s 1\n"+
		removed+outage; got != want {
		t.Errorf("of all accounts\n%swant\n%s", got, want)
	}
	if got := list("nobody"); got != "" {
		t.Errorf("of an unknown account\n%s", got)
	}
}
