package duplicate

import (
	"strings"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// The results of restore orders, besides held.
const (
	ResultRestored        = "restored"
	ResultAlreadyRestored = "already-restored"
	ResultRestoreMoot     = "restore-moot"
	ResultRestoreRefused  = "restore-refused"
	ResultRestoreUnproven = "restore-unproven"
	ResultRestoreFailed   = "restore-failed"
)

// A restoreObservation is the complete input of a decision about a restore order.
type restoreObservation struct {
	Order *pb.RestoreOrder
	// There is the copy that is to get the content.
	There Side
	// Hold is the hold of the item that is in force; nil if there is none.
	Hold *policy.Hold
	// Refused is why nothing may be written to the store; empty if writes are allowed.
	Refused string
	// recordsState is that of the records of There and of the sources.
	recordsState recordsState
	// Proven are the digests that the audit log has of the content, verified against bytes; empty if it has none.
	// proofState says whether they were looked up.
	Proven     digest.Set
	proofState recordsState
	// Source is the place of the bytes that is tried now. Exhausted: no further one is left.
	Source    Side
	Exhausted bool
	// Away: one of the sources did not answer. Failures says why the others that were tried have no good bytes.
	Away     bool
	Failures []string
}

// decideRestore decides C0r. It is pure and total. Content comes back only if it is proven by the audit log, if its
// bytes can be read, and if the copy is still the object or the absence that the order names.
func decideRestore(s restoreObservation) Decision {
	d := Decision{Row: RowRestore}
	present := s.There.Presence == Present
	agreement := digest.Set(s.Order.GetDigests()).Compare(s.There.digests())
	switch {
	case !present && s.There.Presence != Absent:
		d.action = actFail
		return d
	case present && agreement == digest.Incomparable && len(s.There.Read) == 0:
		d.action, d.ReadDestination = actReadBytes, true
		return d
	case present && agreement == digest.Agree:
		return s.alreadyThere(d)
	case s.Refused != "":
		d.Result, d.Detail = ResultRestoreRefused, s.Refused
		return d
	}
	if d.Detail = s.replaced(); d.Detail != "" {
		d.Result = ResultRestoreMoot
		return d
	}
	if present && s.Hold != nil {
		return Observation{Hold: s.Hold}.held(d)
	}
	if s.recordsState != recordsRead || s.There.Record.GetManifest().GetState() == 0 {
		return s.needRecords(d)
	}
	if d.Detail = s.deletedAgain(); d.Detail != "" {
		d.Result = ResultRestoreMoot
		return d
	}
	return s.fromSource(d)
}

// needRecords decides when records are needed: read them, or fail if that was tried.
func (s restoreObservation) needRecords(d Decision) Decision {
	d.action = actFail
	if s.recordsState == recordsUnread {
		d.action = actReadRecords
	}
	return d
}

// alreadyThere decides if the copy has the content. An execution that died after its write may have written it, so the
// Change is published if the manifest lacks the content. If the manifest has it from a repair, that execution may have
// died before it published the check and the commands that follow, so all are published again, under the same ids.
func (s restoreObservation) alreadyThere(d Decision) Decision {
	row := s.There.Record.GetManifest()
	if s.recordsState != recordsRead || row.GetState() == 0 {
		return s.needRecords(d)
	}
	d.Result = ResultAlreadyRestored
	d.Announce = !isLive(row) || !contentOf(row).matches(s.There) || row.GetOrigin() == pb.Origin_ORIGIN_REPAIR
	return d
}

// replaced returns why the copy is not what the order names; empty if it is.
func (s restoreObservation) replaced() string {
	replaces, present := s.Order.GetReplaces(), s.There.Presence == Present
	switch {
	case replaces == nil && present:
		return "the item is there again, with other content"
	case replaces != nil && !present:
		return "the content that was to be replaced is not there any more"
	case replaces != nil && !record.Is(s.There.Object, replaces):
		return "the content that was to be replaced has changed"
	}
	return ""
}

// deletedAgain returns why the absence of the copy is not the one that the order names; empty if it is.
func (s restoreObservation) deletedAgain() string {
	row := s.There.Record.GetManifest()
	if s.There.Presence == Present {
		return ""
	}
	switch deleted := s.Order.GetDeleted(); {
	case deleted == nil && isTombstone(row):
		return "the item was deleted after the decision"
	case deleted != nil && !isTombstone(row):
		return "the item is not on record as deleted any more"
	case deleted != nil && row.GetTime().AsTime().Truncate(time.Millisecond).After(deleted.AsTime()):
		return "the item was deleted again after the decision"
	}
	return ""
}

// fromSource decides if the copy is as the order names it: whether the content is proven, and which source is good.
func (s restoreObservation) fromSource(d Decision) Decision {
	expected := supported(digest.Set(s.Order.GetDigests()).Union(s.Proven))
	bad := digest.Set(s.Order.GetDigests()).Compare(s.Source.digests()) == digest.Disagree
	switch {
	case s.proofState == recordsUnread:
		d.action = actReadProof
	case s.proofState != recordsRead:
		d.action = actFail
	case len(s.Proven) == 0 || len(expected) == 0:
		d.Result = ResultRestoreUnproven
		d.Detail = "no check or copy has read bytes with these digests"
	case s.Exhausted && s.Away:
		d.action = actFail
	case s.Exhausted:
		d.Result, d.Detail = ResultRestoreFailed, strings.Join(s.Failures, "; ")
	case s.Source.Presence != Present || bad:
		d.action, d.CheckSource = actNextSource, bad
	default:
		d.action, d.Result, d.Expected = actCopy, ResultRestored, expected
	}
	return d
}

// properties returns those that the content comes back with: of the source, or else those on record for this content.
// unknown is true if there are none.
func (s restoreObservation) properties(expected digest.Set) (p storage.Properties, unknown bool) {
	if altered, _ := s.Source.altersProperties(expected, false); altered {
		return record.PropertiesOn(s.Source.Object, s.Source.Record.GetManifest()), false
	}
	if p, unknown = s.Source.properties(expected); !unknown {
		return p, false
	}
	row := s.There.Record.GetManifest()
	if p = record.Properties(row); p.IsEmpty() || record.Describes(row, "", expected) != digest.Agree {
		return storage.Properties{}, true
	}
	return p, false
}

// provenBy returns the digests that the records have of the content with the given digests. There are none unless
// manifest and audit log agree on them, and they were verified against bytes.
func provenBy(digests digest.Set, records ...Side) digest.Set {
	for _, r := range records {
		if proven, ok := repairReference(digests, r.Record); ok {
			return proven
		}
	}
	return nil
}
