package read_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A measurement counts the queries of a context and the rows that they have read, as the engine reports them.
type measurement struct {
	mu      sync.Mutex
	queries int
	rows    int64
}

// measured returns a context that measures its queries.
func measured(ctx context.Context) (context.Context, *measurement) {
	r := &measurement{}
	return ch.Context(ctx, ch.WithProfileEvents(func(events []ch.ProfileEvent) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, e := range events {
			switch e.Name {
			case "Query":
				r.queries++
			case "SelectedRows":
				r.rows += e.Value
			}
		}
	})), r
}

// A queryCost is a query over all rows of a table, and the rows that each of its queries may read, in granules: the
// engine reads whole granules.
type queryCost struct {
	ask  func(ctx context.Context, db *clickhouse.DB) (rows int, err error)
	rows int // number of rows that it returns
	most []int64
}

// Number of rows in a granule.
const (
	ofLog   = 8192
	ofState = 256
)

// queryCosts returns the queries. The rows of an item, of a copy or of a time are in one granule of a part, or in
// two if they cross a border.
func queryCosts(f fillSize) map[string]queryCost {
	const (
		point = 2 * bigParts * ofLog
		copy1 = 2 * bigParts * ofState
	)
	space := int64(f.space() + 3*ofState) // rows of the state in one store
	c := schemas.Copy{Account: "acme", Store: "2", Space: "space-07", Item: "img-00000340.tif"}
	may := read.Span{From: time.Date(2025, 5, 1, 0, 0, 0, 0, time.UTC),
		To: time.Date(2025, 6, 1, 0, 0, 0, 0, time.UTC)}
	return map[string]queryCost{
		"timeline of an item": {func(ctx context.Context, db *clickhouse.DB) (int, error) {
			events, err := read.Timeline(ctx, db, c.Account, c.Space, c.Item)
			return len(events), err
		}, 60, []int64{point, point, point, 0}},
		"fixity status of a space in a store": {func(ctx context.Context, db *clickhouse.DB) (int, error) {
			all, err := read.FixityStatus(ctx, db, read.StatusQuery{Account: c.Account, Store: c.Store, Space: c.Space})
			if len(all) == 1 && (all[0].Live != uint64(f.space()) || all[0].Verified != all[0].Live/10*9 ||
				all[0].Overdue != all[0].Live/10) {
				return 0, fmt.Errorf("it is %+v", all[0])
			}
			return len(all), err
		}, 1, []int64{space}},
		"overdue copies of a space": {func(ctx context.Context, db *clickhouse.DB) (int, error) {
			copies, _, err := read.NewDue(db).Due(ctx,
				schemas.DueQuery{Account: c.Account, Store: c.Store, Space: c.Space, PassedBefore: may.From, Limit: 10})
			return len(copies), err
		}, 10, []int64{space, 10 * point, 10 * copy1}},
		"bit history of a copy": {func(ctx context.Context, db *clickhouse.DB) (int, error) {
			checks, err := read.ResultsOf(ctx, db, c)
			return len(checks), err
		}, 10, []int64{point}},
	}
}

// The cost of a query depends on the size of its result, not on the size of the table.
func TestQueryCosts(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	f := fillSize{rows: need.Amount(500_000, 10_000_000, 10_000_000)}
	f.into(t, db, map[string]string{"audit_log": fillAudit, "bit_log": fillChecks, "duplication_log": fillResults,
		"copy_state": fillState})
	for name, q := range queryCosts(f) {
		t.Run(name, func(t *testing.T) {
			ctx, r := measured(t.Context())
			rows, err := q.ask(ctx, db)
			if err != nil || rows != q.rows {
				t.Fatalf("got %d rows, %v, want %d", rows, err, q.rows)
			}
			if r.queries != len(q.most) {
				t.Fatalf("%d queries were measured, want %d", r.queries, len(q.most))
			}
			t.Logf("rows: %d, at most %d", r.rows, q.most)
			// Concurrent queries cannot be distinguished, so the sum of all counts.
			var most int64
			for _, n := range q.most {
				most += min(n, int64(f.rows)/4*3) // in small tables, a full scan must fail, too
			}
			if r.rows == 0 || r.rows > most {
				t.Errorf("the queries read %d rows, want 1 to %d", r.rows, most)
			}
		})
	}
}
