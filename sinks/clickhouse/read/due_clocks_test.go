package read_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// Whatever the clocks of the checkers say, a copy is due on the same day, and has failed since its pass. Its results
// are dated as they are decoded.
func TestDueAfterChecksByWrongClocks(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	const year = 365 * day
	clocks := map[string]struct{ passer, finder time.Duration }{
		"right":    {},
		"passes-1": {3 * year, 0},
		"passes-2": {-3 * year, 0},
		"finds-1":  {0, 3 * year},
		"finds-2":  {0, -3 * year},
		"hours":    {2 * time.Hour, -2 * time.Hour},
	}
	var changes, results []schemas.Body
	for item, of := range clocks {
		c := clickhousetest.Change(item, 0)
		dated := func(on int, ahead time.Duration, v pb.Verdict) {
			r := clickhousetest.Result(c, time.Duration(on)*day)
			r.Verdict, r.Started = v, timestamppb.New(r.GetFinished().AsTime().Add(ahead-time.Minute))
			kafka := r.GetFinished().AsTime().Truncate(time.Millisecond)
			r.Finished = timestamppb.New(r.GetFinished().AsTime().Add(ahead))
			schemas.DateByKafka(&schemas.Delivery{Body: r, Timestamp: kafka})
			results = append(results, r)
		}
		changes = append(changes, c)
		dated(3, of.passer, pb.Verdict_VERDICT_PASS)
		dated(20, of.finder, pb.Verdict_VERDICT_FAIL)
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, changes...)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, results...)
	at := func(n int) time.Time { return clickhousetest.Epoch.Add(time.Duration(n) * day) }
	first := map[string]int{}
	for on := 21; on < 130; on++ {
		page, _, err := read.NewDue(db).Due(t.Context(), schemas.DueQuery{Account: "acme", Store: "1",
			Space: clickhousetest.Change("", 0).GetSpace(), Limit: 10, PassedBefore: at(on - 89), AttemptedBefore: at(on - 3),
			Begun: at(on), Period: 90 * day})
		must(t, err)
		for _, c := range page {
			if first[c.Item] == 0 {
				first[c.Item] = on
			}
		}
	}
	for item := range clocks {
		if first[item] == 0 || first[item] != first["right"] {
			t.Errorf("%s: due on day %d, by right clocks on day %d", item, first[item], first["right"])
		}
	}
	s, err := read.FixityStatus(t.Context(), db, read.StatusQuery{Account: "acme", PassedBefore: at(10)})
	if err != nil || len(s) != 1 || s[0].Failing != uint64(len(clocks)) || s[0].Overdue != uint64(len(clocks)) {
		t.Errorf("the status is %+v, %v; all %d copies fail", s, err, len(clocks))
	}
}
