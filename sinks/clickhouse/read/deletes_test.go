package read_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// A result is a record of duplication.results about space photos of store 2, in partition 0 unless it says otherwise.
type result struct {
	item, effect, list, cause, result string
	edit                              func(*pb.DuplicationResult, *schemas.Delivery)
}

// minute returns the time of the record at an offset.
func minute(off int) time.Time { return time.Date(2026, 9, 1, 12, off, 0, 0, time.UTC) }

const incarnation = 7 // of duplication.results

// keep stores results, at the offsets from 0, and returns the space that they are about.
func keep(t *testing.T, db *clickhouse.DB, account string, all ...result) schemas.Copy {
	t.Helper()
	batch := make([]*schemas.Delivery, len(all))
	for i, r := range all {
		b := &pb.DuplicationResult{Id: schemas.NewID(), Command: fmt.Sprint("c", i), Cause: r.cause,
			Account: account, Space: "photos", Item: r.item, SourceStore: "1", DestinationStore: "2",
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Decision: "C7", Result: r.result, List: r.list,
			Effect: r.effect, Outcome: pb.Outcome_OUTCOME_HANDED_ON, Worker: "host/deleter/7",
			Finished: timestamppb.New(minute(i)), ChangeTime: timestamppb.New(minute(i - 1)), Detail: "the brake"}
		d := clickhousetest.Deliver(schemas.DuplicationResults, int64(i), b)[0]
		d.Incarnation, d.Partition = incarnation, 0
		if r.edit != nil {
			r.edit(b, d)
		}
		batch[i] = d
	}
	must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
	return schemas.Copy{Account: account, Store: "2", Space: "photos"}
}

// listed returns an effect on an item that waits on a list.
func listed(item, effect, list string) result {
	return result{item: item, effect: effect, list: list, cause: "x", result: "awaiting-approval"}
}

// inLog returns a result with a record in a partition of a log of the topic.
func inLog(incarnation uint32, partition int32, r result) result {
	r.edit = func(_ *pb.DuplicationResult, d *schemas.Delivery) {
		d.Incarnation, d.Partition = incarnation, partition
	}
	return r
}

// until returns what was seen of partition 0.
func until(end int64) schemas.Seen {
	return schemas.Seen{Incarnation: incarnation, Ends: map[int32]int64{0: end}}
}

