package read_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func TestSizesSince(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	day := func(n int) time.Time { return time.Date(2026, 9, n, 12, 0, 0, 0, time.UTC) }
	var all []schemas.Body
	count := func(store, space string, at time.Time, items, bytes int64) {
		all = append(all, &pb.Report{Id: schemas.NewID(), Kind: "stats", Account: "acme", Store: store, Space: space,
			Round: "r", Started: timestamppb.New(at), Finished: timestamppb.New(at), Complete: true,
			Counts: map[string]int64{"items": items, "bytes": bytes}})
	}
	count("1", "photos", day(1), 5, 50)
	count("1", "photos", day(3), 7, 70)
	count("1", "photos", day(9), 9, 90)
	count("2", "photos", day(5), 4, 40)
	count("3", "photos", day(1), 1, 10)
	count("1", "maps", day(3), 2, 20)
	must(t, clickhouse.NewSink(db).Store(t.Context(), clickhousetest.Deliver(schemas.Reports, 0, all...)))
	got, err := read.SizesSince(t.Context(), db, "acme", "photos", day(2))
	want := []read.SpaceSize{{"1", day(3), 7, 70}, {"2", day(5), 4, 40}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestCheckRates(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	at := func(s float64) time.Time {
		return time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
	}
	var all []schemas.Body
	check := func(store string, begun, ended float64, bytes int64) {
		all = append(all, &pb.FixityResult{Id: schemas.NewID(), Task: fmt.Sprint("t", len(all)), Account: "acme",
			Store: store, Space: "photos", Item: fmt.Sprint("item-", len(all)), Verdict: pb.Verdict_VERDICT_PASS,
			Started: timestamppb.New(at(begun)), Finished: timestamppb.New(at(ended)), BytesRead: bytes, Final: true})
	}
	for i := range 120 {
		check("1", float64(i)/4, float64(i)/4+0.5, 600)
	}
	check("1", 100, 101, 600) // in a slower minute
	check("2", 0, 300, 30_000)
	check("3", 0, 1, 0) // has read nothing
	check("2", -7200, -7199, 1_000_000)
	must(t, clickhouse.NewSink(db).Store(t.Context(),
		clickhousetest.Deliver(schemas.FixityResults, 0, all...)))
	got, err := read.CheckRates(t.Context(), db, "acme", at(-3600))
	want := []read.CheckRate{{"1", 2, 1200}, {"2", 1.0 / 300, 100}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
