package read_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/retry"
)

func TestFresh(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	full := clickhousetest.Change("full", 0)
	full.Properties, full.Etag, full.SourceTime, full.SourceVersion = map[string]string{"colour": "blue"}, "e",
		clickhousetest.At(-time.Hour), "sv"
	full.Origin = pb.Origin_ORIGIN_DUPLICATION
	deletedAdd, deleted := clickhousetest.Change("deleted", 0), clickhousetest.Change("deleted", time.Minute)
	deleted.Op, deleted.Digests, deleted.Size, deleted.Version = pb.Op_OP_DELETE, nil, 0, ""
	updated := clickhousetest.Change("updated", time.Minute)
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, full, deletedAdd, deleted, updated,
		clickhousetest.Change("updated", 0))
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, clickhousetest.Result(full, time.Hour),
		clickhousetest.Result(clickhousetest.Change("checked", 0), time.Hour))

	tombstone := clickhousetest.RecordOf(deletedAdd)
	tombstone.State, tombstone.Time, tombstone.ChangeId = pb.RecordState_RECORD_STATE_TOMBSTONE, deleted.GetTime(),
		deleted.GetId()
	hour := clickhousetest.At(time.Hour)
	hour.Nanos = hour.Nanos / 1e6 * 1e6
	want := map[string]*pb.CopyRecord{
		"full": {Manifest: clickhousetest.RecordOf(full),
			Audit: clickhousetest.EvidenceOf(clickhousetest.RecordOf(full)), LastPass: hour, LastAttempt: hour},
		"deleted": {Manifest: tombstone, Audit: clickhousetest.EvidenceOf(tombstone)},
		"updated": {Manifest: clickhousetest.RecordOf(updated),
			Audit: clickhousetest.EvidenceOf(clickhousetest.RecordOf(updated))},
		"checked": {Manifest: clickhousetest.NoRecord(), Audit: clickhousetest.NoRecord(), LastAttempt: hour},
		"nowhere": {Manifest: clickhousetest.NoRecord(), Audit: clickhousetest.NoRecord()},
	}
	r := clickhousetest.Reader(t, db, clickhousetest.Reached, read.ReaderConfig{}.WithBatch(2, 0))
	var copies []schemas.Copy
	var items []string
	for item := range want {
		items = append(items, item)
		copies = append(copies, schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: item})
	}
	got, err := r.Fresh(t.Context(), append(copies, copies[0]))
	must(t, err)
	for i, item := range items {
		clickhousetest.Compare(t, item, got[i], want[item])
	}
	clickhousetest.Compare(t, "asked twice", got[len(items)], want[items[0]])
	clickhousetest.Compare(t, "in another store",
		clickhousetest.Fresh(t, db, schemas.Copy{Account: "acme", Store: "2", Space: "photos", Item: "full"}),
		want["nowhere"])
}

// The result of a fresh read is never older than the records in Kafka at the time of the request.
func TestFreshWaits(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	c := clickhousetest.Change("a", 0)
	asked, landed := make(chan struct{}), make(chan struct{})
	r := clickhousetest.Reader(t, db, func(ctx context.Context) error {
		close(asked)
		<-landed
		return nil
	}, read.ReaderConfig{})
	var got []*pb.CopyRecord
	var g errgroup.Group
	g.Go(func() (err error) {
		got, err = r.Fresh(t.Context(), []schemas.Copy{schemas.CopyOf(c)})
		return err
	})
	<-asked
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, c)
	close(landed)
	must(t, g.Wait())
	clickhousetest.Compare(t, "the record", got[0],
		&pb.CopyRecord{Manifest: clickhousetest.RecordOf(c), Audit: clickhousetest.EvidenceOf(clickhousetest.RecordOf(c))})
}

