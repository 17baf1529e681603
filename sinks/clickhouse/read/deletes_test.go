package read_test

import (
	"fmt"
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

// A list of rewrites has the newest content until it was approved.
func TestListsOfRewrites(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	at := func(m int) time.Time { return time.Date(2026, 9, 1, 12, m, 0, 0, time.UTC) }
	var all []schemas.Body
	add := func(item, decision, list, cause, result, version string, minute int) {
		all = append(all, &pb.DuplicationResult{Id: schemas.NewID(), Command: fmt.Sprint("c", len(all)), Cause: cause,
			Account: "acme", Space: "photos", Item: item, SourceStore: "1", DestinationStore: "2",
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Decision: decision, Result: result, List: list,
			Outcome: pb.Outcome_OUTCOME_HANDED_ON, Finished: timestamppb.New(at(minute)), SourceVersion: version,
			Digests: map[string]string{"md5": fmt.Sprintf("%032d", minute)}})
	}
	add("a", "C4", "rewrites-1", "x", "awaiting-approval", "v1", 10)
	add("a", "C4", "rewrites-1", "x", "awaiting-approval", "v2", 11)
	add("a", "C4", "rewrites-1", "x", "awaiting-approval", "v3", 21)
	add("b", "C4n", "rewrites-1", "x", "awaiting-approval", "v1", 12)
	add("b", "C4", "rewrites-1", "rewrites-1", "copied", "", 25)
	add("c", "C4", "", "x", "copied", "", 5)
	add("d", "C5", "", "x", "copied", "", 6)
	add("e", "C4n", "", "x", "copied", "", 7)
	if err := clickhouse.NewSink(db).Store(t.Context(),
		clickhousetest.Deliver(schemas.DuplicationResults, 0, all...)); err != nil {
		t.Fatal(err)
	}
	space := schemas.Copy{Account: "acme", Store: "2", Space: "photos"}
	rows, err := read.ListedDeletes(t.Context(), db,
		read.ListQuery{Space: space, List: "rewrites-1", Until: at(20), Waiting: true, Limit: 10})
	if err != nil || len(rows) != 1 || rows[0].Item != "a" || rows[0].Version != "v2" || !rows[0].Approved ||
		rows[0].Digests["md5"] != fmt.Sprintf("%032d", 11) {
		t.Errorf("got %+v, %v", rows, err)
	}
	p, err := read.ProgressOfList(t.Context(), db, space, "rewrites-1")
	want := read.ListProgress{Items: 2, Ended: 1, Done: 1, Source: "1", First: at(10), Last: at(21)}
	if err != nil || p != want {
		t.Errorf("got %+v, %v, want %+v", p, err, want)
	}
	counts, err := read.RewritesSince(t.Context(), db, space, at(0))
	if got := fmt.Sprint(counts); err != nil || got != fmt.Sprint([]read.DeleteCount{{at(5), 2}}) {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestListsOfDeletes(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	at := func(m int) time.Time { return time.Date(2026, 9, 1, 12, m, 0, 0, time.UTC) }
	var all []schemas.Body
	add := func(item, list, cause, result string, minute int) {
		r := &pb.DuplicationResult{Id: schemas.NewID(), Command: fmt.Sprint("c", len(all)), Cause: cause,
			Account: "acme", Space: "photos", Item: item, SourceStore: "1", DestinationStore: "2",
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Decision: "C7", Result: result, List: list,
			Outcome: pb.Outcome_OUTCOME_HANDED_ON, Finished: timestamppb.New(at(minute)), Worker: "host/deleter/7",
			ChangeTime: timestamppb.New(at(minute - 1)), Detail: "the brake"}
		all = append(all, r)
		for _, item := range []string{item, "z"} { // dry runs count nowhere
			dry := proto.CloneOf(r)
			dry.Id, dry.Command, dry.Item, dry.Result, dry.WouldBe = schemas.NewID(), r.GetCommand()+"d", item, "dry-run", result
			all = append(all, dry)
		}
	}
	add("a", "brake-1", "x", "awaiting-approval", 10)
	add("b", "brake-1", "x", "awaiting-approval", 11)
	add("b", "brake-1", "x", "awaiting-approval", 21) // deleted again, after the operator saw the list
	add("c", "brake-1", "x", "awaiting-approval", 22)
	add("d", "brake-1", "x", "awaiting-approval", 12)
	add("d", "brake-1", "brake-1", "deleted", 25) // approved
	add("e", "brake-1", "x", "awaiting-approval", 13)
	add("e", "brake-2", "brake-1", "awaiting-approval", 26) // deleted again: on another list
	add("g", "", "x", "deleted", 5)
	add("g", "", "x", "gone", 7)
	add("h", "", "x", "gone", 31)
	add("i", "", "x", "copied", 31)
	add("", "brake-1", "action", "deletes-ordered", 24)
	add("", "approval-3", "x", "awaiting-approval", 14) // of the space itself
	add("z", "approval-3", "x", "awaiting-approval", 15)
	add("", "", "x", "deleted", 32)
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
		"the next list": {read.ListQuery{List: "brake-2", Waiting: true}, "e 25 26 false ;"},
		"the space":     {read.ListQuery{List: "approval-3", Waiting: true}, " 13 14 false ;z 14 15 false ;"},
		"no list":       {read.ListQuery{List: "brake-9"}, ""},
	} {
		if got := describe(tt.q); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
	p, err := read.ProgressOfList(t.Context(), db, space, "brake-1")
	want := read.ListProgress{Items: 5, Ended: 2, Done: 1, Source: "1", First: at(10), Last: at(22)}
	if err != nil || p != want {
		t.Errorf("got %+v, %v, want %+v", p, err, want)
	}
	counts, err := read.DeletesSince(t.Context(), db, space, at(0))
	if got := fmt.Sprint(counts); err != nil || got != fmt.Sprint([]read.DeleteCount{{at(5), 2}, {at(30), 2}}) {
		t.Errorf("got %s, %v", got, err)
	}
	if n, err := read.LiveCopies(t.Context(), db, space); err != nil || n != 0 {
		t.Errorf("live copies: got %d, %v", n, err)
	}
}

// The results of the restores of a refused list go the other way, and count for that list alone.
func TestRestoresOfAList(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	at := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	var all []schemas.Body
	held := func(item, list string) {
		all = append(all, &pb.DuplicationResult{Id: schemas.NewID(), Command: "c", Cause: "x", Account: "acme",
			Space: "photos", Item: item, SourceStore: "1", DestinationStore: "2", Decision: "C7", Result: "awaiting-approval",
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, List: list, Outcome: pb.Outcome_OUTCOME_HANDED_ON,
			Finished: timestamppb.New(at), ChangeTime: timestamppb.New(at)})
	}
	restored := func(item, list, from, result, detail, err string) {
		all = append(all, &pb.DuplicationResult{Id: schemas.NewID(), Command: "c", Cause: list, Account: "acme",
			Space: "photos", Item: item, SourceStore: from, DestinationStore: "1", Decision: "C0r", Result: result, List: list,
			Reason: pb.DuplicationReason_DUPLICATION_REASON_RESTORE, Outcome: pb.Outcome_OUTCOME_DONE, Detail: detail,
			Error: err, Finished: timestamppb.New(at.Add(time.Minute))})
	}
	for _, list := range []string{"brake-1", "brake-2"} {
		for _, item := range []string{"a", "b", "c", "d"} {
			held(item, list)
		}
	}
	for _, list := range []string{"brake-1", "brake-2"} {
		restored("a", list, "2", "restored", "from store 2", "")
		restored("b", list, "2", "restore-moot", "put again", "")
		restored("c", list, "2", "dead", "", "no such store")
		restored("d", list, "3", "restored", "the list of another store", "")
	}
	all = append(all, &pb.DuplicationResult{Id: schemas.NewID(), Command: "o", Cause: "action", Account: "acme",
		Space: "photos", DestinationStore: "2", Decision: "C0r", Result: "restores-ordered", List: "brake-1",
		Outcome: pb.Outcome_OUTCOME_HANDED_ON, Finished: timestamppb.New(at), Detail: "4 restores"})
	if err := clickhouse.NewSink(db).Store(t.Context(),
		clickhousetest.Deliver(schemas.DuplicationResults, 0, all...)); err != nil {
		t.Fatal(err)
	}
	space := schemas.Copy{Account: "acme", Store: "2", Space: "photos"}
	for _, list := range []string{"brake-1", "brake-2"} {
		p, err := read.ProgressOfList(t.Context(), db, space, list)
		counts := read.ListProgress{Items: 4, Ended: 3, Restored: 1, Source: "1", First: at, Last: at}
		if err != nil || p != counts {
			t.Errorf("%s: got %+v, %v, want %+v", list, p, err, counts)
		}
		rows, err := read.ListedDeletes(t.Context(), db, read.ListQuery{Space: space, List: list, Limit: 9})
		var got string
		for _, r := range rows {
			got += fmt.Sprintf("%s %s (%s) %t;", r.Item, r.Result, r.Why, r.Back())
		}
		want := "a restored (from store 2) true;b restore-moot (put again) false;c dead (no such store) false;d  () false;"
		if err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", list, got, err, want)
		}
		left, err := read.ListedDeletes(t.Context(), db, read.ListQuery{Space: space, List: list, Waiting: true, Limit: 9})
		if err != nil || len(left) != 1 || left[0].Item != "d" {
			t.Errorf("%s: left %v, %v", list, left, err)
		}
	}
	r, err := read.ResultOfDecision(t.Context(), db, space, "action")
	if err != nil || r != (read.DecisionResult{Result: "restores-ordered", Detail: "4 restores"}) || r.Lost() {
		t.Errorf("got %+v, %v", r, err)
	}
}
