package fixity

import (
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

// LevelComputed is the evidence level of digests that a provider has computed on demand. Such a result moves no clock
// and closes no incident: it is of a version that the store may not serve any more.
const LevelComputed = 3

// A Computed is a digest that the provider of a store has computed from the bytes of an object, on demand.
type Computed struct {
	Copy    schemas.Copy
	Version string     // the version id of the object; empty: not reported
	ETag    string     // empty: not reported
	Digests digest.Set // of the whole object; empty: the digest is not one of the whole object
	// Since is the time at which, or after which, it was computed, by the clock of the store.
	Since time.Time
}

// A Comparison is the result of comparing a Computed with the records of its copy.
type Comparison string

// The comparisons.
const (
	ComputedAgrees       Comparison = "agreed"
	ComputedDiffers      Comparison = "differs"        // not a fault yet: the bytes are to be read
	ComputedIncomparable Comparison = "not comparable" // of parts, or of an algorithm that is not on record
	ComputedNotCurrent   Comparison = "not current"    // of another object than the one on record, or possibly of another
	ComputedUnknown      Comparison = "unknown"        // no copy is on record
)

// Compare compares c with the records of the copy, which may be those of a task. It is pure.
func (c Computed) Compare(r *pb.CopyRecord) Comparison {
	e := c.evidence(r)
	switch {
	case !e.Manifest.isLive() && !e.Manifest.isTombstone() && !e.Audit.isLive():
		return ComputedUnknown
	case !c.isCurrent(r.GetManifest()):
		return ComputedNotCurrent
	case len(c.Digests) == 0:
		return ComputedIncomparable
	}
	switch v := Judge(e, StoreSettings{}); {
	case v.Row == RowPass:
		return ComputedAgrees
	case v.Row == RowUnverified, v.Detail == detailNoDigests:
		return ComputedIncomparable
	}
	return ComputedDiffers
}

// evidence returns the digests as a report of the store, with the content unread.
func (c Computed) evidence(r *pb.CopyRecord) EvidenceSet {
	return EvidenceSet{
		Content:  Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNREAD},
		Stored:   Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: c.Digests},
		Manifest: manifestEvidence(r.GetManifest()), Audit: auditEvidence(r.GetAudit()),
	}
}

// isCurrent reports whether the digest is of the object on record: by its version, else by its ETag and because that
// object was there before.
func (c Computed) isCurrent(m *pb.Record) bool {
	if c.Version != "" && m.GetVersion() != "" {
		return c.Version == m.GetVersion()
	}
	if c.ETag != "" && m.GetEtag() != "" && c.ETag != m.GetEtag() {
		return false
	}
	return m.GetTime() == nil || !m.GetTime().AsTime().After(c.Since)
}

// ID returns the id of the result: a function of the copy, the object, its digests and the time.
func (c Computed) ID() string {
	parts := []string{"computed", c.Copy.String(), c.Version, c.ETag, strconv.FormatInt(c.Since.UnixMilli(), 10)}
	for _, alg := range c.Digests.Algorithms() {
		parts = append(parts, alg, c.Digests[alg])
	}
	return schemas.ID(parts...)
}

// Result returns the result of a digest that agrees with the records: a pass, which does not count as one of the bytes.
func (c Computed) Result(r *pb.CopyRecord, storeKind, software string) *pb.FixityResult {
	e, at := c.evidence(r), timestamppb.New(c.Since)
	v := verdict(RowPass, "computed by the provider")
	return &pb.FixityResult{
		Id: c.ID(), Task: c.ID(), Cause: c.ID(),
		Account: c.Copy.Account, Store: c.Copy.Store, Space: c.Copy.Space, Item: c.Copy.Item,
		StoreKind: storeKind, Reason: pb.FixityReason_FIXITY_REASON_DEMAND,
		Verdict: v.Outcome, Row: int32(v.Row), Finding: v.Finding, Detail: v.Detail,
		Final: true, EvidenceLevel: LevelComputed, Software: software, Started: at, Finished: at,
		Object:  &pb.Identity{Version: c.Version, Etag: c.ETag, Size: r.GetManifest().GetSize()},
		Content: e.Content.proto(), Stored: e.Stored.proto(), Manifest: e.Manifest.proto(), Audit: e.Audit.proto(),
	}
}
