package fixity

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

// A computed digest is compared with the records of the object that it is of.
func TestCompareComputed(t *testing.T) {
	since := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	const a, b = "0cc175b9c0f1b6a831c399e269772661", "92eb5ffee6ae2fec3ad71c777531578f"
	record := func(state pb.RecordState, sum string, written time.Duration) *pb.Record {
		r := &pb.Record{State: state, Version: "v", Etag: "e", Time: timestamppb.New(since.Add(written))}
		if sum != "" {
			r.Digests, r.Provenance = map[string]string{"md5": sum}, pb.Provenance_PROVENANCE_VERIFIED
		}
		return r
	}
	const live, dead, none = pb.RecordState_RECORD_STATE_LIVE, pb.RecordState_RECORD_STATE_TOMBSTONE,
		pb.RecordState_RECORD_STATE_NONE
	const before, after = -time.Hour, time.Hour
	both := func(sum string, written time.Duration) *pb.CopyRecord {
		return &pb.CopyRecord{Manifest: record(live, sum, written), Audit: record(live, sum, written)}
	}
	unversioned := both(a, before)
	unversioned.Manifest.Version = `"e"`
	sum := digest.Set{"md5": a}
	for name, tt := range map[string]struct {
		computed Computed
		record   *pb.CopyRecord
		want     Comparison
	}{
		"the same":  {Computed{Version: "v", ETag: "e", Digests: sum}, both(a, before), ComputedAgrees},
		"another":   {Computed{Version: "v", ETag: "e", Digests: sum}, both(b, before), ComputedDiffers},
		"no record": {Computed{Version: "v", Digests: sum}, nil, ComputedUnknown},
		"no row": {Computed{Version: "v", Digests: sum},
			&pb.CopyRecord{Manifest: record(none, "", 0), Audit: record(none, "", 0)}, ComputedUnknown},
		"of parts": {Computed{Version: "v", ETag: "e"}, both(a, before), ComputedIncomparable},
		"another algorithm": {Computed{Version: "v", Digests: digest.Set{"crc32": "6d2f5339"}}, both(a, before),
			ComputedIncomparable},
		"no digest on record": {Computed{Version: "v", Digests: sum}, both("", before), ComputedIncomparable},
		"another version": {Computed{Version: "w", ETag: "e", Digests: sum}, both(a, before),
			ComputedNotCurrent},
		"another ETag":                 {Computed{ETag: "f", Digests: sum}, both(b, before), ComputedNotCurrent},
		"written later":                {Computed{ETag: "e", Digests: sum}, both(a, after), ComputedNotCurrent},
		"this version, which is later": {Computed{Version: "v", Digests: sum}, both(a, after), ComputedAgrees},
		"by its ETag":                  {Computed{ETag: "e", Digests: sum}, both(a, before), ComputedAgrees},
		"without versions":             {Computed{ETag: "e", Digests: sum}, unversioned, ComputedAgrees},
		"deleted later": {Computed{ETag: "e", Digests: sum},
			&pb.CopyRecord{Manifest: record(dead, "", after), Audit: record(none, "", 0)}, ComputedNotCurrent},
		"deleted before": {Computed{ETag: "e", Digests: sum},
			&pb.CopyRecord{Manifest: record(dead, "", before), Audit: record(none, "", 0)}, ComputedDiffers},
		"no audit row": {Computed{Version: "v", Digests: sum},
			&pb.CopyRecord{Manifest: record(live, a, before), Audit: record(none, "", 0)}, ComputedDiffers},
		"the manifest differs": {Computed{Version: "v", Digests: sum},
			&pb.CopyRecord{Manifest: record(live, b, before), Audit: record(live, a, before)}, ComputedDiffers},
	} {
		t.Run(name, func(t *testing.T) {
			tt.computed.Since = since
			if got := tt.computed.Compare(tt.record); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// The result of a computed digest is a function of it, and of the records.
func TestResultOfComputed(t *testing.T) {
	since := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	sums := map[string]string{"md5": "0cc175b9c0f1b6a831c399e269772661"}
	m := &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Digests: sums, Size: 7}
	c := Computed{Copy: schemas.Copy{Account: "acme", Store: "1", Space: "s", Item: "a"}, Version: "v", ETag: "e",
		Digests: sums, Since: since}
	claimed := &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: sums,
		Provenance: pb.Provenance_PROVENANCE_CLAIMED}
	want := &pb.FixityResult{Id: c.ID(), Task: c.ID(), Cause: c.ID(), Account: "acme", Store: "1", Space: "s", Item: "a",
		StoreKind: "s3", Reason: pb.FixityReason_FIXITY_REASON_DEMAND, Verdict: pb.Verdict_VERDICT_PASS, Row: 1,
		Finding: "pass", Final: true, EvidenceLevel: 3, Detail: "computed by the provider", Software: "1.0",
		Started: timestamppb.New(since), Finished: timestamppb.New(since),
		Object:  &pb.Identity{Version: "v", Etag: "e", Size: 7},
		Content: &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNREAD},
		Stored: &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: sums,
			Provenance: pb.Provenance_PROVENANCE_VERIFIED},
		Manifest: claimed, Audit: claimed}
	if got := c.Result(&pb.CopyRecord{Manifest: m, Audit: m}, "s3", "1.0"); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	other := c
	other.Digests = digest.Set{"md5": "92eb5ffee6ae2fec3ad71c777531578f"}
	later := c
	later.Since = since.Add(time.Hour)
	if c.ID() == other.ID() || c.ID() == later.ID() || c.ID() != (Computed{c.Copy, "v", "e", sums, since}).ID() {
		t.Error("the id is not a function of digests and time")
	}
}
