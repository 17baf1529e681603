package clickhouse_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A historyRecord is one record of a short history of one copy.
type historyRecord struct {
	topic  schemas.Topic
	offset int64
	body   schemas.Body
}

// A step is one record of a history, without its copy.
type step struct {
	kind string
	time time.Duration
}

func stepKinds() []string {
	return []string{"add", "claimed", "reported again", "correction", "bare", "completed", "completed otherwise",
		"unsized", "lost", "delete", "properties", "typed", "pass", "fail", "unknown"}
}

// drawHistory draws changes and checks of one copy. Times collide often.
func drawHistory(t *rapid.T) []step {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{rapid.SampledFrom(stepKinds()).Draw(t, "kind"),
			time.Duration(rapid.IntRange(0, 3).Draw(t, "time")) * time.Millisecond}
	}), 1, 6).Draw(t, "history")
}

// history returns the records of an item's history. The ith has offset i.
func history(item string, steps []step) []historyRecord {
	all := make([]historyRecord, len(steps))
	for i, s := range steps {
		c := clickhousetest.Change(item, s.time)
		c.Version = fmt.Sprint("v", i)
		all[i] = historyRecord{schemas.Changes, int64(i), c}
		switch s.kind {
		case "claimed":
			c.Provenance = pb.Provenance_PROVENANCE_CLAIMED
		case "reported again": // the first content again, with fewer digests
			c.Version, c.Provenance, c.Digests = "v0", pb.Provenance_PROVENANCE_CLAIMED,
				map[string]string{"md5": c.Digests["md5"]}
		case "correction":
			c.Origin = pb.Origin_ORIGIN_FIXITY
		case "bare":
			c.Digests, c.Provenance = nil, pb.Provenance_PROVENANCE_UNSPECIFIED
		case "completed", "completed otherwise": // the first content
			c = clickhousetest.Complete(all[0].body, s.kind)
			if c == nil { // the first record is a check
				c = clickhousetest.Change(item, s.time)
			}
			all[i].body = c
		case "unsized":
			c.Size, c.SizeUnknown = 0, true
		case "lost": // the store has lost the properties
			c.MediaType, c.PropertiesUnknown = "", true
		case "delete":
			c.Op, c.Digests = pb.Op_OP_DELETE, nil
		case "properties", "typed":
			c.Op, c.Digests, c.Properties, c.MediaType = pb.Op_OP_SET_PROPERTIES, nil, map[string]string{"n": fmt.Sprint(i)}, ""
			if s.kind == "typed" {
				c.MediaType = "image/png"
			}
		case "pass", "fail", "unknown":
			r := clickhousetest.Result(c, s.time)
			r.Id = schemas.ID(item, fmt.Sprint(i))
			switch s.kind {
			case "fail":
				r.Verdict, r.Row = pb.Verdict_VERDICT_FAIL, 2
			case "unknown":
				r.Verdict, r.Row = pb.Verdict_VERDICT_UNKNOWN, 12
			}
			all[i] = historyRecord{schemas.FixityResults, int64(i), r}
		}
		c.Id = schemas.ChangeID(c)
	}
	return all
}