// An effect is on the list in which it was held first: between the decision about the list before and that about it.
func TestListsBetweenDecisions(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	seen := func(ends map[int32]int64) schemas.Seen { return schemas.Seen{Incarnation: incarnation, Ends: ends} }
	for name, tt := range map[string]struct {
		results []result
		seen    []schemas.Seen // by the decisions, in their order
		want    []string       // the items and effects of each list; that of the last one is not decided about
		waiting string         // those of the first list without a result since, if they are others
	}{
		"nothing":     {nil, nil, []string{""}, ""},
		"no decision": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-1")}, nil, []string{"a 1;b 2;"}, ""},
		"on both sides of a decision": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-1")},
			[]schemas.Seen{until(1)}, []string{"a 1;", "b 2;"}, ""},
		"in three lists": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-2"), listed("c", "3", "brake-2")},
			[]schemas.Seen{until(1), until(2)}, []string{"a 1;", "b 2;", "c 3;"}, ""},
		"whatever name it was held under": {[]result{listed("a", "1", "brake-2"), listed("b", "2", "brake-1")},
			[]schemas.Seen{until(1)}, []string{"a 1;", "b 2;"}, ""},
		"the same effect after a decision": {[]result{listed("a", "1", "brake-1"), listed("a", "1", "brake-2")},
			[]schemas.Seen{until(1)}, []string{"a 1;", ""}, ""},
		"the same effect after two decisions": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-2"),
			listed("a", "1", "brake-3")}, []schemas.Seen{until(1), until(2)}, []string{"a 1;", "b 2;", ""}, ""},
		"another effect of the item after a decision": {[]result{listed("a", "1", "brake-1"), listed("a", "2", "brake-2")},
			[]schemas.Seen{until(1)}, []string{"a 1;", "a 2;"}, ""},
		"an earlier effect of the item again": {[]result{listed("a", "1", "brake-1"), listed("a", "2", "brake-2"),
			listed("a", "1", "brake-2")}, []schemas.Seen{until(1)}, []string{"a 1;", "a 2;"}, ""},
		"two effects of one item": {[]result{listed("a", "2", "brake-1"), listed("a", "1", "brake-1")}, nil,
			[]string{"a 1;"}, ""},
		"two effects of one item, decided": {[]result{listed("a", "2", "brake-1"), listed("a", "1", "brake-1")},
			[]schemas.Seen{until(2)}, []string{"a 1;", ""}, ""},
		"nothing was seen": {[]result{listed("a", "1", "brake-1")}, []schemas.Seen{until(0)}, []string{"", "a 1;"}, ""},
		"less was seen than before": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-1")},
			[]schemas.Seen{until(2), until(1)}, []string{"a 1;b 2;", "", ""}, ""},
		"of two partitions": {[]result{inLog(incarnation, 0, listed("a", "1", "brake-1")),
			inLog(incarnation, 3, listed("b", "2", "brake-1")), inLog(incarnation, 0, listed("c", "3", "brake-1"))},
			[]schemas.Seen{seen(map[int32]int64{0: 1, 3: 2})}, []string{"a 1;b 2;", "c 3;"}, ""},
		"of a partition that was not seen": {[]result{inLog(incarnation, 0, listed("a", "1", "brake-1")),
			inLog(incarnation, 3, listed("b", "2", "brake-1"))},
			[]schemas.Seen{until(9)}, []string{"a 1;", "b 2;"}, ""},
		"of another topic": {[]result{inLog(incarnation+1, 0, listed("a", "1", "brake-1")),
			inLog(incarnation, 0, listed("b", "2", "brake-1"))}, []schemas.Seen{until(9)}, []string{"b 2;", ""}, ""},
		"in another topic before": {[]result{inLog(incarnation+1, 0, listed("a", "1", "brake-1")),
			inLog(incarnation, 0, listed("a", "1", "brake-1"))}, []schemas.Seen{until(9)}, []string{"a 1;", ""}, ""},
		"another kind": {[]result{listed("a", "1", "unreported-1"), listed("b", "2", "brakes-1"),
			listed("c", "3", "brake-1")}, nil, []string{"c 3;"}, ""},
		"the space itself": {[]result{listed("", "1", "brake-1"), listed("a", "2", "brake-1")}, nil,
			[]string{" 1;a 2;"}, ""},
		"with results since": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-1"),
			listed("c", "3", "brake-1"), {"b", "2", "brake-1", "brake-1", "deleted", nil},
			{"c", "", "", "brake-1", "not-deleted", nil}}, []schemas.Seen{until(3)}, []string{"a 1;b 2;c 3;", ""}, "a 1;"},
		"approved, but another effect was due": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-1"),
			{"a", "3", "brake-2", "brake-1", "awaiting-approval", nil}}, []schemas.Seen{until(2)},
			[]string{"a 1;b 2;", "a 3;"}, "b 2;"},
		"with results of another list": {[]result{listed("a", "1", "brake-1"),
			{"a", "9", "approve-1", "approve-1", "kept", nil}, {"a", "1", "", "brake-2", "kept", nil}}, nil,
			[]string{"a 1;"}, "a 1;"},
		"with an item that is not to be deleted any more": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-1"),
			{"a", "", "", "x", "in-sync", nil}}, nil, []string{"b 2;"}, "b 2;"},
		"with one that was deleted from another list": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-1"),
			{"a", "9", "approve-1", "approve-1", "deleted", nil}}, nil, []string{"b 2;"}, "b 2;"},
		"held again after that": {[]result{listed("a", "1", "brake-1"), {"a", "", "", "x", "not-deleted", nil},
			listed("a", "3", "brake-1")}, nil, []string{"a 3;"}, "a 3;"},
		"found before the decision, which covers it": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-1"),
			{"a", "", "", "x", "in-sync", nil}}, []schemas.Seen{until(3)}, []string{"b 2;", ""}, "b 2;"},
		"found after the decision": {[]result{listed("a", "1", "brake-1"), {"a", "", "", "x", "gone", nil}},
			[]schemas.Seen{until(1)}, []string{"a 1;", ""}, "a 1;"},
	} {
		t.Run(name, func(t *testing.T) {
			space := keep(t, db, name, tt.results...)
			for n, want := range tt.want {
				q := read.ListQuery{Space: space, Kind: "brake", Name: fmt.Sprint("brake-", n+1), Before: tt.seen[:n],
					Limit: 1}
				if n < len(tt.seen) {
					q.Until = &tt.seen[n]
				}
				for waiting, want := range map[bool]string{false: want, true: cmp.Or(tt.waiting, want)} {
					if q.Waiting = waiting; waiting && n > 0 {
						continue
					}
					got, items := "", pagesOf(t, db, q)
					for _, r := range items {
						got += r.Item + " " + r.Effect + ";"
					}
					if got != want {
						t.Errorf("%s, waiting %t: got %q, want %q", q.Name, waiting, got, want)
					}
				}
				p, err := read.ProgressOfList(t.Context(), db, q)
				if items := strings.Count(want, ";"); err != nil || p.Items != uint64(items) ||
					n == 0 && tt.waiting != "" && p.Ended != uint64(items-strings.Count(tt.waiting, ";")) {
					t.Errorf("%s: got %+v, %v", q.Name, p, err)
				}
			}
		})
	}
}

