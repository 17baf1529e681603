package read_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	in := func(store, item string, d time.Duration) *pb.Change {
		c := clickhousetest.Change(item, d)
		c.Store = store
		c.Id = schemas.ChangeID(c)
		return c
	}
	gone := in("2", "a", time.Hour)
	gone.Op, gone.Digests = pb.Op_OP_DELETE, nil
	differs := in("2", "c", time.Hour)
	claims := in("3", "b", 0)
	// nothing to compare
	claims.Digests, claims.Provenance = map[string]string{"crc32": "00000001"}, pb.Provenance_PROVENANCE_CLAIMED
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, in("1", "a", 0), in("2", "a", 0), gone, in("1", "b", 0),
		in("2", "b", 0),
		in("1", "c", 0), differs, claims)
	failed := clickhousetest.Result(in("2", "b", 0), 3*time.Hour)
	failed.Verdict, failed.Finding, failed.Row = pb.Verdict_VERDICT_FAIL, "content-corrupt", 2
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, clickhousetest.Result(in("1", "a", 0), time.Hour),
		clickhousetest.Result(in("1", "b", 0), 2*time.Hour),
		clickhousetest.Result(in("2", "b", 0), 2*time.Hour),
		failed, clickhousetest.Result(in("2", "c", 0), 30*time.Minute)) // which passed on what was there before

	when := func(d time.Duration) time.Time { return clickhousetest.Epoch.Add(d).Truncate(time.Millisecond) }
	for name, tc := range map[string]struct {
		q    read.StatusQuery
		want []read.SpaceStatus
	}{
		"all": {read.StatusQuery{}, []read.SpaceStatus{
			{Store: "1", Space: "photos", Live: 3, Bytes: 3000, Verified: 2, Overdue: 1, Oldest: when(time.Hour),
				Newest: when(2 * time.Hour)},
			{Store: "2", Space: "photos", Live: 2, Bytes: 5600, Verified: 1, Overdue: 1, Failing: 1,
				Oldest: when(2 * time.Hour), Newest: when(3 * time.Hour)},
			{Store: "3", Space: "photos", Live: 1, Bytes: 1000, Overdue: 1},
		}},
		"overdue": {read.StatusQuery{Store: "1", Space: "photos", PassedBefore: when(2 * time.Hour)},
			[]read.SpaceStatus{
				{Store: "1", Space: "photos", Live: 3, Bytes: 3000, Verified: 2, Overdue: 2, Oldest: when(time.Hour),
					Newest: when(2 * time.Hour)},
			}},
		"another space": {read.StatusQuery{Space: "maps"}, nil},
	} {
		tc.q.Account = "acme"
		got, err := read.FixityStatus(t.Context(), db, tc.q)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%s: FixityStatus =\n%+v, %v, want\n%+v", name, got, err, tc.want)
		}
	}
}
