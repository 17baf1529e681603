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

// pages reads all pages of a list.
func pages[T, C any](t *testing.T, n int, read func(after C) ([]T, C, error)) (all []T) {
	t.Helper()
	var after C
	for range 100 {
		page, next, err := read(after)
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, page...); len(page) < n {
			return all
		}
		after = next
	}
	t.Fatalf("after %d rows there is no end", len(all))
	return nil
}

// changeBy returns a change that a user asked for.
func changeBy(user, space, item string, d time.Duration) *pb.Change {
	c := clickhousetest.Change(item, d)
	c.User, c.Space = user, space
	c.Id = schemas.ChangeID(c)
	return c
}

func describeChanges(changes []*pb.Change) (all []string) {
	for _, c := range changes {
		all = append(all, fmt.Sprintf("%v %s/%s %s", c.GetTime().AsTime().Sub(clickhousetest.Epoch), c.GetSpace(),
			c.GetItem(), c.GetUser()))
	}
	return all
}

// Histories are in order, and have each change once, whatever the size of their pages.
func TestHistories(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	space := changeBy("ann", "photos", "", 0)
	space.Op = pb.Op_OP_CREATE_SPACE
	space.Id = schemas.ChangeID(space)
	late := changeBy("bob", "photos", "late", -24*400*time.Hour)
	twice := changeBy("ann", "photos", "b", time.Minute) // in the same millisecond as the other change of b
	twice.Version = "another"
	twice.Id = schemas.ChangeID(twice)
	all := []schemas.Body{space, changeBy("ann", "photos", "c", time.Minute), changeBy("ann", "photos", "b", time.Minute),
		twice, changeBy("bob", "photos", "a", time.Minute),
		changeBy("ann", "maps", "a", time.Minute), changeBy("ann", "photos", "b", time.Hour), late,
		changeBy("ann", "photos", "d", 24*62*time.Hour)}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, all...)
	clickhousetest.StoreBoth(t, db, schemas.Changes, 100, all[1:4]...) // published again
	for _, n := range []int{1, 2, 3, 100} {
		t.Run(fmt.Sprintf("pages of %d", n), func(t *testing.T) {
			got := describeChanges(pages(t, n,
				func(after read.ChangeCursor) ([]*pb.Change, read.ChangeCursor, error) {
					return read.SpaceHistory(t.Context(), db,
						read.SpaceQuery{Account: "acme", Space: "photos", After: after, Limit: n})
				}))
			want := []string{"-9600h0m0s photos/late bob", "0s photos/ ann", "1m0s photos/a bob", "1m0s photos/b ann",
				"1m0s photos/b ann", "1m0s photos/c ann",
				"1h0m0s photos/b ann", "1488h0m0s photos/d ann"}
			if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
				t.Errorf("the space's history is\n%q, want\n%q", got, want)
			}
		})
	}
	for name, tc := range map[string]struct {
		span read.Span
		want int
	}{
		"from is within, to is not": {read.Span{From: clickhousetest.Epoch, To: clickhousetest.Epoch.Add(time.Hour)}, 5},
		"one millisecond later": {read.Span{From: clickhousetest.Epoch.Add(time.Millisecond),
			To: clickhousetest.Epoch.Add(time.Hour + time.Millisecond)}, 5},
		"before all":     {read.Span{To: time.Date(1800, 1, 1, 0, 0, 0, 0, time.UTC)}, 0},
		"far beyond all": {read.Span{From: time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)}, 0},
		"wide": {read.Span{From: time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC),
			To: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, 8},
	} {
		tc.span.From, tc.span.To = tc.span.From.Truncate(time.Millisecond), tc.span.To.Truncate(time.Millisecond)
		got, _, err := read.SpaceHistory(t.Context(), db, read.SpaceQuery{Account: "acme", Space: "photos", Span: tc.span})
		if err != nil || len(got) != tc.want {
			t.Errorf("%s: %d changes, %v, want %d", name, len(got), err, tc.want)
		}
	}
}

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
	stores, err := read.DuplicationStatus(t.Context(), db, "acme", "photos")
	want := []read.StoreStatus{
		{Store: "1", Live: 3, Bytes: 3000, Differing: 1},
		{Store: "2", Live: 2, Bytes: 5600, Missing: 1, Differing: 1},
		{Store: "3", Live: 1, Bytes: 1000, Missing: 2},
	}
	if err != nil || fmt.Sprint(stores) != fmt.Sprint(want) {
		t.Errorf("DuplicationStatus =\n%+v, %v, want\n%+v", stores, err, want)
	}
	if stores, err := read.DuplicationStatus(t.Context(), db, "acme", "maps"); err != nil || len(stores) != 0 {
		t.Errorf("DuplicationStatus of nothing = %v, %v", stores, err)
	}
}

