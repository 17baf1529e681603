package fixity

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// bare removes the digests from the records of the copy.
func (w *world) bare() {
	for _, r := range []*pb.Record{w.record.Manifest, w.record.Audit} {
		r.Digests, r.Provenance = nil, pb.Provenance_PROVENANCE_UNSPECIFIED
	}
}

// other puts a copy in store 3 on record, made from the object under test, with these bytes.
func (w *world) other(content string, edit func(*pb.Record)) {
	r := &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Digests: sums(content), Version: "other",
		Provenance: pb.Provenance_PROVENANCE_VERIFIED, Time: record.Time(time.Now().Add(-time.Hour)),
		SourceTime: record.Time(w.object.Modified), SourceVersion: w.object.Version}
	if edit != nil {
		edit(r)
	}
	w.others = map[string]*pb.Record{"3": r}
}

// The first check of a content completes its record, and is a pass, if the copies in other stores do not contradict it.
func TestFirstChecks(t *testing.T) {
	const pass, fail, uncaptured = pb.Verdict_VERDICT_PASS, pb.Verdict_VERDICT_FAIL, pb.Verdict_VERDICT_NOT_CAPTURED
	const completed, corrected, nothingSaid = "completed", "corrected", "nothing"
	// copied puts the item as a copy of content of a source that the manifest does not name.
	copied := func(w *world, version string, modified time.Time) {
		o, err := w.mem.Put(w.t.Context(), at.Space, at.Item, strings.NewReader(good),
			storage.PutOptions{Size: storage.UnknownSize, Original: storage.Original{Version: version, Modified: modified}})
		must(w.t, err)
		w.object = o
		w.record = w.now()
		w.bare()
		time.Sleep(72 * time.Hour)
	}
	since := func(w *world) time.Time { return w.object.Modified.Add(-time.Hour) }
	tests := map[string]struct {
		prepare func(*world, *pb.FixityTask)
		row     int32
		verdict pb.Verdict
		finding string
		change  string
	}{
		"bare": {func(w *world, _ *pb.FixityTask) { w.bare() }, 9, pass, "captured", completed},
		"bare, carried by the task": {func(w *world, t *pb.FixityTask) {
			w.bare()
			t.Known = proto.CloneOf(w.record)
		}, 9, pass, "captured", completed},
		"bare, dated 2200": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.record.Manifest.Reported = timestamppb.New(time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC))
		}, 9, pass, "captured", completed},
		"bare, of another version": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.record.Manifest.Version = "v0"
		}, 9, pass, "captured", corrected},
		"baseline": {func(w *world, t *pb.FixityTask) {
			w.record, t.Baseline = nothing(), true
		}, 9, pass, "captured", corrected},
		"baseline, unread": {func(w *world, t *pb.FixityTask) {
			w.record, t.Baseline, w.settings.NeverRead = nothing(), true, true
		}, 9, pb.Verdict_VERDICT_UNVERIFIED, "not-captured", nothingSaid},
		"unknown": {func(w *world, _ *pb.FixityTask) { w.record = nothing() }, 9, uncaptured, "not-captured", corrected},
		"digests are carried, and none are on record": {func(w *world, t *pb.FixityTask) {
			t.Known = proto.CloneOf(w.record)
			t.Known.Manifest.Digests = sums(rot)
			w.bare()
			w.other(good, nil)
		}, 9, pass, "captured", completed},
		"a claim that agrees": {func(w *world, _ *pb.FixityTask) { w.claim() }, 1, pass, "pass", completed},
		"a claim that agrees, carried by the task": {func(w *world, t *pb.FixityTask) {
			w.claim()
			t.Known = proto.CloneOf(w.record)
		}, 1, pass, "pass", completed},
		"a claim that differs": {func(w *world, _ *pb.FixityTask) {
			w.claim()
			w.record.Manifest.Digests, w.record.Audit.Digests = sums(rot), sums(rot)
		}, 14, fail, "no-quorum", nothingSaid},
		"a claim beside verified digests": {func(w *world, _ *pb.FixityTask) {
			w.record.Manifest.Claims = sums(rot)
		}, 14, fail, "no-quorum", nothingSaid},
		"another copy agrees": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.other(good, nil)
		}, 9, pass, "captured", completed},
		"another copy differs": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.other(rot, nil)
		}, 14, fail, "no-quorum", nothingSaid},
		"another copy differs, in a baseline": {func(w *world, t *pb.FixityTask) {
			w.record, t.Baseline = nothing(), true
			w.other(rot, nil)
		}, 14, fail, "no-quorum", nothingSaid},
		"another copy differs, without a version of its source": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.other(rot, func(r *pb.Record) { r.SourceVersion = "" })
		}, 14, fail, "no-quorum", nothingSaid},
		"another copy is claimed": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.other(rot, func(r *pb.Record) { r.Provenance = pb.Provenance_PROVENANCE_CLAIMED })
		}, 9, pass, "captured", completed},
		"another copy is deleted": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.other(rot, func(r *pb.Record) { r.State = pb.RecordState_RECORD_STATE_TOMBSTONE })
		}, 9, pass, "captured", completed},
		"another copy is not on record": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.others = map[string]*pb.Record{"3": {State: pb.RecordState_RECORD_STATE_NONE}}
		}, 9, pass, "captured", completed},
		"another copy is of another version": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.other(rot, func(r *pb.Record) { r.SourceVersion = "v0" })
		}, 9, pass, "captured", completed},
		"another copy is of another time": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.other(rot, func(r *pb.Record) { r.SourceVersion, r.SourceTime = "", record.Time(since(w)) })
		}, 9, pass, "captured", completed},
		"another object of that version, which nobody copied": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.other(rot, func(r *pb.Record) {
				r.SourceVersion, r.SourceTime, r.Version, r.Time = "", nil, w.object.Version, record.Time(w.object.Modified)
			})
		}, 9, pass, "captured", completed},
		"a copy of the same source differs": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.record.Manifest.SourceVersion, w.record.Manifest.SourceTime = "s1", record.Time(since(w))
			w.other(rot, func(r *pb.Record) { r.SourceVersion, r.SourceTime = "s1", record.Time(since(w)) })
		}, 14, fail, "no-quorum", nothingSaid},
		"a copy of the same source differs, as its store says": {func(w *world, _ *pb.FixityTask) {
			copied(w, "s1", since(w))
			w.other(rot, func(r *pb.Record) { r.SourceVersion, r.SourceTime = "s1", record.Time(since(w)) })
		}, 14, fail, "no-quorum", nothingSaid},
		"its source differs, as its store says": {func(w *world, _ *pb.FixityTask) {
			copied(w, "s1", since(w))
			w.other(rot, func(r *pb.Record) { r.SourceVersion, r.SourceTime, r.Version = "", nil, "s1" })
		}, 14, fail, "no-quorum", nothingSaid},
		"its source has a newer version": {func(w *world, _ *pb.FixityTask) {
			copied(w, "s1", since(w))
			w.other(rot, func(r *pb.Record) { r.SourceVersion, r.SourceTime, r.Version = "", nil, "s2" })
		}, 9, pass, "captured", completed},
		"its source differs": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.record.Manifest.SourceVersion, w.record.Manifest.SourceTime = "s1", record.Time(since(w))
			w.other(rot, func(r *pb.Record) { r.SourceVersion, r.SourceTime, r.Version = "", nil, "s1" })
		}, 14, fail, "no-quorum", nothingSaid},
		"its source differs, by its time": {func(w *world, _ *pb.FixityTask) {
			w.bare()
			w.record.Manifest.SourceTime = record.Time(since(w))
			w.other(rot, func(r *pb.Record) { r.SourceVersion, r.SourceTime, r.Time = "", nil, record.Time(since(w)) })
		}, 14, fail, "no-quorum", nothingSaid},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				next := task(nil)
				tt.prepare(w, next)
				o := w.last(next)
				r := o.result
				if r.GetRow() != tt.row || r.GetVerdict() != tt.verdict || r.GetFinding() != tt.finding {
					t.Errorf("row %d, %v, %s (%s); want %d, %v, %s", r.GetRow(), r.GetVerdict(), r.GetFinding(), r.GetDetail(),
						tt.row, tt.verdict, tt.finding)
				}
				got := nothingSaid
				switch {
				case o.change == nil:
				case schemas.IsCompletion(o.change):
					got = completed
				default:
					got = corrected
				}
				if got != tt.change {
					t.Errorf("%s, want %s: %v", got, tt.change, o.change)
				}
			})
		})
	}
}

// If the records of the other copies do not answer, nothing is concluded.
func TestOthersDoNotAnswer(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.bare()
		w.other(good, nil)
		w.fresh = func() ([]*pb.CopyRecord, error) { return nil, errors.New("connection refused") }
		w.is(w.handle(task(nil)), 12, pb.Verdict_VERDICT_UNKNOWN, false)
		w.fresh = nil
		w.is(w.last(task(nil)), 9, pb.Verdict_VERDICT_PASS, true)
	})
}

// A claim that was promoted is not promoted again.
func TestClaimIsPromotedOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.claim()
		o := w.handle(task(nil))
		for _, r := range []*pb.Record{w.record.Manifest, w.record.Audit} {
			r.Digests, r.Provenance = o.change.GetDigests(), o.change.GetProvenance()
		}
		if again := w.handle(task(nil)); again.result.GetRow() != 1 || again.change != nil {
			t.Errorf("row %d, %v", again.result.GetRow(), again.change)
		}
	})
}
