package fixityreport

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

// month is the first month in which the copies of the seeded data were written.
var month = time.Date(2024, 1, 15, 0, 0, 0, 0, time.UTC)

// check returns the check of a copy with some traits, in an hour of the day.
func (c traits) check(account string, n, hour int, failed bool) *pb.FixityResult {
	item := clickhousetest.Change(fmt.Sprintf("p%d/%d", c.prefix, n), 0)
	item.Account, item.Store, item.Space = account, fmt.Sprint("store", c.store), fmt.Sprint("space", c.space)
	r := clickhousetest.Result(item, time.Duration(hour)*time.Hour+time.Duration(n)*time.Millisecond)
	r.Id = schemas.ID(account, r.GetId())
	r.Worker, r.Host = fmt.Sprint("worker", c.worker), fmt.Sprint("host", c.host)
	r.Software = fmt.Sprint("millrace/", c.software)
	r.Object = &pb.Identity{Modified: timestamppb.New(month.AddDate(0, c.month, 0))}
	if failed {
		r.Verdict, r.Row, r.Finding = pb.Verdict_VERDICT_FAIL, 2, "content-corrupt"
	}
	return r
}

// The cause of the failures in the table of checks is named first, whichever dimension it is of, and nothing is without
// a cause. Half of the copies that a cause concerns have failed, and one of 200 by chance.
func TestCausesInTables(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	const copies = 800
	from := int64(0)
	for account, tt := range map[string]struct {
		fails func(c traits, hour int) bool
		want  string
	}{
		"chance":   {nil, ""},
		"store":    {func(c traits, _ int) bool { return c.store == 1 }, "store store1"},
		"space":    {func(c traits, _ int) bool { return c.space == 4 }, "space space4"},
		"prefix":   {func(c traits, _ int) bool { return c.space == 3 && c.prefix == 2 }, "prefix space3/p2"},
		"month":    {func(c traits, _ int) bool { return c.month == 13 }, "month 2025-02"},
		"worker":   {func(c traits, _ int) bool { return c.worker == 5 }, "worker worker5"},
		"host":     {func(c traits, _ int) bool { return c.host == 3 }, "host host3"},
		"software": {func(c traits, _ int) bool { return c.software == 2 }, "software millrace/2"},
		"hour":     {func(_ traits, hour int) bool { return hour == 7 }, "hour 2026-03-04T12"},
	} {
		rng := rand.New(rand.NewPCG(1, uint64(len(account)))) //nolint:gosec // a seeded test
		var all []schemas.Body
		for n := range copies {
			c, hour := traitsOf(rng), rng.IntN(10)
			failed := rng.Float64() < 0.005 || tt.fails != nil && tt.fails(c, hour) && rng.IntN(2) == 0
			all = append(all, c.check(account, n, hour, failed))
		}
		clickhousetest.StoreBoth(t, db, schemas.FixityResults, from, all...)
		from += copies
		totals, groups, err := read.Failures(t.Context(), db, read.FailureQuery{Account: account})
		if err != nil || totals.Copies != copies || totals.Checks != copies {
			t.Fatalf("%s: got %+v, %v", account, totals, err)
		}
		got := ""
		if causes := Causes(totals.Groups, groups); len(causes) > 0 {
			got = causes[0].Dimension + " " + causes[0].Value
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", account, got, tt.want)
		}
	}
}
