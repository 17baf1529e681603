package app

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep"
)

func TestCompareSizes(t *testing.T) {
	t.Parallel()
	status := func(store, space string, items uint64, bytes int64, unsized uint64) read.SpaceStatus {
		return read.SpaceStatus{Store: store, Space: space, Live: items, Bytes: bytes, Unsized: unsized}
	}
	all := []read.SpaceStatus{
		status("1", "equal", 3, 30, 0), status("2", "equal", 3, 30, 0),
		status("1", "fewer", 3, 30, 0), status("2", "fewer", 2, 12, 0),
		status("1", "more", 1, 10, 0), status("2", "more", 3, 12, 0),
		status("1", "larger", 1, 10, 0), status("2", "larger", 1, 11, 0),
		status("1", "unsized", 2, 10, 1), status("2", "unsized", 2, 20, 0),
		status("1", "absent", 2, 10, 0),
		status("2", "orphan", 2, 10, 0),
		status("1", "emptied", 0, 0, 0), status("2", "emptied", 0, 0, 0),
		status("1", "alone", 2, 10, 0),
	}
	got := map[string]string{}
	incomplete := ""
	for _, p := range compareSizes("acme", all, func(space string) []policy.Pair {
		if space == "alone" {
			return nil
		}
		return []policy.Pair{{Source: "1", Destination: "2"}}
	}) {
		if p.Account != "acme" || p.Source != "1" || p.Destination != "2" {
			t.Errorf("got %+v", p)
		}
		got[p.Space] = p.difference()
		if !p.report(sweep.Round{}).Body.(*pb.Report).GetComplete() {
			incomplete += p.Space
		}
	}
	if incomplete != "unsized" {
		t.Errorf("the reports of %q are incomplete", incomplete)
	}
	const has = "the destination has "
	want := map[string]string{"equal": "", "fewer": has + "1 items fewer and 18 bytes fewer",
		"more": has + "2 items more and 2 bytes more", "larger": has + "1 bytes more", "unsized": "",
		"absent": has + "2 items fewer and 10 bytes fewer", "orphan": has + "2 items more and 10 bytes more", "emptied": ""}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The stats sweep reports the sizes at both stores of a pair, and what differs. The statistics of spaces do not have
// these reports.
func TestStatsOfPairs(t *testing.T) {
	t.Parallel()
	x := newArchive(t, everyRole...)
	x.put("a", "a", nil, "1", "2")
	x.idle()
	count := func(differ int64, detail string) {
		t.Helper()
		all, err := x.app.SweepStats(t.Context(), "acme", time.Now())
		x.must(err)
		if len(all) != 1 || all[0].Counts["pairs"] != 1 || all[0].Counts["pairs_differ"] != differ {
			t.Fatalf("counted %+v, want %d pairs that differ", all, differ)
		}
		x.idle()
		reports, err := read.Reports(t.Context(), x.app.db, read.ReportQuery{Kind: StatsSweep, Newest: true})
		x.must(err)
		var kinds []string
		for _, r := range reports {
			if kinds = append(kinds, r.Kind); r.Kind == SizesKind && (r.Store != "1" || r.Destination != "2" ||
				r.Space != "photos" || r.Round != all[0].ID || r.Detail != detail || r.Counts["source_items"] != 1 ||
				r.Counts["destination_items"] != 1+differ || r.Counts["source_bytes"] != 1) {
				t.Errorf("reported %+v, want %q", r, detail)
			}
		}
		if slices.Sort(kinds); fmt.Sprint(kinds) != "[stats stats stats/pair]" {
			t.Errorf("got reports %v", kinds)
		}
		sizes, err := read.SizesSince(t.Context(), x.app.db, "acme", "photos", time.Now().Add(-time.Hour))
		if err != nil || len(sizes) != 2 {
			t.Errorf("space_stats has %v, %v", sizes, err)
		}
	}
	count(0, "")
	x.put("orphan", "orphan", func(c *pb.Change) { c.Origin = pb.Origin_ORIGIN_DUPLICATION }, "2")
	x.idle()
	count(1, "the destination has 1 items more and 6 bytes more")
}

// A pair of which the account has not both stores is not compared, and one with items of unknown size not to the end.
func TestStatsOfRemovedStore(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	for i := range 3 {
		c := someChange(i)
		c.Store = "2"
		s.send(record.Seal(c))
	}
	s.sink(schemas.RoleSink, schemas.RoleState)
	must(t, s.a.producer.Publish(t.Context(), schemas.Message{Topic: schemas.Policies, Body: &pb.Policy{
		Id: schemas.NewID(), Account: "acme", Document: `{"defaultPolicies":[{"srcStoreId":"1","destStoreId":"2"}]}`,
		By: "ann", Time: timestamppb.Now()}}))
	all, err := s.a.SweepStats(t.Context(), "acme", s.begun)
	if err != nil || len(all) != 1 || all[0].Counts["pairs"] != 0 || all[0].Counts["items"] != 6 {
		t.Errorf("counted %+v, %v", all, err)
	}
}
