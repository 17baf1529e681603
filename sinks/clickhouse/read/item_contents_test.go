package read_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// The contents of items are read in the order of items and times, by pages of the items below a prefix.
func TestItemContents(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var all []schemas.Body
	change := func(item, store string, d time.Duration, op pb.Op) *pb.Change {
		c := clickhousetest.Change(item, d)
		if c.Store, c.Op = store, op; op == pb.Op_OP_DELETE {
			c.Digests, c.Provenance = nil, 0
		}
		c.Id = schemas.ChangeID(c)
		all = append(all, c)
		return c
	}
	first := change("a/1", "1", 0, pb.Op_OP_ADD)
	for _, item := range []string{"a/2", "a/é", "b", "a"} {
		change(item, "1", 0, pb.Op_OP_ADD)
	}
	change("a/1", "2", time.Second, pb.Op_OP_COPY)
	change("a/1", "1", 2*time.Second, pb.Op_OP_DELETE)
	change("a/3", "2", time.Second, pb.Op_OP_SET_PROPERTIES)
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, all...)
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, all...) // a row may be there twice
	damage := clickhousetest.Result(first, time.Minute)
	damage.Verdict, damage.Finding, damage.Row = pb.Verdict_VERDICT_FAIL, "content-corrupt", 2
	damage.Object = &pb.Identity{Version: "v1", Size: 3}
	passed := clickhousetest.Result(first, 2*time.Minute)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, damage, passed)

	ctx, account, space := t.Context(), first.GetAccount(), first.GetSpace()
	for prefix, want := range map[string][]string{
		"":   {"a", "a/1", "a/2", "a/3", "a/é", "b"},
		"a/": {"a/1", "a/2", "a/3", "a/é"},
		"a":  {"a", "a/1", "a/2", "a/3", "a/é"},
		"b":  {"b"}, "c": nil, "%": nil,
	} {
		n, err := read.EstimateItems(ctx, db, read.ItemQuery{Account: account, Space: space, Prefix: prefix})
		if err != nil || n != int64(len(want)) {
			t.Errorf("prefix %q: counted %d, %v, want %d", prefix, n, err, len(want))
		}
		for _, n := range []int{1, 2, 100} {
			var got []string
			for q := (read.ItemQuery{Account: account, Space: space, Prefix: prefix, Limit: n}); ; {
				page, err := read.Items(ctx, db, q)
				must(t, err)
				if got = append(got, page...); len(page) < n {
					break
				}
				q.After = page[len(page)-1]
			}
			if !slices.Equal(got, want) {
				t.Errorf("items with prefix %q in pages of %d: got %q, want %q", prefix, n, got, want)
			}
		}
	}
	changes, _, err := read.ContentChanges(ctx, db, account, space, []string{"a/1", "a/3", "b", "none"})
	must(t, err)
	var got []string
	for _, c := range changes {
		got = append(got, c.GetItem()+" "+c.GetStore()+" "+strings.ToLower(c.GetOp().String()))
	}
	want := []string{"a/1 1 op_add", "a/1 2 op_copy", "a/1 1 op_delete", "b 1 op_add"}
	if !slices.Equal(got, want) || changes[0].GetDigests()["md5"] != first.GetDigests()["md5"] {
		t.Errorf("got %q, want %q", got, want)
	}
	if contents, err := read.PassedContents(ctx, db, account, space, []string{"a/1", "b"}); err != nil ||
		len(contents) != 1 || len(contents["a/1"]) != 1 {
		t.Errorf("passed contents: got %v, %v, want one of a/1", contents, err)
	}
	damaged, err := read.DamagedVersions(ctx, db, schemas.Copy{Account: account, Space: space, Item: "a/1"})
	found := clickhousetest.Millis(clickhousetest.At(time.Minute)).AsTime()
	wantDamaged := []read.DamagedVersion{{Store: "1", Version: "v1", Found: found}}
	if err != nil || !reflect.DeepEqual(damaged, wantDamaged) {
		t.Errorf("damaged versions: got %+v, %v, want %+v", damaged, err, wantDamaged)
	}
}

