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

// A month to which no row was added for a while becomes one part. Other months are left alone.
func TestClosedMonthsAreMerged(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for _, table := range []string{"bit_log", "duplication_log"} {
		settings, err := db.Count(t.Context(), "read a setting", "SELECT count() AS n FROM system.tables WHERE "+
			"database = ? AND name = ? AND engine_full LIKE '%min_age_to_force_merge_seconds = 259200%' AND "+
			"engine_full LIKE '%min_age_to_force_merge_on_partition_only = 1%'", db.Config().Database, table)
		if err != nil || settings != 1 {
			t.Errorf("%s has the settings %d times, %v", table, settings, err)
		}
	}
	for i := range 3 {
		at := timestamppb.New(time.Date(2026, 3, 1+i, 0, 0, 0, 0, time.UTC))
		r := &pb.FixityResult{Id: schemas.NewID(), Task: fmt.Sprint("t", i), Account: "acme", Store: "1", Space: "photos",
			Item: "a", Verdict: pb.Verdict_VERDICT_PASS, Started: at, Finished: at, Final: true}
		if err := clickhouse.NewSink(db).Store(t.Context(),
			clickhousetest.Deliver(schemas.FixityResults, int64(i), r)); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Exec(t.Context(), "ALTER TABLE {db}.bit_log MODIFY SETTING min_age_to_force_merge_seconds = 1, "+
		"merge_selecting_sleep_ms = 100, max_merge_selecting_sleep_ms = 200"); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); ; {
		parts, err := db.Count(t.Context(), "count parts", "SELECT count() AS n FROM system.parts WHERE "+
			"database = ? AND table = 'bit_log' AND active", db.Config().Database)
		if err != nil {
			t.Fatal(err)
		}
		if parts == 1 {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("there are %d parts", parts)
		}
		<-time.After(100 * time.Millisecond)
	}
}