// pagesOf returns what is on a list, page by page.
func pagesOf(t *testing.T, db *clickhouse.DB, q read.ListQuery) (all []read.ListedDelete) {
	t.Helper()
	for {
		page, err := read.ListedDeletes(t.Context(), db, q)
		must(t, err)
		if len(page) == 0 || page[len(page)-1].Item == q.After && len(all) > 0 {
			return all
		}
		all, q.After = append(all, page...), page[len(page)-1].Item
		if q.After == "" { // the space itself: the next page would begin with it again
			q.Limit = 100
			page, err := read.ListedDeletes(t.Context(), db, q)
			must(t, err)
			return append(all, page[1:]...)
		}
	}
}

func TestSeenResults(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for name, tt := range map[string]struct {
		results []result
		want    string
	}{
		"nothing": {nil, "00000000:"},
		"one partition": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "brake-2"),
			{"c", "3", "", "x", "deleted", nil}}, "00000007:0=3"},
		"two partitions": {[]result{listed("a", "1", "brake-1"), inLog(7, 3, listed("b", "2", "brake-2")),
			listed("c", "3", "brake-1")}, "00000007:0=3,3=2"},
		"a newer topic": {[]result{inLog(9, 0, listed("a", "1", "brake-1")), inLog(9, 4, listed("b", "2", "brake-1")),
			inLog(8, 3, listed("c", "3", "brake-2"))}, "00000008:3=3"},
		"of other kinds": {[]result{listed("a", "1", "brake-1"), listed("b", "2", "approve-1"),
			listed("c", "3", "brakes-1")}, "00000007:0=3"},
		"a dead letter": {[]result{listed("a", "1", "brake-1"), {"b", "", "", "x", "copied",
			func(_ *pb.DuplicationResult, d *schemas.Delivery) {
				d.Topic, d.From, d.Incarnation = schemas.Dead, schemas.Dead, 9
			}},
		}, "00000007:0=1"},
	} {
		t.Run(name, func(t *testing.T) {
			space := keep(t, db, name, tt.results...)
			got, err := read.SeenResults(t.Context(), db, space)
			if err != nil || got.String() != tt.want {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
			if got, err = read.SeenResults(t.Context(), db, space.In("3")); err != nil || len(got.Ends) > 0 {
				t.Errorf("of another store: got %s, %v", got, err)
			}
		})
	}
}