// An item is lost if it was replaced or deleted in a span, except by a repair, and if it is on no list since.
func TestLostItems(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	q := read.ItemQuery{Account: "acme", Space: "photos", Lost: &read.Lost{Store: "1",
		From: clickhousetest.At(time.Hour).AsTime(), Until: clickhousetest.At(2 * time.Hour).AsTime()}}
	const add, update, remove = pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_DELETE
	var all, held []schemas.Body
	change := func(item string, minute int, op pb.Op, edit ...func(*pb.Change)) {
		c := clickhousetest.Change(item, time.Duration(minute)*time.Minute)
		if c.Op = op; op == remove {
			c.Digests, c.Provenance = nil, 0
		}
		for _, e := range edit {
			e(c)
		}
		c.Id = schemas.ChangeID(c)
		all = append(all, c)
	}
	list := func(item string, minute int, result string) {
		held = append(held, &pb.DuplicationResult{Id: schemas.NewID(), Command: schemas.NewID(), Account: "acme",
			Space: "photos", Item: item, SourceStore: "1", DestinationStore: "9", Decision: "C7", Result: result,
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, List: "brake-1",
			Outcome: pb.Outcome_OUTCOME_HANDED_ON, Finished: clickhousetest.At(time.Duration(minute) * time.Minute)})
	}
	for item, lost := range map[string]struct {
		op     pb.Op
		minute int
		edit   func(*pb.Change)
	}{
		"deleted": {remove, 70, nil}, "replaced": {update, 120, nil}, "added again": {add, 61, nil},
		"found":     {remove, 70, func(c *pb.Change) { c.Origin = pb.Origin_ORIGIN_SWEEP }},
		"-repaired": {update, 70, func(c *pb.Change) { c.Origin = pb.Origin_ORIGIN_REPAIR }},
		"-earlier":  {update, 60, nil}, "-later": {update, 121, nil}, "-listed": {remove, 70, nil},
		"-elsewhere":    {remove, 70, func(c *pb.Change) { c.Store = "9" }},
		"-properties":   {pb.Op_OP_SET_PROPERTIES, 70, nil},
		"listed before": {remove, 70, nil},
	} {
		change(item, 10, add)
		if lost.edit == nil {
			lost.edit = func(*pb.Change) {}
		}
		change(item, lost.minute, lost.op, lost.edit)
	}
	change("-new", 70, add)
	change("new, deleted", 65, add)
	change("new, deleted", 70, remove)
	change("-new, deleted later", 65, add)
	change("-new, deleted later", 130, remove)
	change("-deleted unseen", 65, remove)
	change("-deleted before", 10, add)
	change("-deleted before", 20, remove)
	change("-deleted before", 70, add)
	list("-listed", 80, "awaiting-approval")
	list("listed before", 50, "awaiting-approval")
	list("deleted", 80, "deleted")
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, all...)
	results := clickhousetest.Deliver(schemas.DuplicationResults, 0, held...)
	must(t, clickhouse.NewSink(db).Store(t.Context(), results))
	want := []string{"added again", "deleted", "found", "listed before", "new, deleted", "replaced"}
	var got []string
	for q.Limit = 2; ; q.After = got[len(got)-1] {
		page, err := read.Items(t.Context(), db, q)
		must(t, err)
		if got = append(got, page...); len(page) < q.Limit {
			break
		}
	}
	q.After = ""
	n, first, err := read.CountLost(t.Context(), db, q)
	if at := clickhousetest.Millis(clickhousetest.At(61 * time.Minute)).AsTime(); !slices.Equal(got, want) || err != nil ||
		n != uint64(len(want)) || !first.Equal(at) {
		t.Errorf("got %q, and counted %d, the first at %v, %v, want %q from %v on", got, n, first, err, want, at)
	}
}

// The orders of one run of an action are counted by their last result. Those of an earlier run are not, also if they
// end while this one runs.
func TestRestorations(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	action := schemas.ID("action")
	const first, second = time.Second, time.Minute // when the runs made their orders
	result := func(command string, made, ended time.Duration, result string) *pb.DuplicationResult {
		return &pb.DuplicationResult{Id: schemas.ID("r", command, made.String(), ended.String()), Cause: action,
			Command: schemas.ID(command), Account: "acme", Space: "photos", Item: "item " + command, SourceStore: "2",
			DestinationStore: "1", Decision: "C0r", Result: result, Detail: "about " + command,
			Reason: pb.DuplicationReason_DUPLICATION_REASON_RESTORE, Outcome: pb.Outcome_OUTCOME_DONE,
			ChangeTime: clickhousetest.At(made), Finished: clickhousetest.At(ended)}
	}
	ctx := t.Context()
	other := result("e", second, 2*time.Minute, "restored")
	other.Cause = schemas.ID("another")
	if err := clickhouse.NewSink(db).Store(ctx, clickhousetest.Deliver(schemas.DuplicationResults, 0,
		result("a", first, first, "restore-failed"), result("b", first, 3*time.Minute, "restored"), other,
		result("a", second, 2*time.Minute, "restored"), result("c", second, 2*time.Minute, "restore-moot"),
		result("d", second, 2*time.Minute, "restore-failed"), result("d", second, 3*time.Minute, "already-restored"),
	)); err != nil {
		t.Fatal(err)
	}
	for made, want := range map[time.Duration][]read.Restoration{
		first:     {{"restore-failed", 1}, {"restored", 1}},
		second:    {{"already-restored", 1}, {"restore-moot", 1}, {"restored", 1}},
		time.Hour: nil,
	} {
		q := read.RestorationQuery{Account: "acme", Space: "photos", Action: action, Made: clickhousetest.At(made).AsTime()}
		got, err := read.Restorations(ctx, db, q)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("made at %v: got %v, %v, want %v", made, got, err, want)
		}
	}
	failed, err := read.FailedRestorations(ctx, db, read.RestorationQuery{Account: "acme", Space: "photos",
		Action: action, Made: clickhousetest.At(second).AsTime(), Limit: 10})
	want := []read.FailedRestoration{{Item: "item c", Store: "1", Result: "restore-moot", Detail: "about c"}}
	if err != nil || !slices.Equal(failed, want) {
		t.Errorf("failed: got %+v, %v, want %+v", failed, err, want)
	}
}