func TestFreshIsUnknown(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for name, mark := range map[string]clickhousetest.MarkFunc{
		"the watermark fails":      func(context.Context) error { return errors.New("no broker") },
		"the tables stay behind":   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"a permanent-looking fail": func(context.Context) error { return retry.Permanent(errors.New("no topic")) },
	} {
		t.Run(name, func(t *testing.T) {
			r := clickhousetest.Reader(t, db, mark, read.ReaderConfig{Wait: 50 * time.Millisecond})
			got, err := r.Fresh(t.Context(), []schemas.Copy{schemas.CopyOf(clickhousetest.Change("a", 0))})
			if got != nil || retry.ClassOf(err) != retry.ClassUnavailable {
				t.Errorf("Fresh = %v, %v, want an error of class unavailable", got, err)
			}
		})
	}
	t.Run("the engine has no tables", func(t *testing.T) {
		r := clickhousetest.Reader(t, clickhousetest.OpenEmpty(t), clickhousetest.Reached, read.ReaderConfig{})
		if got, err := r.Fresh(t.Context(), []schemas.Copy{schemas.CopyOf(clickhousetest.Change("a", 0))}); got != nil ||
			retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("Fresh = %v, %v, want an error of class unavailable", got, err)
		}
	})
}

// Concurrent requests share one wait for the watermark.
func TestFreshGathers(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	all := clickhousetest.Changes(50)
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, all...)
	var waits atomic.Int32
	r := clickhousetest.Reader(t, db, func(context.Context) error { waits.Add(1); return nil },
		read.ReaderConfig{}.WithBatch(0, 300*time.Millisecond))
	var ready sync.WaitGroup
	ready.Add(len(all)) // before the first request waits
	var g errgroup.Group
	for _, b := range all {
		g.Go(func() error {
			ready.Done()
			ready.Wait()
			c := b.(*pb.Change)
			got, err := r.Fresh(t.Context(), []schemas.Copy{schemas.CopyOf(c)})
			if err == nil && got[0].GetManifest().GetChangeId() != c.GetId() {
				return fmt.Errorf("%s was given the record of another: %v", c.GetItem(), got[0])
			}
			return err
		})
	}
	must(t, g.Wait())
	if n := waits.Load(); n > 5 {
		t.Errorf("the watermark was asked %d times for 50 callers, want them gathered", n)
	}
}

func TestManifest(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	items := []string{"a", "a/b", "b", "é", "\U0001F600", "~"}
	var all []schemas.Body
	for _, item := range items {
		all = append(all, clickhousetest.Change(item, 0))
	}
	gone := clickhousetest.Change("b", time.Minute)
	gone.Op = pb.Op_OP_DELETE
	elsewhere := clickhousetest.Change("c", 0)
	elsewhere.Space = "other"
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, append(all, gone, elsewhere)...)
	var got []string
	q := read.ManifestQuery{Account: "acme", Store: "1", Space: "photos", Limit: 2}
	for {
		page, err := read.Manifest(t.Context(), db, q)
		must(t, err)
		for _, k := range page {
			got = append(got, k.Item)
			if k.Record.GetManifest().GetState() != pb.RecordState_RECORD_STATE_LIVE {
				t.Errorf("%s is %v", k.Item, k.Record.GetManifest().GetState())
			}
		}
		if len(page) < q.Limit {
			break
		}
		q.After = page[len(page)-1].Item
	}
	if want := []string{"a", "a/b", "~", "é", "\U0001F600"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the live items are %q, want %q in the order of their bytes", got, want)
	}
	counts, err := read.CopyCounts(t.Context(), db, "acme")
	if want := []read.CopyCount{{Store: "1", Live: 6, Tombstones: 1, Bytes: 6000}}; err != nil ||
		fmt.Sprint(counts) != fmt.Sprint(want) {
		t.Errorf("CopyCounts = %v, %v, want %v", counts, err, want)
	}
}