// A list begins at the first record that holds an effect of it.
func TestFirstOfList(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	space := keep(t, db, "acme", inLog(9, 1, listed("o", "1", "brake-1")), listed("a", "1", "brake-1"),
		inLog(incarnation, 3, listed("b", "2", "brake-1")), listed("c", "3", "brake-1"), listed("a", "1", "brake-2"),
		listed("c", "4", "brake-2"), listed("d", "5", "approve-1"), listed("c", "4", "brake-2"))
	decided := schemas.Seen{Incarnation: incarnation, Ends: map[int32]int64{0: 4, 3: 3}}
	for name, tt := range map[string]struct {
		q    read.ListQuery
		want map[int32]int64
	}{
		"not decided about": {read.ListQuery{Kind: "brake", Name: "brake-1"}, map[int32]int64{0: 1, 3: 2}},
		"decided about":     {read.ListQuery{Kind: "brake", Name: "brake-1", Until: &decided}, map[int32]int64{0: 1, 3: 2}},
		"the next one": {read.ListQuery{Kind: "brake", Name: "brake-2", Before: []schemas.Seen{decided}},
			map[int32]int64{0: 5}},
		"an empty one": {read.ListQuery{Kind: "unreported", Name: "unreported-1"}, nil},
	} {
		tt.q.Space = space
		got, err := read.FirstOfList(t.Context(), db, tt.q)
		if err != nil || !maps.Equal(got, tt.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, tt.want)
		}
	}
}

func TestResultsOfEffect(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	partition3 := func(_ *pb.DuplicationResult, d *schemas.Delivery) { d.Incarnation, d.Partition = 8, 3 }
	done := func(r *pb.DuplicationResult, _ *schemas.Delivery) { r.Outcome = pb.Outcome_OUTCOME_DONE }
	space := keep(t, db, "acme", listed("a", "1-x", "brake-1"), listed("a", "2-x", "brake-1"),
		listed("b", "1-x", "brake-1"), result{"a", "1-y", "brake-2", "brake-1", "awaiting-approval", nil},
		result{"a", "1-x", "brake-1", "brake-1", "kept", nil}, result{"a", "1-x", "brake-1", "brake-1", "deleted", done},
		result{"a", "1-y", "brake-1", "brake-1", "deleted", done},
		result{"a", "1-x", "approve-1", "x", "awaiting-approval", partition3})
	at := space
	at.Item = "a"
	all, err := read.ResultsOfEffect(t.Context(), db, at, "1-x", "1")
	slices.SortFunc(all, func(a, b read.EffectResult) int { return cmp.Compare(a.Offset, b.Offset) })
	want := []read.EffectResult{
		{schemas.Coordinates{Incarnation: incarnation, Offset: 0}, "brake-1", "1-x", true, false},
		{schemas.Coordinates{Incarnation: incarnation, Offset: 3}, "brake-2", "1-y", true, false},
		{schemas.Coordinates{Incarnation: incarnation, Offset: 5}, "brake-1", "1-x", false, true},
		{schemas.Coordinates{Incarnation: 8, Partition: 3, Offset: 7}, "approve-1", "1-x", true, false},
	}
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("got %+v, %v, want %+v", all, err, want)
	}
	if all, err := read.ResultsOfEffect(t.Context(), db, at.In("3"), "1-x", "1"); err != nil || len(all) > 0 {
		t.Errorf("in another store: got %+v, %v", all, err)
	}
}

func TestDecisionsAbout(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var all []*schemas.Delivery
	add := func(space, action, target, before string) *pb.AdminAction {
		a := &pb.AdminAction{Id: schemas.NewID(), Account: "acme", Store: "2", Space: space, Action: action, Who: "ann",
			Target: target, Reason: "why", Before: before, After: "00000007:0=2", Time: timestamppb.New(minute(9 - len(all)))}
		d := clickhousetest.Deliver(schemas.Admin, int64(len(all)), a)[0]
		all = append(all, d)
		return a
	}
	closed := add("photos", "close-list", "acme/2/photos//deletes-held/brake-1", "")
	add("photos", "close-incident", "acme/2/photos//deletes-held/brake-1", "")
	add("music", "refuse-list", "acme/2/music//deletes-held/brake-1", "")
	approved := add("photos", "approve-list", "acme/2/photos//deletes-held/brake-1", closed.GetId())
	refused := add("photos", "refuse-list", "acme/2/photos//rewrites-held/rewrites-1", "")
	slices.Reverse(all) // stored in another order
	must(t, clickhouse.NewSink(db).Store(t.Context(), all))
	got, err := read.DecisionsAbout(t.Context(), db, "acme", "photos")
	if err != nil || len(got) != 3 {
		t.Fatalf("got %v, %v", got, err)
	}
	for i, want := range []*pb.AdminAction{closed, approved, refused} {
		want.Account, want.Store, want.Space = "", "", "" // the target has them
		if !proto.Equal(got[i], want) {
			t.Errorf("got %v, want %v", got[i], want)
		}
	}
}

