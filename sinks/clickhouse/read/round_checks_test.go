package read_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// checkOf returns a result of a check of an item, as f alters it.
func checkOf(item string, d time.Duration, f func(*pb.FixityResult)) *pb.FixityResult {
	r := clickhousetest.Result(clickhousetest.Change(item, 0), d)
	if f != nil {
		f(r)
	}
	return r
}

func verdict(v pb.Verdict) func(*pb.FixityResult) {
	return func(r *pb.FixityResult) { r.Verdict, r.Row, r.Finding = v, 2, "content-corrupt" }
}

// The results of a round are the newest final one of each copy of its space.
func TestRoundChecks(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	digests := func(md5 string) *pb.Evidence {
		return &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: map[string]string{"md5": md5}}
	}
	a, b := schemas.ID("a"), schemas.ID("b")
	all := []schemas.Body{
		checkOf("passed", time.Hour, verdict(pb.Verdict_VERDICT_FAIL)), // before it passed
		checkOf("passed", 2*time.Hour, nil),
		checkOf("corrupt", time.Hour, func(r *pb.FixityResult) {
			verdict(pb.Verdict_VERDICT_FAIL)(r)
			r.Content, r.Stored, r.Manifest, r.Audit, r.Detail = digests(a), digests(b), digests(b), digests(b), "d"
		}),
		checkOf("passed", 3*time.Hour, func(r *pb.FixityResult) { r.Final = false }), // it has a final result
		checkOf("pending", time.Hour, func(r *pb.FixityResult) {
			r.Verdict, r.Final = pb.Verdict_VERDICT_UNKNOWN, false
		}),
		checkOf("lost properties", time.Hour, func(r *pb.FixityResult) {
			r.Metadata, r.MetadataDetail = pb.Metadata_METADATA_DAMAGED, "media type"
		}),
		checkOf("deleted", time.Hour, verdict(pb.Verdict_VERDICT_MOOT)),
		checkOf("of another round", time.Hour, func(r *pb.FixityResult) { r.Round = "round-2" }),
		checkOf("of another space", time.Hour, func(r *pb.FixityResult) { r.Space = "maps" }),
		checkOf("of another store", time.Hour, func(r *pb.FixityResult) { r.Store = "2" }),
	}
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, all...)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, all...) // twice, as after a crash
	q := read.RoundCheckQuery{Space: schemas.Copy{Account: "acme", Store: "1", Space: "photos"}, Round: "round-1",
		Started: clickhousetest.Epoch, Limit: 2}
	items := func(q read.RoundCheckQuery) (got []string) {
		t.Helper()
		for {
			page, err := read.RoundChecks(t.Context(), db, q)
			must(t, err)
			for _, c := range page {
				got, q.After = append(got, c.Item+" "+c.Verdict), c.Item
			}
			if len(page) < q.Limit {
				return got
			}
		}
	}
	want := "[corrupt fail deleted moot lost properties pass passed pass pending unknown]"
	if got := fmt.Sprint(items(q)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	q.Findings = true
	if got, want := fmt.Sprint(items(q)), "[corrupt fail lost properties pass pending unknown]"; got != want {
		t.Errorf("findings: got %s, want %s", got, want)
	}
	found, err := read.RoundChecks(t.Context(), db, q)
	if err != nil || len(found) != 2 {
		t.Fatalf("got %v, %v", found, err)
	}
	c := found[0]
	if !maps.Equal(c.Content, map[string]string{"md5": a}) || !maps.Equal(c.Stored, map[string]string{"md5": b}) ||
		!maps.Equal(c.Manifest, map[string]string{"md5": b}) || c.StoreKind != "file" || c.Level != 4 || c.Row != 2 ||
		c.Finding != "content-corrupt" || c.Detail != "d" || c.Bytes != 1000 {
		t.Errorf("got %+v", c)
	}
	if found[1].Metadata != "damaged" || found[1].MetadataDetail != "media type" {
		t.Errorf("got %+v", found[1])
	}
}