// The copies that are due, in their order; * marks those whose check was tried since and did not pass.
func TestFixityDue(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	item := func(name string) *pb.Change { return clickhousetest.Change(name, 0) }
	rewritten := clickhousetest.Change("rewritten", 10*time.Hour)
	gone := clickhousetest.Change("gone", time.Hour)
	gone.Op = pb.Op_OP_DELETE
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, item("never"), item("old"), item("new"), item("rewritten"),
		rewritten,
		item("gone"), gone, item("unread"), item("overtaken"), item("failing"))
	unread := clickhousetest.Result(item("unread"), 3*time.Hour)
	unread.EvidenceLevel = 2
	overtaken := clickhousetest.Result(item("overtaken"), 3*time.Hour)
	overtaken.Overtaken = true
	failing := clickhousetest.Result(item("failing"), 4*time.Hour)
	failing.Verdict = pb.Verdict_VERDICT_FAIL
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, clickhousetest.Result(item("old"), time.Hour),
		clickhousetest.Result(item("new"), 5*time.Hour),
		clickhousetest.Result(item("rewritten"), 2*time.Hour), unread, overtaken, failing,
		clickhousetest.Result(item("gone"), time.Minute))

	due := func(q schemas.DueQuery) (items []string) {
		t.Helper()
		dueNow := read.NewDue(db)
		q.Account, q.Store, q.Limit = "acme", "1", 2
		if q.Space == "" {
			q.Space = item("never").GetSpace()
		}
		for {
			page, after, err := dueNow.Due(t.Context(), q)
			must(t, err)
			for _, k := range page {
				mark := ""
				if k.Retried {
					mark = "*"
				}
				items = append(items, k.Item+mark)
				if a := k.Record.GetAudit(); !proto.Equal(a, k.Record.GetManifest()) {
					t.Errorf("%s: audit %v is not manifest %v", k.Item, a, k.Record.GetManifest())
				}
			}
			if len(page) < q.Limit {
				return items
			}
			q.After = after
		}
	}
	for name, tc := range map[string]struct {
		q    schemas.DueQuery
		want []string
	}{
		"all": {schemas.DueQuery{}, []string{"failing*", "never", "overtaken", "rewritten", "unread*", "old", "new"}},
		"passed before": {schemas.DueQuery{PassedBefore: clickhousetest.Epoch.Add(2 * time.Hour)},
			[]string{"failing*", "never", "overtaken", "rewritten", "unread*", "old"}},
		"passed, also unread, before": {
			schemas.DueQuery{Asserted: true, PassedBefore: clickhousetest.Epoch.Add(2 * time.Hour)},
			[]string{"failing*", "never", "overtaken", "rewritten", "old"}},
		"passed, also unread, before later": {
			schemas.DueQuery{Asserted: true, PassedBefore: clickhousetest.Epoch.Add(3*time.Hour + time.Millisecond)},
			[]string{"failing*", "never", "overtaken", "rewritten", "old", "unread"}},
		"failed lately": {schemas.DueQuery{PassedBefore: clickhousetest.Epoch.Add(2 * time.Hour),
			AttemptedBefore: clickhousetest.Epoch.Add(4 * time.Hour)},
			[]string{"never", "overtaken", "rewritten", "unread*", "old"}},
		"failed some time ago": {schemas.DueQuery{PassedBefore: clickhousetest.Epoch.Add(2 * time.Hour),
			AttemptedBefore: clickhousetest.Epoch.Add(4*time.Hour + time.Millisecond)},
			[]string{"failing*", "never", "overtaken", "rewritten", "unread*", "old"}},
		"of another space": {schemas.DueQuery{Space: "other"}, nil},
	} {
		if got := due(tc.q); fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%s: due are %v, want %v", name, got, tc.want)
		}
	}
	counts, err := read.CopyCounts(t.Context(), db, "acme")
	if want := []read.CopyCount{
		{Store: "1", Live: 7, Tombstones: 1, Bytes: counts[0].Bytes, Verified: 2},
	}; err != nil || fmt.Sprint(counts) != fmt.Sprint(want) {
		t.Errorf("CopyCounts = %v, %v, want %v", counts, err, want)
	}
}