// model returns the expected record after a history, whatever the order in which it is stored.
func model(history []historyRecord) *pb.CopyRecord {
	rank := func(c *pb.Change) int {
		if c.GetOrigin() == pb.Origin_ORIGIN_FIXITY {
			return 0
		}
		return 1
	}
	newest := func(of func(*pb.Change) bool) (best *pb.Change, at int64) {
		for _, h := range history {
			c, ok := h.body.(*pb.Change)
			if !ok || !of(c) {
				continue
			}
			if best == nil || later(c.GetTime(), rank(c), h.offset, best.GetTime(), rank(best), at) {
				best, at = c, h.offset
			}
		}
		return best, at
	}
	written, writtenAt := newest(func(c *pb.Change) bool { return c.GetOp() == pb.Op_OP_ADD && !schemas.IsCompletion(c) })
	gone, goneAt := newest(func(c *pb.Change) bool { return c.GetOp() == pb.Op_OP_DELETE })
	typed, typedAt := newest(func(c *pb.Change) bool {
		return c.GetOp() == pb.Op_OP_SET_PROPERTIES ||
			c.GetOp() == pb.Op_OP_ADD && c.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED && !c.GetPropertiesUnknown()
	})
	r := &pb.CopyRecord{Manifest: clickhousetest.NoRecord()}
	var pass *pb.FixityResult
	for _, h := range history {
		if f, ok := h.body.(*pb.FixityResult); ok {
			if r.LastAttempt.AsTime().Before(f.GetStarted().AsTime()) {
				r.LastAttempt = clickhousetest.Millis(f.GetStarted())
			}
			if f.GetVerdict() == pb.Verdict_VERDICT_PASS &&
				(pass == nil || !f.GetStarted().AsTime().Before(pass.GetStarted().AsTime())) {
				pass = f
			}
		}
	}
	if written == nil && gone == nil {
		return r
	}
	m := &pb.Record{SizeUnknown: true}
	if written != nil {
		m = clickhousetest.RecordOf(written)
		m.Properties, m.Digests = nil, nil
	}
	m.State = pb.RecordState_RECORD_STATE_LIVE
	if gone != nil && (written == nil ||
		later(gone.GetTime(), rank(gone), goneAt, written.GetTime(), rank(written), writtenAt)) {
		m.State, m.Time, m.ChangeId, m.Origin = pb.RecordState_RECORD_STATE_TOMBSTONE, gone.GetTime(), gone.GetId(),
			gone.GetOrigin()
	} else if gone != nil && typed != nil &&
		later(gone.GetTime(), rank(gone), goneAt, typed.GetTime(), rank(typed), typedAt) {
		typed = nil // it belongs to another content
	}
	if typed != nil {
		m.Properties = typed.GetProperties()
		if written.GetMediaType() == "" ||
			later(typed.GetTime(), rank(typed), typedAt, written.GetTime(), rank(written), writtenAt) {
			m.MediaType = typed.GetMediaType()
		}
	}
	m.Provenance = pb.Provenance_PROVENANCE_UNSPECIFIED
	if written != nil {
		m.Digests, m.Provenance, m.Claims = digestsOf(history, written.GetId())
	}
	r.Manifest = m
	if pass != nil && m.Provenance == pb.Provenance_PROVENANCE_VERIFIED {
		for alg, d := range m.Digests {
			if pass.GetContent().GetDigests()[alg] == d {
				r.LastPass = clickhousetest.Millis(pass.GetStarted())
			}
		}
		for alg, d := range m.Digests {
			if other := pass.GetContent().GetDigests()[alg]; other != "" && other != d {
				r.LastPass = nil
			}
		}
	}
	return r
}

// withoutPropertiesOf removes from a fresh record what is read from the audit log.
func withoutPropertiesOf(r *pb.CopyRecord) *pb.CopyRecord {
	r.Audit, r.Manifest.PropertiesClaimed, r.Manifest.PropertiesOf = nil, false, nil
	return r
}

// digestsOf merges the digests of all reports of one change: the verified ones, and the claims that they contradict; if
// there are none, the claimed ones. It leaves out an algorithm if its newest digest belongs to another content of the
// same millisecond. Completions are older than reports, and the first of them is the newest.
func digestsOf(history []historyRecord, id string) (
	digests map[string]string, p pb.Provenance, claims map[string]string,
) {
	type holder struct {
		c  *pb.Change
		at int64
	}
	rank := func(c *pb.Change) int {
		switch {
		case schemas.IsCompletion(c):
			return 0
		case c.GetOrigin() == pb.Origin_ORIGIN_FIXITY:
			return 1
		}
		return 2
	}
	sets := map[pb.Provenance]map[string]string{}
	for _, p := range []pb.Provenance{pb.Provenance_PROVENANCE_VERIFIED, pb.Provenance_PROVENANCE_CLAIMED} {
		newest := map[string]holder{}
		for _, h := range history {
			c, ok := h.body.(*pb.Change)
			if !ok || c.GetOp() != pb.Op_OP_ADD || c.GetProvenance() != p {
				continue
			}
			at := h.offset
			if schemas.IsCompletion(c) {
				at = -at
			}
			for alg := range c.GetDigests() {
				b, ok := newest[alg]
				if !ok || later(c.GetTime(), rank(c), at, b.c.GetTime(), rank(b.c), b.at) {
					newest[alg] = holder{c, at}
				}
			}
		}
		sets[p] = map[string]string{}
		for alg, h := range newest {
			if h.c.GetId() == id {
				sets[p][alg] = h.c.GetDigests()[alg]
			}
		}
	}
	verified, claimed := sets[pb.Provenance_PROVENANCE_VERIFIED], sets[pb.Provenance_PROVENANCE_CLAIMED]
	switch {
	case len(verified) > 0:
		maps.DeleteFunc(claimed, func(alg, d string) bool { return verified[alg] == "" || verified[alg] == d })
		return verified, pb.Provenance_PROVENANCE_VERIFIED, claimed
	case len(claimed) > 0:
		return claimed, pb.Provenance_PROVENANCE_CLAIMED, nil
	}
	return nil, pb.Provenance_PROVENANCE_UNSPECIFIED, nil
}

