package app

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage/record"
)

// A client reports a file without digests and without a version. The copier reads it, and its digests join that report:
// then rot is found, and is neither a reference nor copied.
func TestDigestsJoinOverTheTables(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Fixity.Recheck, s.cfg.Fixity.Settle = nil, 0
	s.cfg.Duplication.Wait = []time.Duration{time.Millisecond}
	x := s.archive(everyRole...)
	s.inForce(x.app, "acme", "2")
	x.behind("1", "a", "good")
	o, err := x.store("1").Stat(t.Context(), "photos", "a")
	x.must(err)
	at := schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "a"}
	o.Version, o.ETag, o.Digests = "", "", nil
	c := record.Content(at, o)
	c.Origin, c.User = pb.Origin_ORIGIN_CLIENT, "bob"
	x.publish(schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
	x.holds("2", map[string]string{"a": "good"})
	x.idle()
	sum := md5.Sum([]byte("good"))
	good := digest.Set{digest.MD5: hex.EncodeToString(sum[:])}
	onRecord := func(when string) {
		t.Helper()
		known, err := read.Records(t.Context(), x.app.db, []schemas.Copy{at})
		x.must(err)
		for from, r := range map[string]*pb.Record{"manifest": known[0].GetManifest(), "audit log": known[0].GetAudit()} {
			if r.GetChangeId() != c.GetId() || r.GetOrigin() != pb.Origin_ORIGIN_CLIENT ||
				r.GetProvenance() != pb.Provenance_PROVENANCE_VERIFIED ||
				digest.Set(r.GetDigests()).Compare(good) != digest.Agree {
				t.Errorf("%s, the %s has %v, want the digests of %v", when, from, r, c)
			}
		}
		rows := clickhousetest.Count(t, x.app.db, "audit_log_v WHERE store = '1' AND item = 'a' AND user = 'bob'")
		if rows != "1" {
			t.Errorf("%s, the view of the audit log has %s rows", when, rows)
		}
	}
	onRecord("copied")

	path := x.path(0, "a")
	info, err := os.Stat(path)
	x.must(err)
	x.must(errors.Join(os.WriteFile(path, []byte("gooD"), 0o600), os.Chtimes(path, info.ModTime(), info.ModTime())))
	x.publish(schemas.Message{Topic: schemas.FixityHigh, Body: &pb.FixityTask{Id: schemas.NewID(), Account: "acme",
		Store: "1", Space: "photos", Item: "a", Reason: pb.FixityReason_FIXITY_REASON_DEMAND}})
	s.untilTrue("the incident of the rot", func() bool { return len(x.open("replaced")) == 1 })
	x.must(os.Remove(x.path(1, "a")))
	x.compare(true)
	x.idle()
	x.holds("2", map[string]string{"a": "absent"})
	onRecord("rotten")
}

// A first check is killed between its effects, in each order of them, or its messages are lost, and its task is
// delivered again. At rest the digests are on record under the id of the report, and the copy counts as verified.
func TestFirstCheckKilled(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change, result bool // these were published
		rot            bool // after the first check
		row            int32
		verdict        pb.Verdict
	}{
		"nothing is published": {false, false, false, 9, pb.Verdict_VERDICT_PASS},
		"the result is":        {false, true, false, 9, pb.Verdict_VERDICT_PASS},
		"the completion is":    {true, false, false, 1, pb.Verdict_VERDICT_PASS},
		"both are":             {true, true, false, 1, pb.Verdict_VERDICT_PASS},
		"the completion is, and the bytes rotted": {true, false, true, 13, pb.Verdict_VERDICT_FAIL},
		"both are, and the bytes rotted":          {true, true, true, 13, pb.Verdict_VERDICT_FAIL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCheckedStore(t)
			c.put("a", "right")
			c.mem.Rewrite("photos", "a", []byte("right")) // no digests
			o, err := c.mem.Stat(t.Context(), "photos", "a")
			c.must(err)
			reported := record.Content(c.copy("a"), o)
			reported.Origin = pb.Origin_ORIGIN_IMPORT
			c.record(record.Seal(reported), true, true)
			publish := func(change *pb.Change, result *pb.FixityResult) {
				if change != nil {
					c.record(change, true, true)
				}
				if result != nil {
					c.offset++
					clickhousetest.StoreBoth(t, c.db, schemas.FixityResults, c.offset, result)
				}
			}
			result, change := c.check("a", nil)
			if !schemas.IsCompletion(change) || change.GetId() != reported.GetId() || result.GetFinding() != "captured" {
				t.Fatalf("%v, %v", result, change)
			}
			if !tt.change {
				change = nil
			}
			if !tt.result {
				result = nil
			}
			publish(change, result)
			if tt.rot {
				c.mem.Corrupt("photos", "a", []byte("roght"))
			}
			again, change := c.check("a", nil)
			if again.GetRow() != tt.row || again.GetVerdict() != tt.verdict || (change != nil) == tt.change {
				t.Errorf("again: row %d, %v, %v", again.GetRow(), again.GetVerdict(), change)
			}
			publish(change, again)
			known := clickhousetest.Fresh(t, c.db, c.copy("a"))
			for from, r := range map[string]*pb.Record{"manifest": known.GetManifest(), "audit log": known.GetAudit()} {
				if r.GetChangeId() != reported.GetId() || len(r.GetDigests()) == 0 ||
					r.GetProvenance() != pb.Provenance_PROVENANCE_VERIFIED {
					t.Errorf("the %s has %v", from, r)
				}
			}
			status, err := read.FixityStatus(t.Context(), c.db, read.StatusQuery{Account: "acme"})
			c.must(err)
			want := read.SpaceStatus{Live: 1, Verified: 1}
			if tt.rot {
				want = read.SpaceStatus{Live: 1, Failing: 1}
				if tt.result {
					want.Verified = 1 // before
				}
			}
			if len(status) != 1 || status[0].Live != want.Live || status[0].Verified != want.Verified ||
				status[0].Failing != want.Failing {
				t.Errorf("status %+v, want %+v", status, want)
			}
			if rows := clickhousetest.Count(t, c.db, "audit_log_v"); rows != "1" {
				t.Errorf("the view of the audit log has %s rows", rows)
			}
		})
	}
}