// Queries that take turns get the pages that they get alone.
func TestDueOfManyQueries(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var added []schemas.Body
	for i := range 9 {
		c := clickhousetest.Change(fmt.Sprint("item-", i), 0)
		if i%3 == 0 {
			c.Space = "other"
		}
		added = append(added, c)
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, added...)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0,
		clickhousetest.Result(clickhousetest.Change("item-4", 0), time.Hour))
	q := schemas.DueQuery{Account: "acme", Store: "1", Space: clickhousetest.Change("", 0).GetSpace(), Limit: 2}
	other, passed := q, q
	other.Space, passed.PassedBefore = "other", clickhousetest.Epoch
	due := read.NewDue(db)
	queries := []*schemas.DueQuery{&q, &other, &passed}
	got := make([]string, len(queries))
	for range 4 { // pages
		for i, q := range queries {
			page, after, err := due.Due(t.Context(), *q)
			must(t, err)
			for _, k := range page {
				got[i] += strings.TrimPrefix(k.Item, "item-")
			}
			got[i] += "|"
			q.After, q.PassedBefore = after, q.PassedBefore.In(time.FixedZone("", 60)) // the same instant
		}
	}
	// One selection of each, and one for each page that is requested after the last one.
	if n := due.Queries(); n != 6 {
		t.Errorf("%d selections", n)
	}
	if want := []string{"12|57|84||", "03|6|||", "12|57|8||"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Each read of the tables is guarded, a page that an earlier read has needs no guard, and nothing is kept of a read
// that its guard refuses.
func TestDueIsGuarded(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var added []schemas.Body
	for i := range 9 {
		added = append(added, clickhousetest.Change(fmt.Sprint("item-", i), 0))
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, added...)
	errGap := errors.New("the table lacks records")
	due, reads, refused := read.NewDue(db), 0, 1 // the first read is refused, although it succeeds
	due.Guard = func(_ context.Context, read func() error) error {
		reads++
		err := read()
		if reads == refused {
			return errGap
		}
		return err
	}
	q := schemas.DueQuery{Account: "acme", Store: "1", Space: clickhousetest.Change("", 0).GetSpace(), Limit: 2}
	page := func(wantReads int, wantErr error, want string) {
		t.Helper()
		copies, after, err := due.Due(t.Context(), q)
		var got strings.Builder
		for _, k := range copies {
			got.WriteString(strings.TrimPrefix(k.Item, "item-"))
			if k.Record.GetManifest().GetState() != pb.RecordState_RECORD_STATE_LIVE {
				t.Errorf("%s has the record %v", k.Item, k.Record)
			}
		}
		if !errors.Is(err, wantErr) || got.String() != want || reads != wantReads {
			t.Errorf("got %q after %d reads, %v, want %q after %d, %v", got.String(), reads, err, want, wantReads, wantErr)
		}
		if q.After = after; len(copies) == 0 {
			q.After = schemas.DueCursor{}
		}
	}
	page(1, errGap, "")
	refused = 3 // that of the records
	page(3, errGap, "")
	page(5, nil, "01")
	page(5, nil, "23")
	page(5, nil, "45")
}

// The newest final check of a copy counts, of this round and this space.
func TestSpaceRoundCounts(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	change := func(item string) *pb.Change { return clickhousetest.Change(item, 0) }
	result := func(item string, at time.Duration, edit func(*pb.FixityResult)) *pb.FixityResult {
		r := clickhousetest.Result(change(item), at)
		if edit != nil {
			edit(r)
		}
		return r
	}
	deleted := clickhousetest.Change("deleted", 3*time.Hour)
	deleted.Op = pb.Op_OP_DELETE
	elsewhere := change("elsewhere")
	elsewhere.Space = "other"
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, change("good"), change("bad"), change("unread"), change("waits"),
		change("never"), change("deleted"), deleted, elsewhere)
	fail := func(r *pb.FixityResult) { r.Verdict, r.Row = pb.Verdict_VERDICT_FAIL, 2 }
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0,
		result("good", time.Hour, fail), result("good", 2*time.Hour, nil),
		result("bad", time.Hour, fail),
		result("unread", time.Hour, func(r *pb.FixityResult) { r.EvidenceLevel = 2 }),
		result("waits", time.Hour, func(r *pb.FixityResult) { r.Final, r.Verdict = false, pb.Verdict_VERDICT_UNKNOWN }),
		result("never", time.Hour, func(r *pb.FixityResult) { r.Round = "another" }),
		result("deleted", time.Hour, func(r *pb.FixityResult) { r.Metadata = pb.Metadata_METADATA_DAMAGED }),
		clickhousetest.Result(elsewhere, time.Hour))
	at := func(minutes int) time.Time { return clickhousetest.Epoch.Add(time.Duration(minutes) * time.Minute) }
	q := read.SpaceRound{Space: schemas.Copy{Account: "acme", Store: "1", Space: change("good").GetSpace()},
		Round: "round-1", Started: at(30), Since: at(30), PassedBefore: at(30), AttemptedBefore: at(10),
		VerifiedSince: at(30)}
	progress := read.RoundProgress{Final: 4, Pending: 1, Last: at(60).Add(time.Second).Truncate(time.Millisecond)}
	counts := func(name string, live int64, want map[string]int64) {
		t.Helper()
		got, err := read.SpaceRoundCounts(t.Context(), db, q)
		if err != nil || got.RoundProgress != progress || got.Live != live || !maps.Equal(got.Counts, want) {
			t.Errorf("%s: got %+v, %v, want %v and %+v", name, got, err, want, progress)
		}
	}
	of := func(verified, due int64) map[string]int64 {
		return map[string]int64{"pass": 3, "fail": 1, "unread": 1, "metadata-damaged": 1, "live": 5, "verified": verified,
			"due": due}
	}
	// "waits" has only a result that is not final, and "never" none of this round, but a pass.
	counts("in the round", 5, of(2, 0))
	q.VerifiedSince = at(90)
	counts("verified later", 5, of(1, 0))
	q.PassedBefore = at(90) // "never" has passed at one hour
	counts("passed before later", 5, of(1, 1))
	q.AttemptedBefore = at(90) // those that have failed are due again, and "unread", whose pass does not count
	counts("attempted before later", 5, of(1, 4))
	q.AttemptedBefore = time.Time{} // of any age
	counts("attempted whenever", 5, of(1, 0))
	// "bad" and "waits" were checked by the round before, which repeats the check of "waits".
	q.Round, q.Started, q.Since, q.AttemptedBefore = "round-2", at(100), at(100), at(50)
	progress = read.RoundProgress{}
	counts("of the next round", 5, map[string]int64{"live": 5, "verified": 1, "due": 1})
	q.Asserted = true // the pass of "unread" counts, and is due
	counts("asserted", 5, map[string]int64{"live": 5, "verified": 1, "due": 2})
	q.Space.Space = "none"
	counts("of no space", 0, map[string]int64{"live": 0, "verified": 0, "due": 0})
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	c := clickhousetest.Change("a", 0)
	fail := clickhousetest.Result(c, 2*time.Hour)
	fail.Verdict, fail.Row, fail.Finding = pb.Verdict_VERDICT_FAIL, 2, "content-corrupt"
	copied := &pb.DuplicationResult{
		Id: schemas.ID("r"), Command: schemas.ID("c"), Account: "acme", Space: "photos", Item: "a",
		SourceStore: "2", DestinationStore: "1", Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
		Decision: "C5", Result: "copied", Outcome: pb.Outcome_OUTCOME_DONE, Bytes: 1000,
		Started: clickhousetest.At(time.Second), Finished: clickhousetest.At(1500 * time.Millisecond),
		ChangeTime: clickhousetest.At(-time.Hour), Planned: clickhousetest.At(0), Worker: "w1",
	}
	incident := &pb.Incident{
		Id: schemas.ID("i"), Account: "acme", Store: "1", Space: "photos", Item: "a", Kind: "content-corrupt",
		State:  pb.IncidentState_INCIDENT_STATE_OPEN,
		Opened: clickhousetest.At(3 * time.Hour), Updated: clickhousetest.Millis(clickhousetest.At(3 * time.Hour)),
		Checked: clickhousetest.Millis(clickhousetest.At(2 * time.Hour)), Row: 2,
		Expected: c.GetDigests(), LastEvent: clickhousetest.At(7),
		Found:  map[string]string{"md5": schemas.ID("other")},
		Object: &pb.Identity{Version: "v", Modified: clickhousetest.At(0), Size: 3}, StepCount: 1,
		Steps: []*pb.IncidentStep{{Time: clickhousetest.Millis(clickhousetest.At(3 * time.Hour)), Action: "opened",
			Ref: fail.GetId(), By: "steward",
			Detail: "row 2"}},
	}
	closed := proto.Clone(incident).(*pb.Incident)
	closed.State, closed.Closed, closed.Updated, closed.StepCount = pb.IncidentState_INCIDENT_STATE_CLOSED,
		clickhousetest.Millis(clickhousetest.At(4*time.Hour)), clickhousetest.Millis(clickhousetest.At(4*time.Hour)), 2
	closed.Steps = []*pb.IncidentStep{{Time: clickhousetest.Millis(clickhousetest.At(4 * time.Hour)), Action: "closed",
		By: "steward"}} // without the first
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, c)
	passed := clickhousetest.Result(c, time.Hour)
	passed.Metadata, passed.MetadataDetail = pb.Metadata_METADATA_DAMAGED, "media type image/jpeg"
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, passed, fail)
	s := clickhouse.NewSink(db)
	dry := proto.CloneOf(copied) // it is in the timeline, and counts nowhere
	dry.Id, dry.Result, dry.WouldBe, dry.Outcome = schemas.ID("dry"), "dry-run", "copied", pb.Outcome_OUTCOME_NOTHING
	dry.Finished = clickhousetest.At(90 * time.Minute)
	must(t, s.Store(t.Context(), clickhousetest.Deliver(schemas.DuplicationResults, 0, copied, dry)))
	must(t, s.Store(t.Context(), clickhousetest.Deliver(schemas.Incidents, 0, incident)))
	open, err := read.OpenIncidents(t.Context(), db, "acme")
	if err != nil || len(open) != 1 {
		t.Fatalf("OpenIncidents = %v, %v", open, err)
	}
	clickhousetest.Compare(t, "the open incident", open[0], incident)
	must(t, s.Store(t.Context(), clickhousetest.Deliver(schemas.Incidents, 1, closed)))
	if open, err := read.OpenIncidents(t.Context(), db, "acme"); err != nil || len(open) != 0 {
		t.Errorf("OpenIncidents of a closed one = %v, %v", open, err)
	}
	all, err := read.SelectIncidents(t.Context(), db, read.IncidentSelection{Closed: true})
	if err != nil || len(all) != 1 || all[0].GetState() != pb.IncidentState_INCIDENT_STATE_CLOSED {
		t.Errorf("SelectIncidents = %v, %v, want the closed one", all, err)
	}
	events, err := read.Timeline(t.Context(), db, "acme", "photos", "a")
	must(t, err)
	var got []string
	for _, e := range events {
		got = append(got, e.Time.Sub(clickhousetest.Epoch.Truncate(time.Millisecond)).String()+" "+e.Kind+" "+e.Store+" "+
			e.What)
	}
	want := []string{
		"0s change 1 add (client)", "1.5s duplication 1 C5 copied",
		"1h0m0s check 1 row 1 pass metadata-damaged", "1h30m0s duplication 1 C5 dry-run would be copied",
		"2h0m0s check 1 row 2 fail content-corrupt",
		"3h0m0s incident 1 content-corrupt opened", "4h0m0s incident 1 content-corrupt closed",
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("the timeline is\n%q, want\n%q", got, want)
	}
	checks, err := read.ResultsOf(t.Context(), db, schemas.CopyOf(c))
	if err != nil || len(checks) != 2 || checks[0].Verdict != "pass" || checks[1].ID != fail.GetId() {
		t.Errorf("ResultsOf = %v, %v", checks, err)
	}
}