// A report counts the findings that it lists: those of the newest final result of each copy.
func TestRoundFindings(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0,
		checkOf("set again", time.Hour, func(r *pb.FixityResult) { r.Metadata = pb.Metadata_METADATA_DAMAGED }),
		checkOf("set again", 2*time.Hour, func(r *pb.FixityResult) { r.Metadata = pb.Metadata_METADATA_INTACT }))
	space := schemas.Copy{Account: "acme", Store: "1", Space: "photos"}
	listed, err := read.RoundChecks(t.Context(), db, read.RoundCheckQuery{Space: space, Round: "round-1",
		Started: clickhousetest.Epoch, Findings: true})
	if err != nil || len(listed) != 0 {
		t.Errorf("listed %+v, %v", listed, err)
	}
	counted, err := read.SpaceRoundVerdicts(t.Context(), db, read.SpaceRound{Space: space, Round: "round-1",
		Since: clickhousetest.Epoch})
	if err != nil || !maps.Equal(counted, map[string]int64{"pass": 1}) {
		t.Errorf("counted %v, %v", counted, err)
	}
}

// Copies are overdue from the oldest pass on, and can be selected by the beginnings of their items.
func TestOverdue(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var changes []schemas.Body
	for _, item := range []string{"a/never", "a/old", "a/new", "b/old", "b/unread", "b/unknown"} {
		changes = append(changes, clickhousetest.Change(item, 0))
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, changes...)
	unread := func(r *pb.FixityResult) { r.EvidenceLevel, r.BytesRead = 2, 0 }
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, checkOf("a/old", time.Hour, nil),
		checkOf("a/new", 3*time.Hour, nil), checkOf("b/old", 2*time.Hour, nil), checkOf("b/unread", 3*time.Hour, unread),
		checkOf("b/unknown", time.Hour, nil), checkOf("b/unknown", 3*time.Hour, func(r *pb.FixityResult) {
			r.Verdict, r.Final, r.BytesRead = pb.Verdict_VERDICT_UNKNOWN, false, 0
		}))
	before := clickhousetest.Epoch.Add(150 * time.Minute)
	q := schemas.DueQuery{Account: "acme", Store: "1", Space: "photos", PassedBefore: before}
	for name, tt := range map[string]struct {
		f    func(*schemas.DueQuery)
		want string
	}{
		"all":            {nil, "[a/never b/unread a/old b/unknown b/old]"},
		"of a prefix":    {func(q *schemas.DueQuery) { q.Prefix = "b/" }, "[b/unread b/unknown b/old]"},
		"of an item":     {func(q *schemas.DueQuery) { q.Prefix = "a/old" }, "[a/old]"},
		"of no item":     {func(q *schemas.DueQuery) { q.Prefix = "c" }, "[]"},
		"also asserted":  {func(q *schemas.DueQuery) { q.Asserted = true }, "[a/never a/old b/unknown b/old]"},
		"the first ones": {func(q *schemas.DueQuery) { q.Limit = 2 }, "[a/never b/unread]"},
	} {
		q := q
		if tt.f != nil {
			tt.f(&q)
		}
		found, err := read.Overdue(t.Context(), db, q)
		got := []string{}
		for _, c := range found {
			if got = append(got, c.Item); (c.Item == "a/never" || c.Item == "b/unread") != c.LastPass.IsZero() {
				t.Errorf("%s passed at %v", c.Item, c.LastPass)
			}
		}
		if err != nil || fmt.Sprint(got) != tt.want {
			t.Errorf("%s: got %v, %v, want %s", name, got, err, tt.want)
		}
	}
	for asserted, want := range map[bool]uint64{false: 5, true: 4} {
		s, err := read.FixityStatus(t.Context(), db,
			read.StatusQuery{Account: "acme", PassedBefore: before, Asserted: asserted})
		if err != nil || len(s) != 1 || s[0].Overdue != want || s[0].Unknown != 1 || s[0].Live != 6 {
			t.Errorf("asserted %v: got %+v, %v, want %d overdue and 1 unknown of 6", asserted, s, err, want)
		}
	}
	rates, err := read.SpaceRates(t.Context(), db, "acme", clickhousetest.Epoch.Add(90*time.Minute))
	if err != nil || len(rates) != 1 || rates[0] != (read.SpaceRate{Store: "1", Space: "photos", Checks: 3, Read: 2}) {
		t.Errorf("rates: got %v, %v", rates, err)
	}
}

