package read_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// The brakes count in a space, and in all spaces of a store.
func TestCountsOfASpaceAndOfAStore(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var changes, results []schemas.Body
	add := func(account, store, space, item string, op pb.Op, h int) {
		c := clickhousetest.Change(item, time.Duration(h)*time.Hour)
		c.Account, c.Store, c.Space, c.Op = account, store, space, op
		c.Id = schemas.ChangeID(c)
		changes = append(changes, c)
	}
	execute := func(store, space, item, decision, result string) {
		results = append(results, &pb.DuplicationResult{Id: schemas.NewID(), Command: schemas.NewID(), Cause: "x",
			Account: "acme", Space: space, Item: item, SourceStore: "1", DestinationStore: store,
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Decision: decision, Result: result,
			Outcome: pb.Outcome_OUTCOME_DONE, Finished: timestamppb.New(clickhousetest.Epoch.Add(time.Hour))})
	}
	for _, item := range []string{"a", "b", "c"} {
		for _, space := range []string{"bag-1", "bag-2"} {
			add("acme", "2", space, item, pb.Op_OP_ADD, 1)
			execute("2", space, item, "C7", "deleted")
		}
		add("acme", "3", "bag-1", item, pb.Op_OP_ADD, 1)
		add("other", "2", "bag-1", item, pb.Op_OP_ADD, 1)
		execute("3", "bag-1", item, "C7", "deleted")
		execute("2", "bag-2", item, "C4", "copied")
	}
	add("acme", "2", "bag-1", "a", pb.Op_OP_DELETE, 2)
	must(t, clickhouse.NewState(db).Store(t.Context(),
		clickhousetest.Deliver(schemas.Changes, 0, changes...)))
	if err := clickhouse.NewSink(db).Store(t.Context(),
		clickhousetest.Deliver(schemas.DuplicationResults, 0, results...)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		of                      schemas.Copy
		live, deleted, replaced int64
	}{
		"a space":     {schemas.Copy{Account: "acme", Store: "2", Space: "bag-1"}, 2, 3, 0},
		"another one": {schemas.Copy{Account: "acme", Store: "2", Space: "bag-2"}, 3, 3, 3},
		"the store":   {schemas.Copy{Account: "acme", Store: "2"}, 5, 6, 3},
		"no store":    {schemas.Copy{Account: "acme", Store: "9"}, 0, 0, 0},
	} {
		live, err := read.LiveCopies(t.Context(), db, tt.of)
		if err != nil || live != tt.live {
			t.Errorf("%s: %d live copies, %v", name, live, err)
		}
		for kind, q := range map[string]struct {
			what read.Executed
			want int64
		}{"deleted": {read.Deletes, tt.deleted}, "replaced": {read.Rewrites, tt.replaced}} {
			var n int64
			counts, err := read.ExecutedSince(t.Context(), db, tt.of, clickhousetest.Epoch, q.what)
			for _, c := range counts {
				n += int64(c.Count)
			}
			if err != nil || n != q.want {
				t.Errorf("%s: %d %s, %v", name, n, kind, err)
			}
		}
	}
}