// A list of rewrites has the content that was held last until the decision, whatever the clocks of the workers say.
func TestListsOfRewrites(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	rewrite := func(item, effect, decision, list, cause, outcome, version string) result {
		return result{item, effect, list, cause, outcome, func(r *pb.DuplicationResult, d *schemas.Delivery) {
			r.Decision, r.SourceVersion = decision, version
			r.Digests = map[string]string{"md5": fmt.Sprintf("%032d", d.Offset)}
			if d.Offset == 0 {
				r.Finished = timestamppb.New(minute(2))
			}
		}}
	}
	space := keep(t, db, "acme",
		rewrite("a", "1", "C4", "rewrites-1", "x", "awaiting-approval", "v1"),
		rewrite("a", "2", "C4", "rewrites-1", "x", "awaiting-approval", "v2"),
		rewrite("b", "1", "C4n", "rewrites-1", "x", "awaiting-approval", "v1"),
		rewrite("a", "3", "C4", "rewrites-1", "x", "awaiting-approval", "v3"), // not seen
		rewrite("b", "1", "C4", "rewrites-1", "rewrites-1", "copied", ""),
		rewrite("c", "", "C4", "", "x", "copied", ""),
		rewrite("d", "", "C5", "", "x", "copied", ""),
		rewrite("e", "", "C4n", "", "x", "copied", ""),
	)
	decided := until(3)
	q := read.ListQuery{Space: space, Kind: "rewrites", Name: "rewrites-1", Until: &decided, Waiting: true, Limit: 10}
	rows, err := read.ListedDeletes(t.Context(), db, q)
	if err != nil || len(rows) != 1 || rows[0].Item != "a" || rows[0].Version != "v2" || rows[0].Effect != "2" ||
		rows[0].Digests["md5"] != fmt.Sprintf("%032d", 1) {
		t.Errorf("got %+v, %v", rows, err)
	}
	p, err := read.ProgressOfList(t.Context(), db, q)
	want := read.ListProgress{Items: 2, Ended: 1, Done: 1, Source: "1", First: minute(1), Last: minute(2)}
	if err != nil || p != want {
		t.Errorf("got %+v, %v, want %+v", p, err, want)
	}
	counts, err := read.ExecutedSince(t.Context(), db, space, minute(0), read.Rewrites)
	if got := fmt.Sprint(counts); err != nil || got != fmt.Sprint([]read.ExecutedCount{{minute(5), 2}}) {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestListsOfDeletes(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	real := []result{
		listed("a", "1", "brake-1"),
		listed("b", "2", "brake-1"),
		listed("", "3", "approve-1"), // of the space itself
		listed("z", "4", "approve-1"),
		listed("b", "5", "brake-1"), // deleted again
		{"g", "", "", "x", "deleted", nil},
		{"g", "", "", "x", "gone", nil},
		listed("c", "6", "brake-1"),
		listed("d", "7", "brake-1"),
		listed("e", "8", "brake-1"),
		listed("b", "9", "brake-1"), // deleted again, not seen
		{"", "", "brake-1", "action", "deletes-ordered", nil},
		{"d", "7", "brake-1", "brake-1", "deleted", nil},            // approved
		{"e", "10", "brake-2", "brake-1", "awaiting-approval", nil}, // another effect: on another list
		{"h", "", "", "x", "gone", nil},
		{"i", "", "", "x", "copied", nil},
		{"", "", "", "x", "deleted", nil},
	}
	all := slices.Clone(real)
	for _, r := range real {
		for _, item := range []string{r.item, "z"} { // dry runs do not matter anywhere
			dry := result{item, r.effect, r.list, r.cause, "dry-run", func(b *pb.DuplicationResult, _ *schemas.Delivery) {
				b.WouldBe, b.Detail = r.result, "a dry run"
			}}
			all = append(all, dry)
		}
	}
	space := keep(t, db, "acme", all...)
	decided := until(10)
	describe := func(q read.ListQuery) (text string) {
		q.Space, q.Limit = space, 100
		rows, err := read.ListedDeletes(t.Context(), db, q)
		must(t, err)
		for _, r := range rows {
			text += fmt.Sprintf("%s %s %d %d %s;", r.Item, r.Effect, r.Deleted.Minute(), r.Listed.Minute(), r.Result)
			if r.SourceStore != "1" || r.Reason != pb.DuplicationReason_DUPLICATION_REASON_CHANGE || r.Detail != "the brake" {
				t.Errorf("got %+v", r)
			}
		}
		return text
	}
	first := read.ListQuery{Kind: "brake", Name: "brake-1", Until: &decided}
	waiting, page := first, first
	waiting.Waiting, page.Waiting, page.After = true, true, "a"
	second := read.ListQuery{Kind: "brake", Name: "brake-2", Before: []schemas.Seen{decided}, Waiting: true}
	for name, tt := range map[string]struct {
		q    read.ListQuery
		want string
	}{
		"what waits of the approved list": {waiting, "a 1 59 0 ;b 5 3 1 ;c 6 6 7 ;"},
		"the next page":                   {page, "b 5 3 1 ;c 6 6 7 ;"},
		"all of it": {first,
			"a 1 59 0 ;b 5 3 1 ;c 6 6 7 ;d 7 7 8 deleted;e 8 8 9 awaiting-approval;"},
		"the next list": {second, "b 9 9 10 ;e 10 12 13 ;"},
		"the space":     {read.ListQuery{Kind: "approve", Name: "approve-1", Waiting: true}, "z 4 2 3 ;"},
		"no list":       {read.ListQuery{Kind: "unreported", Name: "unreported-1"}, ""},
	} {
		if got := describe(tt.q); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
	first.Space, second.Space = space, space
	p, err := read.ProgressOfList(t.Context(), db, first)
	want := read.ListProgress{Items: 5, Ended: 2, Done: 1, Source: "1", First: minute(0), Last: minute(9)}
	if err != nil || p != want {
		t.Errorf("got %+v, %v, want %+v", p, err, want)
	}
	p, err = read.ProgressOfList(t.Context(), db, second)
	want = read.ListProgress{Items: 2, Source: "1", First: minute(10), Last: minute(13)}
	if err != nil || p != want {
		t.Errorf("the next list: got %+v, %v, want %+v", p, err, want)
	}
	counts, err := read.ExecutedSince(t.Context(), db, space, minute(0), read.Deletes)
	if got := fmt.Sprint(counts); err != nil || got != fmt.Sprint([]read.ExecutedCount{{minute(5), 2}, {minute(10), 1},
		{minute(15), 1}}) {
		t.Errorf("got %s, %v", got, err)
	}
	if n, err := read.LiveCopies(t.Context(), db, space); err != nil || n != 0 {
		t.Errorf("live copies: got %d, %v", n, err)
	}
}

// A decision keeps the copies of a list until a later result, or the record of the copy, says that it is over.
func TestKeptOfList(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for name, tt := range map[string]struct {
		kind string
		more []result // after a, b and c were held, and the decision
		gone []string // from the records
		want int64
	}{
		"all":                    {"brake", nil, nil, 3},
		"a sweep finds it again": {"brake", []result{{"a", "a", "", "x", "kept", nil}}, nil, 3},
		"the source is back":     {"brake", []result{{"a", "", "", "x", "in-sync", nil}}, nil, 2},
		"it was restored": {"brake", []result{{"a", "", "brake-1", "brake-1", "restored",
			func(r *pb.DuplicationResult, _ *schemas.Delivery) {
				r.SourceStore, r.DestinationStore, r.Reason = "2", "1", pb.DuplicationReason_DUPLICATION_REASON_RESTORE
			}}}, nil, 2},
		"one could not be restored":   {"brake", []result{{"a", "", "brake-1", "brake-1", "restore-failed", nil}}, nil, 3},
		"the copy is gone":            {"brake", nil, []string{"b", "c"}, 1},
		"its next content was copied": {"rewrites", []result{{"a", "", "", "x", "copied", nil}}, nil, 2},
		"it was repaired alone":       {"repairs", []result{{"a", "", "", "x", "repaired", nil}}, nil, 2},
		"another one was repaired":    {"repairs", []result{{"z", "", "", "x", "repaired", nil}}, nil, 3},
	} {
		t.Run(name, func(t *testing.T) {
			all, copies := []result{}, []schemas.Body{}
			for n, item := range []string{"a", "b", "c"} {
				all = append(all, listed(item, item, tt.kind+"-1"))
				c := clickhousetest.Change(item, time.Duration(n))
				c.Account, c.Store = name, "2"
				copies = append(copies, c)
				if slices.Contains(tt.gone, item) {
					c = proto.CloneOf(c)
					c.Op, c.Time = pb.Op_OP_DELETE, clickhousetest.At(time.Minute)
					copies = append(copies, c)
				}
			}
			must(t, clickhouse.NewState(db).Store(t.Context(), clickhousetest.Deliver(schemas.Changes, 0, copies...)))
			decided := until(3)
			q := read.ListQuery{Space: keep(t, db, name, append(all, tt.more...)...), Kind: tt.kind, Name: tt.kind + "-1",
				Until: &decided}
			if n, err := read.KeptOfList(t.Context(), db, q); err != nil || n != tt.want {
				t.Errorf("got %d, %v, want %d", n, err, tt.want)
			}
		})
	}
}

// The results of the restores of a refused list go the other way, and count for that list alone.
func TestRestoresOfAList(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	restored := func(item, list, from, outcome, detail, err string) result {
		return result{item, "", list, list, outcome, func(r *pb.DuplicationResult, _ *schemas.Delivery) {
			r.SourceStore, r.DestinationStore, r.Decision, r.Detail, r.Error = from, "1", "C0r", detail, err
			r.Reason = pb.DuplicationReason_DUPLICATION_REASON_RESTORE
		}}
	}
	lists := []string{"brake-1", "brake-2"}
	ends := []schemas.Seen{until(4), until(8)}
	var all []result
	for n, list := range lists {
		for _, item := range []string{"a", "b", "c", "d"} {
			all = append(all, listed(item, fmt.Sprint(item, n), list))
		}
	}
	for _, list := range lists {
		all = append(all,
			restored("a", list, "2", "restored", "from store 2", ""),
			restored("b", list, "2", "restore-moot", "put again", ""),
			restored("c", list, "2", "dead", "", "no such store"),
			restored("d", list, "3", "restored", "the list of another store", ""))
	}
	all = append(all, result{"", "", "brake-1", "action", "restores-ordered",
		func(r *pb.DuplicationResult, _ *schemas.Delivery) { r.Detail = "4 restores" }})
	space := keep(t, db, "acme", all...)
	for n, list := range lists {
		q := read.ListQuery{Space: space, Kind: "brake", Name: list, Before: ends[:n], Until: &ends[n], Limit: 9}
		p, err := read.ProgressOfList(t.Context(), db, q)
		want := read.ListProgress{Items: 4, Ended: 3, Restored: 1, Source: "1", First: minute(4 * n), Last: minute(4*n + 3)}
		if err != nil || p != want {
			t.Errorf("%s: got %+v, %v, want %+v", list, p, err, want)
		}
		rows, err := read.ListedDeletes(t.Context(), db, q)
		var got string
		for _, r := range rows {
			got += fmt.Sprintf("%s %s (%s) %t;", r.Item, r.Result, r.Why, r.Back())
		}
		text := "a restored (from store 2) true;b restore-moot (put again) false;c dead (no such store) false;d  () false;"
		if err != nil || got != text {
			t.Errorf("%s: got %s, %v, want %s", list, got, err, text)
		}
		q.Waiting = true
		left, err := read.ListedDeletes(t.Context(), db, q)
		if err != nil || len(left) != 1 || left[0].Item != "d" {
			t.Errorf("%s: left %v, %v", list, left, err)
		}
	}
	r, err := read.ResultOfDecision(t.Context(), db, space, "action")
	if err != nil || r != (read.DecisionResult{Result: "restores-ordered", Detail: "4 restores"}) {
		t.Errorf("got %+v, %v", r, err)
	}
}