// Incidents are counted by kind, each once, by their newest state.
func TestCountIncidents(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	of := func(kind, item, id string, opened time.Duration, steps int32, state pb.IncidentState) *pb.Incident {
		return &pb.Incident{Id: schemas.ID(id), Account: "acme", Store: "1", Space: "photos", Item: item, Kind: kind,
			State: state, Opened: clickhousetest.At(opened), Updated: clickhousetest.At(opened), StepCount: steps}
	}
	const open, closed, waiting = pb.IncidentState_INCIDENT_STATE_OPEN, pb.IncidentState_INCIDENT_STATE_CLOSED,
		pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL
	records := clickhousetest.Deliver(schemas.Incidents, 0,
		of("replaced", "a", "1", time.Hour, 1, open), of("replaced", "a", "1", time.Hour, 2, waiting),
		of("replaced", "b", "2", 2*time.Hour, 1, open),
		of("replaced", "c", "3", time.Hour, 1, open), of("replaced", "c", "3", time.Hour, 2, closed),
		of("replaced", "d", "4", time.Hour, 1, open), of("replaced", "d", "5", 3*time.Hour, 1, closed), // a later one
		of("content-missing", "a", "6", 3*time.Hour, 1, open))
	other := of("content-missing", "f", "9", 5*time.Hour, 1, waiting) // of a space without held repairs
	other.Space = "films"
	records = append(records, clickhousetest.Deliver(schemas.Incidents, 20,
		of("repairs-held", "", "7", 4*time.Hour, 1, open),
		of("content-missing", "e", "8", 4*time.Hour, 1, waiting), other)...)
	must(t, clickhouse.NewSink(db).Store(t.Context(), records))
	got, err := read.CountIncidents(t.Context(), db, "")
	want := []read.IncidentCount{
		{Kind: "content-missing", Open: 3, Waiting: 1,
			Oldest: clickhousetest.At(3 * time.Hour).AsTime().Truncate(time.Millisecond)},
		{Kind: "repairs-held", Open: 1, Waiting: 1,
			Oldest: clickhousetest.At(4 * time.Hour).AsTime().Truncate(time.Millisecond)},
		{Kind: "replaced", Open: 2, Waiting: 1, Oldest: clickhousetest.At(time.Hour).AsTime().Truncate(time.Millisecond)}}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if other, err := read.CountIncidents(t.Context(), db, "bell"); err != nil || len(other) != 0 {
		t.Errorf("of another account: %v, %v", other, err)
	}
	groups, err := read.GroupIncidents(t.Context(), db, read.IncidentSelection{Kinds: []string{"content-missing"},
		Since: clickhousetest.At(4 * time.Hour).AsTime()})
	in := func(space string, at time.Duration) read.IncidentGroup {
		return read.IncidentGroup{Account: "acme", Store: "1", Space: space, Kind: "content-missing", Open: 1, Waiting: 1,
			Oldest: clickhousetest.At(at).AsTime().Truncate(time.Millisecond)}
	}
	if want := []read.IncidentGroup{in("photos", 4*time.Hour), in("films", 5*time.Hour)}; err != nil ||
		fmt.Sprint(groups) != fmt.Sprint(want) {
		t.Errorf("the groups are %v, %v, want %v", groups, err, want)
	}
}