func later(t1 *timestamppb.Timestamp, rank1 int, off1 int64, t2 *timestamppb.Timestamp, rank2 int, off2 int64) bool {
	if c := t1.AsTime().Compare(t2.AsTime()); c != 0 {
		return c > 0
	}
	if rank1 != rank2 {
		return rank1 > rank2
	}
	return off1 > off2
}

// Every order and repetition of a history ends in the state of the model.
func TestStateInAnyOrder(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	n := 0
	histories := map[string][]historyRecord{}
	need.Check(t, func(rt *rapid.T) {
		// Rapid repeats histories, so each gets an item of its own.
		n++
		item := fmt.Sprint("item-", n)
		all := history(item, drawHistory(rt))
		histories[item] = all
		twice := rapid.Permutation(append(slices.Clone(all), all...)).Draw(rt, "order")
		s := clickhouse.NewState(db)
		for len(twice) > 0 {
			size := rapid.IntRange(1, len(twice)).Draw(rt, "batch")
			byTopic := map[schemas.Topic][]*schemas.Delivery{}
			for _, h := range twice[:size] {
				byTopic[h.topic] = append(byTopic[h.topic], clickhousetest.Deliver(h.topic, h.offset, h.body)...)
			}
			for _, batch := range byTopic {
				if err := s.Store(t.Context(), batch); err != nil {
					rt.Fatal(err)
				}
			}
			twice = twice[size:]
		}
		c := schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: item}
		got := withoutPropertiesOf(clickhousetest.Fresh(t, db, c))
		if want := model(all); !proto.Equal(got, want) {
			rt.Errorf("after %v\n got %v\nwant %v", all, got, want)
		}
	})
	must(t, db.Exec(t.Context(), "OPTIMIZE TABLE {db}.copy_state FINAL"))
	var copies []schemas.Copy
	for item := range histories {
		copies = append(copies, schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: item})
	}
	got, err := clickhousetest.Reader(t, db, clickhousetest.Reached, read.ReaderConfig{}).Fresh(t.Context(), copies)
	must(t, err)
	for i, c := range copies {
		clickhousetest.Compare(t, c.Item+" after a merge", withoutPropertiesOf(got[i]), model(histories[c.Item]))
	}
}

// Values that the store could not report for a newer content do not change: a content without a size is not empty,
// and one without properties does not remove them.
func TestStateOfUnknownValues(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	c, empty := clickhousetest.Change("a", 0), clickhousetest.Change("empty", 0)
	c.Properties, empty.Size = map[string]string{"k": "v"}, 0
	lost := clickhousetest.Change("a", time.Hour)
	lost.Size, lost.SizeUnknown, lost.MediaType, lost.PropertiesUnknown = 0, true, "", true
	never := clickhousetest.Change("b", 0)
	never.Op, never.Size, never.SizeUnknown = pb.Op_OP_DELETE, 0, true
	set := clickhousetest.Change("a", 2*time.Hour)
	set.Op, set.PropertiesUnknown, set.MediaType = pb.Op_OP_SET_PROPERTIES, true, ""
	set.Id = schemas.ChangeID(set)
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, c, lost, never, empty, set)
	got, err := clickhousetest.Strings(t.Context(), db,
		"SELECT item || ' ' || ifNull(toString(size), 'unknown') || ' ' || media_type || ' ' || toString(properties)"+
			" FROM {db}.manifest ORDER BY item")
	want := []string{"a unknown image/jpeg {'k':'v'}", "b unknown  {}", "empty 0 image/jpeg {}"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the manifest says %q (%v), want %q", got, err, want)
	}
	r := clickhousetest.Fresh(t, db, schemas.CopyOf(c))
	live := clickhousetest.RecordOf(lost)
	live.Properties, live.MediaType = c.GetProperties(), "image/jpeg"
	live.PropertiesOf = &pb.Content{Version: c.GetVersion(), Digests: c.GetDigests()}
	clickhousetest.Compare(t, "manifest", r.GetManifest(), live)
	clickhousetest.Compare(t, "audit", r.GetAudit(), clickhousetest.EvidenceOf(clickhousetest.RecordOf(lost)))
	if got := clickhousetest.Value(t, db, "SELECT toString(sum(size)) FROM {db}.manifest"); got != "0" {
		t.Errorf("the sizes that are known sum to %s, want 0", got)
	}
	counts, err := read.CopyCounts(t.Context(), db, "acme")
	if want := []read.CopyCount{{Store: "1", Live: 2, Tombstones: 1, Unsized: 1}}; err != nil ||
		!slices.Equal(counts, want) {
		t.Errorf("CopyCounts = %v, %v, want %v", counts, err, want)
	}
}