func allIncidents(t *testing.T, db *clickhouse.DB, account string) ([]*pb.Incident, error) {
	return read.SelectIncidents(t.Context(), db, read.IncidentSelection{Of: schemas.Copy{Account: account}, Closed: true})
}

// If two incidents of one key are not closed, only the newer one is open, because only it can be decided about. If
// the newer one is closed, none is open. All are kept, each as its newest record.
func TestOpenIncidentsOfOneKey(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	s := clickhouse.NewSink(db)
	record := func(id string, opened time.Duration, state pb.IncidentState, steps int32) *pb.Incident {
		return &pb.Incident{Id: schemas.ID(id), Account: "acme", Kind: "records-removed", Subject: "g/changes/0",
			State:  state,
			Opened: clickhousetest.At(opened), Updated: clickhousetest.At(opened), StepCount: steps}
	}
	open, closed := pb.IncidentState_INCIDENT_STATE_OPEN, pb.IncidentState_INCIDENT_STATE_CLOSED
	other := record("other", time.Hour, open, 1)
	other.Subject = "g/changes/1"
	texts := func(all []*pb.Incident, err error) (texts []string) {
		t.Helper()
		must(t, err)
		names := map[string]string{}
		for _, name := range []string{"first", "other", "second"} {
			names[schemas.ID(name)] = name
		}
		for _, i := range all {
			text := names[i.GetId()]
			if i.GetState() == closed {
				text += ", closed"
			}
			texts = append(texts, text)
		}
		return texts
	}
	for i, tt := range []struct {
		record    *pb.Incident
		want, all []string
	}{
		{record("first", 2*time.Hour, open, 1), []string{"first"}, []string{"first"}},
		{other, []string{"other", "first"}, []string{"other", "first"}},
		{record("second", 3*time.Hour, open, 1), []string{"other", "second"}, []string{"other", "first", "second"}},
		{record("second", 3*time.Hour, closed, 2), []string{"other"}, []string{"other", "first", "second, closed"}},
		// Two processes write records with as many steps: the one that was written later counts, whatever the clocks say.
		{record("second", 5*time.Hour, open, 3), []string{"other", "second"}, []string{"other", "first", "second"}},
		{record("second", 4*time.Hour, closed, 3), []string{"other"}, []string{"other", "first", "second, closed"}},
	} {
		must(t, s.Store(t.Context(), clickhousetest.Deliver(schemas.Incidents, int64(i), tt.record)))
		if got := texts(read.OpenIncidents(t.Context(), db, "")); !slices.Equal(got, tt.want) {
			t.Errorf("after record %d: open are %q, want %q", i, got, tt.want)
		}
		for _, account := range []string{"", "acme"} {
			if got := texts(allIncidents(t, db, account)); !slices.Equal(got, tt.all) {
				t.Errorf("after record %d: all of account %q are %q, want %q", i, account, got, tt.all)
			}
		}
	}
	if got := texts(allIncidents(t, db, "bell")); len(got) > 0 {
		t.Errorf("of another account: %q", got)
	}
}