// Failures are counted by copy, in groups: one that fails again counts once. Checks without a verdict count as none.
func TestFailures(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	fail := verdict(pb.Verdict_VERDICT_FAIL)
	by := func(worker string, f func(*pb.FixityResult)) func(*pb.FixityResult) {
		return func(r *pb.FixityResult) {
			if f != nil {
				f(r)
			}
			r.Worker = worker
		}
	}
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0,
		checkOf("2024/a", time.Hour, by("w1", fail)), checkOf("2024/a", 2*time.Hour, by("w1", fail)),
		checkOf("2024/b", time.Hour, by("w2", nil)), checkOf("2025/c", time.Hour, by("w2", nil)),
		checkOf("d", 3*time.Hour, by("w2", fail)),
		checkOf("d", time.Hour, by("w2", func(r *pb.FixityResult) { r.Verdict = pb.Verdict_VERDICT_UNKNOWN })),
		checkOf("d", time.Hour, by("w3", func(r *pb.FixityResult) { fail(r); r.Final = false; r.Id = schemas.ID("x") })))
	q := read.FailureQuery{Account: "acme"}
	totals, groups, err := read.Failures(t.Context(), db, q)
	must(t, err)
	first := clickhousetest.At(time.Hour).AsTime().Truncate(time.Millisecond)
	if totals.Copies != 4 || totals.Failed != 2 || totals.Checks != 5 || totals.Bytes != 5000 ||
		!totals.FirstFailed().Equal(first) {
		t.Errorf("got %+v, first %v", totals, totals.FirstFailed())
	}
	got := map[string]string{}
	for _, g := range groups {
		got[g.Dimension+" "+g.Value] = fmt.Sprintf("%d/%d", g.Failed, g.Total)
	}
	for key, want := range map[string]string{"store 1": "2/4", "space photos": "2/4", "prefix photos/2024": "1/2",
		"prefix photos/2025": "0/1", "prefix photos/": "1/1", "month unknown": "2/4", "worker w1": "1/1",
		"worker w2": "1/3", "worker w3": "", "host h1": "2/4", "software millrace/1": "2/4"} {
		if got[key] != want {
			t.Errorf("%s: got %s, want %s", key, got[key], want)
		}
	}
	q.Store = "2"
	if totals, groups, err := read.Failures(t.Context(), db, q); err != nil || totals.Copies != 0 || len(groups) != 0 {
		t.Errorf("of another store: %+v, %v, %v", totals, groups, err)
	}
}

// A check that was published twice counts once, also before its rows are merged.
func TestChecksThatWerePublishedTwice(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	all := []schemas.Body{checkOf("a", time.Hour, nil), checkOf("b", time.Hour, nil)}
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, all...)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 10, all...)
	if n := clickhousetest.Count(t, db, "bit_log WHERE account != ''"); n != "4" {
		t.Fatalf("the table has %s rows", n)
	}
	totals, _, err := read.Failures(t.Context(), db, read.FailureQuery{Account: "acme"})
	if err != nil || totals.Checks != 2 || totals.Bytes != 2000 {
		t.Errorf("totals: %+v, %v", totals, err)
	}
	spaces, err := read.SpaceRates(t.Context(), db, "acme", clickhousetest.Epoch)
	if err != nil || len(spaces) != 1 || spaces[0].Checks != 2 || spaces[0].Read != 2 {
		t.Errorf("rates of spaces: %+v, %v", spaces, err)
	}
	stores, err := read.CheckRates(t.Context(), db, "acme", clickhousetest.Epoch)
	if err != nil || len(stores) != 1 || stores[0].Checks != 2.0/60 || stores[0].Bytes != 2000.0/60 {
		t.Errorf("rates of stores: %+v, %v", stores, err)
	}
}

// Of groups with equally many failures, the smallest are returned: the share of their copies that have failed is the
// largest. All groups are counted.
func TestFailuresOfManyGroups(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	fail := verdict(pb.Verdict_VERDICT_FAIL)
	all := []schemas.Body{checkOf("z/1", time.Hour, fail)}
	for n := range 1000 {
		all = append(all, checkOf(fmt.Sprintf("%04d/1", n), time.Hour, fail),
			checkOf(fmt.Sprintf("%04d/2", n), time.Hour, nil))
	}
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, all...)
	totals, groups, err := read.Failures(t.Context(), db, read.FailureQuery{Account: "acme"})
	want := read.FailureGroup{Dimension: read.ByPrefix, Value: "photos/z", Total: 1, Failed: 1, All: 2001, AllFailed: 1001}
	if err != nil || totals.Groups != 1001+7 || !slices.Contains(groups, want) {
		t.Errorf("%d of %d groups lack %+v: %v", len(groups), totals.Groups, want, err)
	}
}