// The state uses the last report of the newest content, and the media type of the previous content if that report
// has none and no verified digests. The audit log joins the reports.
func TestStateUsesLastReport(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	sized, poorer := clickhousetest.Change("imported", 0), clickhousetest.Change("imported", 0)
	poorer.Size, poorer.SizeUnknown, poorer.Version, poorer.Etag = 0, true, "", ""
	const parts = "uploaded in parts"
	typed, bare, read := clickhousetest.Change(parts, 0), clickhousetest.Change(parts,
		time.Hour), clickhousetest.Change(parts, time.Hour)
	bare.MediaType, bare.Digests, bare.Provenance = "", nil, pb.Provenance_PROVENANCE_UNSPECIFIED
	read.MediaType, read.Origin = "", pb.Origin_ORIGIN_FIXITY
	const of = "SELECT item || ' ' || ifNull(toString(size), 'unknown') || ' ' || version || ' ' || media_type FROM {db}."
	is := func(when, from string, want ...string) {
		t.Helper()
		got, err := clickhousetest.Strings(t.Context(), db, of+from+" ORDER BY item")
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s %s says %q, %v, want %q", when, from, got, err, want)
		}
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, sized, poorer, typed, bare)
	is("as reported,", "manifest", "imported unknown  image/jpeg", "uploaded in parts 4600 v1h0m0s image/jpeg")
	is("as reported,", "audit_log_v WHERE ts = (SELECT max(ts) FROM {db}.audit_log) OR item = 'imported'",
		"imported 1000 v0s image/jpeg", "uploaded in parts 4600 v1h0m0s ")
	clickhousetest.StoreBoth(t, db, schemas.Changes, 4, read)
	is("once it is read,", "manifest", "imported unknown  image/jpeg", "uploaded in parts 4600 v1h0m0s ")
}

// The ACL of a deleted item does not belong to the next one.
func TestRightsOfADeletedItem(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	c, gone := clickhousetest.Change("a", 0), clickhousetest.Change("a", time.Hour)
	c.Acl, gone.Op = map[string]string{"ann": "read"}, pb.Op_OP_DELETE
	gone.Id = schemas.ChangeID(gone)
	for i, tt := range []struct {
		c    *pb.Change
		want string
	}{{c, "read"}, {gone, "read"}, {clickhousetest.Change("a", 2*time.Hour), ""}} {
		clickhousetest.StoreBoth(t, db, schemas.Changes, int64(i), tt.c)
		if got := clickhousetest.Value(t, db, "SELECT acl['ann'] FROM {db}.manifest"); got != tt.want {
			t.Errorf("after change %d the right is %q, want %q", i, got, tt.want)
		}
	}
}

func TestStateOfSpaces(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	gone := clickhousetest.Change("", time.Hour)
	gone.Op = pb.Op_OP_DELETE_SPACE
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, clickhousetest.Change("a", 0), gone)
	got := clickhousetest.Fresh(t, db, schemas.CopyOf(clickhousetest.Change("a", 0))).GetManifest().GetState()
	if got != pb.RecordState_RECORD_STATE_LIVE {
		t.Errorf("after its space was deleted an item is %v, want it live until its own delete", got)
	}
	if got := clickhousetest.Count(t, db, "manifest"); got != "1" {
		t.Errorf("the manifest has %s rows, want 1", got)
	}
}

// The view manifest agrees with the records that the program reads.
func TestManifestView(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	c := clickhousetest.Change("a", 0)
	c.Properties = map[string]string{"k": "v"}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, c)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, clickhousetest.Result(c, time.Hour))
	got := clickhousetest.Value(t, db, "SELECT formatRowNoNewline('JSONEachRow', *) FROM {db}.manifest")
	want := `{"account":"acme","store":"1","space":"photos","item":"a","live":1,` +
		`"digests":{"md5":"` + c.Digests["md5"] + `","sha256":"` + c.Digests["sha256"] +
		`"},"verified":1,"claims":{},"size":1000,"version":"v0s","etag":"",` +
		`"media_type":"image\/jpeg","properties":{"k":"v"},` +
		`"acl":{},"time":"2026-03-04 05:06:07.891",` +
		`"change":"` + c.Id + `","origin":"client","user":"ann","source_time":null,"source_version":"",` +
		`"last_attempt":"2026-03-04 06:06:07.891",` +
		`"last_pass":"2026-03-04 06:06:07.891","passed":{"md5":"` + c.Digests["md5"] + `",` +
		`"sha256":"` + c.Digests["sha256"] + `"},"last_fail":null,"last_finding":"","last_asserted":null}`
	if got != want {
		t.Errorf("the manifest says\n%s, want\n%s", got, want)
	}
}
