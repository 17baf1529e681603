package read_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func TestListsOfDeletes(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	at := func(m int) time.Time { return time.Date(2026, 9, 1, 12, m, 0, 0, time.UTC) }
	var all []schemas.Body
	add := func(item, list, cause, result string, minute int) {
		all = append(all, &pb.DuplicationResult{Id: schemas.NewID(), Command: fmt.Sprint("c", len(all)), Cause: cause,
			Account: "acme", Space: "photos", Item: item, SourceStore: "1", DestinationStore: "2",
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Decision: "C7", Result: result, List: list,
			Outcome: pb.Outcome_OUTCOME_HANDED_ON, Finished: timestamppb.New(at(minute)), Worker: "host/deleter/7",
			ChangeTime: timestamppb.New(at(minute - 1)), Detail: "the brake"})
	}
	add("a", "brake-1", "x", "awaiting-approval", 10)
	add("b", "brake-1", "x", "awaiting-approval", 11)
	add("b", "brake-1", "x", "awaiting-approval", 21) // deleted again, after the operator saw the list
	add("c", "brake-1", "x", "awaiting-approval", 22)
	add("d", "brake-1", "x", "awaiting-approval", 12)
	add("d", "brake-1", "brake-1", "deleted", 25) // approved
	add("e", "brake-1", "x", "awaiting-approval", 13)
	add("e", "brake-2", "brake-1", "awaiting-approval", 26) // deleted again: on another list
	add("f", "", "x", "awaiting-approval", 5)               // before there were lists
	add("g", "", "x", "deleted", 5)
	add("g", "", "x", "gone", 7)
	add("h", "", "x", "gone", 31)
	add("i", "", "x", "copied", 31)
	add("", "brake-1", "action", "deletes-ordered", 24)
	if err := clickhouse.NewSink(db).Store(t.Context(),
		clickhousetest.Deliver(schemas.DuplicationResults, 0, all...)); err != nil {
		t.Fatal(err)
	}
	space := schemas.Copy{Account: "acme", Store: "2", Space: "photos"}
	describe := func(q read.ListQuery) (text string) {
		q.Space, q.Limit = space, 100
		rows, err := read.ListedDeletes(t.Context(), db, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			text += fmt.Sprintf("%s %d %d %t %s;", r.Item, r.Deleted.Minute(), r.Listed.Minute(), r.Approved, r.Result)
			if r.SourceStore != "1" || r.Reason != pb.DuplicationReason_DUPLICATION_REASON_CHANGE || r.Detail != "the brake" {
				t.Errorf("got %+v", r)
			}
		}
		return text
	}
	for name, tt := range map[string]struct {
		q    read.ListQuery
		want string
	}{
		"what waits of the approved list": {read.ListQuery{List: "brake-1", Until: at(20), Waiting: true},
			"a 9 10 true ;b 10 11 true ;c 21 22 false ;"},
		"the next page": {read.ListQuery{List: "brake-1", Until: at(20), Waiting: true, After: "b"}, "c 21 22 false ;"},
		"all of it": {read.ListQuery{List: "brake-1"},
			"a 9 10 false ;b 20 11 false ;c 21 22 false ;d 11 12 false deleted;e 12 13 false awaiting-approval;"},
		"before there were lists": {read.ListQuery{List: read.UnlistedDeletes, Waiting: true}, "f 4 5 false ;"},
		"the next list":           {read.ListQuery{List: "brake-2", Waiting: true}, "e 25 26 false ;"},
		"no list":                 {read.ListQuery{List: "brake-9"}, ""},
	} {
		if got := describe(tt.q); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
	p, err := read.ProgressOfList(t.Context(), db, space, "brake-1")
	want := read.ListProgress{Items: 5, Ended: 2, Deleted: 1, First: at(10), Last: at(22)}
	if err != nil || p != want {
		t.Errorf("got %+v, %v, want %+v", p, err, want)
	}
	counts, err := read.DeletesSince(t.Context(), db, space, at(0))
	if got := fmt.Sprint(counts); err != nil || got != fmt.Sprint([]read.DeleteCount{{at(5), 2}, {at(30), 1}}) {
		t.Errorf("got %s, %v", got, err)
	}
	if n, err := read.LiveCopies(t.Context(), db, space); err != nil || n != 0 {
		t.Errorf("live copies: got %d, %v", n, err)
	}
}