func TestChecks(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	a, b := clickhousetest.Change("a", 0), clickhousetest.Change("b", 0)
	fail := func(c *pb.Change, d time.Duration, finding string) *pb.FixityResult {
		r := clickhousetest.Result(c, d)
		r.Verdict, r.Row, r.Finding = pb.Verdict_VERDICT_FAIL, 2, finding
		return r
	}
	day := 24 * time.Hour
	results := []schemas.Body{clickhousetest.Result(a, day), clickhousetest.Result(a, 40*day),
		fail(a, 41*day, "content-corrupt"),
		fail(a, 42*day, "replaced"), clickhousetest.Result(a, 43*day),
		fail(a, 80*day, "content-corrupt"), fail(b, 41*day, "content-corrupt"), clickhousetest.Result(b, 42*day)}
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, results...)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 100, results[2:4]...) // published again
	for _, n := range []int{1, 2, 100} {
		var got []string
		for _, c := range pages(t, n, func(after read.CheckCursor) ([]read.Check, read.CheckCursor, error) {
			return read.Checks(t.Context(), db, read.CheckQuery{Copy: schemas.CopyOf(a),
				Span: read.Span{From: clickhousetest.Epoch.Add(2 * day)}, After: after, Limit: n})
		}) {
			got = append(got, fmt.Sprint(c.Started.Sub(clickhousetest.Epoch.Truncate(time.Millisecond)).Hours()/24, " ",
				c.Verdict))
		}
		if want := "[40 pass 41 fail 42 fail 43 pass 80 fail]"; fmt.Sprint(got) != want {
			t.Errorf("in pages of %d the checks are %v, want %s", n, got, want)
		}
		var failed []string
		var last schemas.Copy
		for range 5 {
			page, err := read.FailedCopies(t.Context(), db, read.FailureQuery{Account: "acme", Store: "1",
				Span: read.Span{From: clickhousetest.Epoch}, After: last, Limit: n})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range page {
				failed = append(failed, fmt.Sprintf("%s %s row %d %v %v %d", f.Item, f.Finding, f.Row,
					f.First.Sub(clickhousetest.Epoch).Round(time.Hour), f.Last.Sub(clickhousetest.Epoch).Round(time.Hour), f.Checks))
			}
			if len(page) < n {
				break
			}
			last = page[len(page)-1].Copy
		}
		want := `["a content-corrupt row 2 984h0m0s 1920h0m0s 3" "b content-corrupt row 2 984h0m0s 984h0m0s 1"]`
		if fmt.Sprintf("%q", failed) != want {
			t.Errorf("in pages of %d the failed copies are %q, want %s", n, failed, want)
		}
	}
	for name, tc := range map[string]struct {
		of    *pb.Change
		since time.Duration
		want  string
	}{
		"ever":              {a, 0, "content-corrupt at 984h0m0s after 960h0m0s"},
		"after it was well": {a, 43 * day, "content-corrupt at 1920h0m0s after 1032h0m0s"},
		"never well before": {b, 0, "content-corrupt at 984h0m0s after never"},
		"not since":         {b, 42 * day, "none"},
	} {
		f, err := read.FirstFailure(t.Context(), db, schemas.CopyOf(tc.of), clickhousetest.Epoch.Add(tc.since))
		if err != nil {
			t.Fatal(err)
		}
		got := "none"
		if f != nil {
			got = fmt.Sprintf("%s at %v after never", f.Finding, f.Started.Sub(clickhousetest.Epoch).Round(time.Hour))
			if f.LastPass != nil {
				got = fmt.Sprintf("%s at %v after %v", f.Finding, f.Started.Sub(clickhousetest.Epoch).Round(time.Hour),
					f.LastPass.Sub(clickhousetest.Epoch).Round(time.Hour))
			}
		}
		if got != tc.want {
			t.Errorf("%s: the first failure is %s, want %s", name, got, tc.want)
		}
	}
}