// A selection of incidents is that of its flags; the time of opening selects after the newest of each key is known.
func TestSelectIncidents(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	names := map[string]string{}
	incident := func(name string, of schemas.Copy, kind string, opened time.Duration) *pb.Incident {
		names[schemas.ID(name)] = name
		return &pb.Incident{Id: schemas.ID(name), Account: of.Account, Store: of.Store, Space: of.Space, Item: of.Item,
			Kind: kind, State: pb.IncidentState_INCIDENT_STATE_OPEN, StepCount: 1,
			Opened: clickhousetest.At(opened), Updated: clickhousetest.At(opened)}
	}
	at := func(account, store, space string) schemas.Copy {
		return schemas.Copy{Account: account, Store: store, Space: space, Item: "a"}
	}
	if err := clickhouse.NewSink(db).Store(t.Context(), clickhousetest.Deliver(schemas.Incidents, 0,
		incident("a", at("acme", "1", "photos"), "replaced", time.Hour),
		incident("b", at("acme", "2", "photos"), "no-quorum", 2*time.Hour),
		incident("c", at("acme", "2", "maps"), "replaced", 3*time.Hour),
		incident("older", at("bell", "1", "photos"), "replaced", time.Hour),
		incident("newer", at("bell", "1", "photos"), "replaced", 4*time.Hour),
	)); err != nil {
		t.Fatal(err)
	}
	hour := func(n int) time.Time { return clickhousetest.At(time.Duration(n) * time.Hour).AsTime() }
	for name, tt := range map[string]struct {
		by   read.IncidentSelection
		want []string
	}{
		"all that are open": {read.IncidentSelection{}, []string{"a", "b", "c", "newer"}},
		"closed ones too":   {read.IncidentSelection{Closed: true}, []string{"a", "older", "b", "c", "newer"}},
		"an account":        {read.IncidentSelection{Of: schemas.Copy{Account: "acme"}}, []string{"a", "b", "c"}},
		"a store":           {read.IncidentSelection{Of: schemas.Copy{Store: "1"}}, []string{"a", "newer"}},
		"a space":           {read.IncidentSelection{Of: at("acme", "2", "maps")}, []string{"c"}},
		"a kind":            {read.IncidentSelection{Kinds: []string{"no-quorum"}}, []string{"b"}},
		"kinds": {read.IncidentSelection{Kinds: []string{"no-quorum", "replaced"}},
			[]string{"a", "b", "c", "newer"}},
		"no such kind": {read.IncidentSelection{Kinds: []string{"no"}}, nil},
		"since":        {read.IncidentSelection{Since: hour(2)}, []string{"b", "c", "newer"}},
		// Not "older", which is not open any more.
		"before": {read.IncidentSelection{Before: hour(2)}, []string{"a"}},
		"a range of a kind": {read.IncidentSelection{Since: hour(2), Before: hour(4), Kinds: []string{"replaced"}},
			[]string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := read.SelectIncidents(t.Context(), db, tt.by)
			var got []string
			for _, i := range all {
				got = append(got, names[i.GetId()])
			}
			if slices.Sort(got); err != nil {
				t.Fatal(err)
			}
			if slices.Sort(tt.want); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// The final results of checks are found by their cause.
func TestFinalChecks(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	check := func(item, cause string, d time.Duration, verdict pb.Verdict, final bool) *pb.FixityResult {
		return &pb.FixityResult{Id: schemas.ID(item, cause, d.String()), Task: "t", Cause: cause, Account: "acme", Store: "1",
			Space: "photos", Item: item, Verdict: verdict, Row: 2, Finding: "content-corrupt", Final: final, EvidenceLevel: 4,
			Detail: "d", Started: clickhousetest.At(d), Finished: clickhousetest.At(d)}
	}
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0,
		check("a", "other", time.Hour, pb.Verdict_VERDICT_PASS, true),
		check("a", "c", time.Hour, pb.Verdict_VERDICT_UNDECIDED, false),
		check("a", "c", 2*time.Hour, pb.Verdict_VERDICT_FAIL, true),
		check("b", "c", time.Hour, pb.Verdict_VERDICT_UNDECIDED, false),
		check("c", "c", -time.Hour, pb.Verdict_VERDICT_PASS, true),
	)
	at := func(item string) schemas.Copy {
		return schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: item}
	}
	got, err := read.FinalChecks(t.Context(), db, "c", clickhousetest.At(0).AsTime(),
		[]schemas.Copy{at("a"), at("b"), at("c"), at("d")})
	want := map[schemas.Copy]read.FinalCheck{
		at("a"): {Verdict: "fail", Finding: "content-corrupt", Level: 4, Detail: "d"}}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err := read.FinalChecks(t.Context(), db, "c", time.Time{}, nil); err != nil || len(got) != 0 {
		t.Errorf("of no copies: %v, %v", got, err)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
