package fixity

import (
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// The values of the field accept_result of a FixityResult.
const (
	resultAccepted       = "accepted"
	resultAcceptMoot     = "accept-moot"
	resultAcceptOutdated = "accept-outdated"
	resultAcceptRefused  = "accept-refused"
)

// An acceptInput is the complete input of a decision about an order to accept the content of a copy.
type acceptInput struct {
	order    *pb.AcceptOrder
	row      Row
	evidence EvidenceSet
	object   storage.Object
	statTime time.Time      // of object, by the store's clock
	started  time.Time      // of the check
	records  *pb.CopyRecord // read afresh
}

// An acceptance is the decision about an AcceptOrder.
type acceptance struct {
	row AcceptRow
	// result is empty if there is no decision yet: the next check decides.
	result string
	detail string
}

// decideAccept decides about an order. It is pure and total. Content is accepted only if its bytes were read, if copy
// and records are those that the operator saw, and if the Change becomes the newest record. Bytes that have changed
// under the version on record are damage, unless the order has force.
func decideAccept(s acceptInput) acceptance {
	outdated := func(row AcceptRow, why string) acceptance { return acceptance{row, resultAcceptOutdated, why} }
	refused := func(row AcceptRow, why string) acceptance { return acceptance{row, resultAcceptRefused, why} }
	switch {
	case s.row == RowUnknown:
		return acceptance{row: RowAcceptUnknown}
	case !s.evidence.isPresent():
		return outdated(RowAcceptGone, "the item is gone")
	case !record.Is(s.object, s.order.GetObject()):
		return outdated(RowAcceptOtherObject, "the store has another object than the one that was seen")
	case s.evidence.Content.State != pb.EvidenceState_EVIDENCE_STATE_DIGESTS:
		return refused(RowAcceptUnread, "the bytes are not to be read")
	case s.evidence.Content.Digests.Compare(s.order.GetDigests()) != digest.Agree:
		return outdated(RowAcceptOtherBytes, "the bytes are not those that were seen")
	case s.row == RowPass, s.row == RowManifestWrong, s.row == RowAuditMismatch, s.row == RowAuditMissing:
		return acceptance{RowAcceptRecorded, resultAcceptMoot, "the bytes are on record"}
	case s.started.Sub(s.order.GetTime().AsTime()) > acceptAge && s.order.GetTime() != nil:
		return outdated(RowAcceptOtherRecords, "the decision is older than "+acceptAge.String())
	case !s.sameRecords():
		return outdated(RowAcceptOtherRecords, "the records have changed since the fault was found")
	case !s.agrees():
		return refused(RowAcceptContradicted, "the bytes differ from the store's digest, or cannot be compared")
	case s.changedInPlace() && !s.order.GetForce():
		return refused(RowAcceptSameVersion, "the bytes have changed, but not the version on record: that is damage")
	case !isLater(s.statTime, s.records):
		return refused(RowAcceptNotLater, "by the clock of the store, the newest record is not older than the check")
	}
	return acceptance{row: RowAccepted, result: resultAccepted}
}

// acceptAge is the age up to which an order is carried out: the check may have been repeated while the store was away.
const acceptAge = 24 * time.Hour

// changedInPlace reports whether the manifest has other verified digests of this very object, also if that was deleted
// since and came back. Without a version it is taken for the same one if the ETags are the same, or if it is not newer
// than the record: then operators have to say that it is not.
func (s acceptInput) changedInPlace() bool {
	m, o := s.records.GetManifest(), s.object
	if m.GetProvenance() != pb.Provenance_PROVENANCE_VERIFIED || len(m.GetDigests()) == 0 ||
		s.evidence.Content.Digests.Compare(m.GetDigests()) == digest.Agree {
		return false
	}
	switch {
	case m.GetVersion() != "":
		return m.GetVersion() == o.Version
	case m.GetEtag() != "" && o.ETag != "":
		return m.GetEtag() == o.ETag
	}
	return m.GetState() == pb.RecordState_RECORD_STATE_LIVE &&
		!o.Modified.Truncate(time.Second).After(schemas.Reported(m).AsTime())
}

// sameRecords reports whether the newest event on record is the one that the order names.
func (s acceptInput) sameRecords() bool {
	last, seen := lastEvent(s.records), s.order.GetLastEvent()
	if seen == nil {
		return last.IsZero()
	}
	return last.Equal(seen.AsTime())
}

// agrees reports whether only the records speak against the bytes.
func (s acceptInput) agrees() bool {
	switch s.row {
	case RowNotCaptured, RowUpdateNotCaptured, RowReplaced, RowNoQuorum, RowResurrected:
		return s.evidence.Content.Digests.Compare(s.evidence.Stored.Digests) != digest.Disagree
	}
	return false
}

// isLater reports whether a Change of the time t becomes the newest record.
func isLater(t time.Time, r *pb.CopyRecord) bool { return record.Time(t).AsTime().After(lastEvent(r)) }

// decideAccept decides about the order of the task. The check of accepted content is final: another one follows the
// Change.
func (k *check) decideAccept() {
	if k.task.GetAccept() == nil {
		return
	}
	k.acceptance = decideAccept(acceptInput{
		order: k.task.GetAccept(), row: k.verdict.Row, evidence: k.evidence, object: k.object, statTime: k.statTime,
		records: k.fresh, started: k.started,
	})
	if k.accepts() {
		k.conclusion = Conclusion{Outcome: k.verdict.Outcome, Final: true}
	}
}

// accepts reports whether the content is accepted.
func (k *check) accepts() bool { return k.acceptance.result == resultAccepted }

// openOrder returns the order of the task if this check has not decided about it.
func (k *check) openOrder() *pb.AcceptOrder {
	if k.acceptance.result != "" {
		return nil
	}
	return k.task.GetAccept()
}
