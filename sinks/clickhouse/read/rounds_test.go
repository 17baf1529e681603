package read_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// logged returns a time of these tests as a table has it.
func logged(minute int) time.Time {
	return clickhousetest.Epoch.Add(time.Duration(minute) * time.Minute).Truncate(time.Millisecond)
}

func TestReports(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var all []schemas.Body
	add := func(kind, store, space, destination string, minute int) {
		all = append(all, &pb.Report{Id: schemas.NewID(), Kind: kind, Account: "acme", Store: store, Space: space,
			DestinationStore: destination, Round: fmt.Sprint(len(all)), Counts: map[string]int64{"equal": int64(len(all))},
			Started: timestamppb.New(logged(0)), Finished: timestamppb.New(logged(minute)), Complete: minute != 4,
			Detail: "d"})
	}
	add("reconcile", "1", "maps", "", 1)         // 0
	add("reconcile", "1", "maps", "", 4)         // 1: newer
	add("reconcile", "2", "maps", "", 3)         // 2
	add("pair", "1", "maps", "2", 2)             // 3
	add("pair", "1", "maps", "3", 5)             // 4
	add("reconcile", "1", "other", "", 6)        // 5
	add("pair/more", "9", "maps", "8", 0)        // 6
	before := proto.CloneOf(all[4].(*pb.Report)) // published twice: only the later one counts
	before.Finished = timestamppb.New(logged(4))
	all = append(all, before)
	must(t, clickhouse.NewSink(db).Store(t.Context(), append(clickhousetest.Deliver(schemas.Reports, 0, all...),
		clickhousetest.Deliver(schemas.Reports, 0, all...)...)))
	for name, tc := range map[string]struct {
		q    read.ReportQuery
		want []string
	}{
		"newest":           {read.ReportQuery{Newest: true}, []string{"5", "4", "1", "2", "3", "6"}},
		"newest of a kind": {read.ReportQuery{Newest: true, Kind: "pair"}, []string{"4", "3", "6"}},
		"of two kinds":     {read.ReportQuery{Kind: "pair", Also: "reconcile", Since: logged(5)}, []string{"5", "4"}},
		"of a part":        {read.ReportQuery{Newest: true, Kind: "pai"}, nil},
		"of a store":       {read.ReportQuery{Newest: true, Store: "2"}, []string{"2", "3"}},
		"of a space":       {read.ReportQuery{Newest: true, Space: "other"}, []string{"5"}},
		"of an account":    {read.ReportQuery{Account: "bell"}, nil},
		"all":              {read.ReportQuery{}, []string{"5", "4", "1", "2", "3", "0", "6"}},
		"the last ones":    {read.ReportQuery{Since: logged(5)}, []string{"5", "4"}},
	} {
		got, err := read.Reports(t.Context(), db, tc.q)
		var rounds []string
		for _, r := range got {
			rounds = append(rounds, r.Round)
		}
		if err != nil || !reflect.DeepEqual(rounds, tc.want) {
			t.Errorf("%s: got %q, %v, want %q", name, rounds, err, tc.want)
		}
	}
	got, err := read.Reports(t.Context(), db, read.ReportQuery{Newest: true, Limit: 1, Kind: "pair"})
	want := []read.RoundReport{{Kind: "pair", Account: "acme", Store: "1", Space: "maps", Destination: "3", Round: "4",
		Started: logged(0), Finished: logged(5),
		Counts: map[string]int64{"equal": 4}, Complete: true, Detail: "d"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// The newest iteration of a job is the one that ended last, also if it did not begin last.
func TestIterations(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var all []schemas.Body
	add := func(name string, began, ended int, failed string) {
		all = append(all, &pb.Job{Id: fmt.Sprintf("%032x", len(all)), Name: name, Error: failed,
			Started: timestamppb.New(logged(began)), Finished: timestamppb.New(logged(ended)),
			Counts: map[string]int64{"items": int64(len(all))}})
	}
	add("fixity/acme/1", 0, 1, "")
	add("fixity/acme/1", 2, 3, "no answer")
	add("fixity/acme/1", 2, 4, "") // the same round, resumed
	add("fixity/acme/2", 2, 5, "no answer")
	add("fixity", 1, 6, "")
	add("fixity.demand/acme/1", 1, 7, "")
	must(t, clickhouse.NewSink(db).Store(t.Context(), append(clickhousetest.Deliver(schemas.Jobs, 0, all...),
		clickhousetest.Deliver(schemas.Jobs, 0, all...)...)))
	for name, tc := range map[string]struct {
		q    read.JobQuery
		want []int64
	}{
		"newest":        {read.JobQuery{Newest: true}, []int64{5, 4, 3, 2}},
		"of a job":      {read.JobQuery{Name: "fixity/acme/1"}, []int64{2, 1, 0}},
		"of some jobs":  {read.JobQuery{Name: "fixity"}, []int64{4, 3, 2, 1, 0}},
		"a few":         {read.JobQuery{Limit: 2}, []int64{5, 4}},
		"the last ones": {read.JobQuery{Since: logged(2)}, []int64{3, 2, 1}},
		"of none":       {read.JobQuery{Name: "fix"}, nil},
	} {
		got, err := read.Iterations(t.Context(), db, tc.q)
		var items []int64
		for _, r := range got {
			items = append(items, r.Counts["items"])
		}
		if err != nil || !reflect.DeepEqual(items, tc.want) {
			t.Errorf("%s: got %v, %v, want %v", name, items, err, tc.want)
		}
	}
	got, err := read.Iterations(t.Context(), db, read.JobQuery{Name: "fixity/acme/2"})
	want := []read.Iteration{{ID: fmt.Sprintf("%032x", 3), Name: "fixity/acme/2", Error: "no answer",
		Started: logged(2), Finished: logged(5),
		Counts: map[string]int64{"items": 3}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}
