package clickhouse_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

// A year to which no row was added for a while becomes one part, and each row stays.
func TestClosedYearsAreMerged(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	count := func(query string, args ...any) int64 {
		t.Helper()
		n, err := db.Count(t.Context(), "count", query, args...)
		must(t, err)
		return n
	}
	tables := []string{"bit_log", "duplication_log", "audit_log"}
	for _, table := range tables {
		if count("SELECT count() AS n FROM system.tables WHERE database = ? AND name = ? AND "+
			"engine_full LIKE '%min_age_to_force_merge_on_partition_only = 1%' AND "+
			"engine_full LIKE '%min_age_to_force_merge_seconds = 2592000%'",
			db.Config().Database, table) != 1 {
			t.Errorf("%s does not have the settings", table)
		}
	}
	for i := range 3 {
		at := timestamppb.New(time.Date(2026, 3, 1+i, 0, 0, 0, 0, time.UTC))
		check := &pb.FixityResult{Id: schemas.NewID(), Task: fmt.Sprint("t", i), Account: "acme", Store: "1",
			Space: "photos", Item: "a", Verdict: pb.Verdict_VERDICT_PASS, Started: at, Finished: at, Final: true}
		change := &pb.Change{Id: schemas.NewID(), Account: "acme", Store: "1", Space: "photos", Item: "a",
			Op: pb.Op_OP_ADD, Time: at, Size: 1}
		for _, batch := range [][]*schemas.Delivery{
			clickhousetest.Deliver(schemas.FixityResults, int64(i), check),
			clickhousetest.Deliver(schemas.Changes, int64(i), change),
		} {
			must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
		}
	}
	for _, table := range tables {
		if table == "duplication_log" { // it has no rows here
			continue
		}
		if err := db.Exec(t.Context(), "ALTER TABLE {db}."+table+" MODIFY SETTING min_age_to_force_merge_seconds = 1, "+
			"merge_selecting_sleep_ms = 100, max_merge_selecting_sleep_ms = 200"); err != nil {
			t.Fatal(err)
		}
		parts := "SELECT count() AS n FROM system.parts WHERE database = ? AND table = ? AND active"
		for begun := time.Now(); count(parts, db.Config().Database, table) != 1; {
			if time.Since(begun) > time.Minute {
				t.Fatalf("%s has %d parts", table, count(parts, db.Config().Database, table))
			}
			<-time.After(100 * time.Millisecond)
		}
		if n := count("SELECT count() AS n FROM {db}." + table); n != 3 {
			t.Errorf("%s has %d rows, want 3", table, n)
		}
	}
}
