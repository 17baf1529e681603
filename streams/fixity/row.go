package fixity

import pb "github.com/millrace/millrace/schemas/millrace/v1"

// A Row is a row of the decision table in docs/decisions-fixity.md. Its value is the field row of a FixityResult, and
// so the column row of the table bit_log.
type Row uint8

// The rows. Their numbers are on the wire; Judge tries them in another order.
const (
	RowPass                   Row = 1
	RowContentCorrupt         Row = 2
	RowStoreDigestWrong       Row = 3
	RowStoreDigestWrongUnread Row = 4
	RowManifestWrong          Row = 5
	RowAuditMismatch          Row = 6
	RowAuditMissing           Row = 7
	RowContentMissing         Row = 8
	RowNotCaptured            Row = 9
	RowUpdateNotCaptured      Row = 10
	RowMoot                   Row = 11
	RowUnknown                Row = 12
	RowReplaced               Row = 13
	RowNoQuorum               Row = 14
	RowUnverified             Row = 15
	RowResurrected            Row = 16
)

// String returns the finding of the row: for a fault the kind of its incident. A number that is no row is unknown.
func (r Row) String() string {
	switch r {
	case RowPass:
		return "pass"
	case RowContentCorrupt:
		return "content-corrupt"
	case RowStoreDigestWrong:
		return "store-digest-wrong"
	case RowStoreDigestWrongUnread:
		return "store-digest-wrong-unread"
	case RowManifestWrong:
		return "manifest-wrong"
	case RowAuditMismatch:
		return "audit-mismatch"
	case RowAuditMissing:
		return "audit-missing"
	case RowContentMissing:
		return "content-missing"
	case RowNotCaptured:
		return "not-captured"
	case RowUpdateNotCaptured:
		return "not-captured-update"
	case RowMoot:
		return "moot"
	case RowReplaced:
		return "replaced"
	case RowNoQuorum:
		return "no-quorum"
	case RowUnverified:
		return "unverified"
	case RowResurrected:
		return "resurrected"
	}
	return "unknown"
}

// outcome returns the verdict of a check that concludes the row.
func (r Row) outcome() pb.Verdict {
	switch r {
	case RowPass:
		return pb.Verdict_VERDICT_PASS
	case RowContentMissing:
		return pb.Verdict_VERDICT_MISSING
	case RowNotCaptured, RowUpdateNotCaptured:
		return pb.Verdict_VERDICT_NOT_CAPTURED
	case RowMoot:
		return pb.Verdict_VERDICT_MOOT
	case RowUnverified:
		return pb.Verdict_VERDICT_UNVERIFIED
	case RowContentCorrupt, RowStoreDigestWrong, RowStoreDigestWrongUnread, RowManifestWrong, RowAuditMismatch,
		RowAuditMissing, RowReplaced, RowNoQuorum, RowResurrected:
		return pb.Verdict_VERDICT_FAIL
	}
	return pb.Verdict_VERDICT_UNKNOWN
}
