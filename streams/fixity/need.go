package fixity

import (
	"strconv"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// An attemptState is the evidence that one attempt of a check has collected, and the verdict on it.
type attemptState struct {
	evidence     EvidenceSet
	object       storage.Object // by the second stat, if the store has it
	statTime     time.Time      // the time of that stat, by the store's clock
	noSpace      bool           // the last stat found no space
	spaceMissing bool           // and the space is expected
	markerRead   bool           // after an absence, whether or not it answered
	recordsRead  bool           // afresh, whether or not they answered
	recheck      bool           // the task carries records that may be old
	others       []otherCopy
	othersRead   bool           // afresh, with the records
	fresh        *pb.CopyRecord // nil if the records were not read afresh, or did not answer
	unchanged    bool           // a stat after the records were read found the same object
	cause        string         // the detail of RowUnknown, if a place did not answer
	verdict      Verdict
	conclusion   Conclusion
	// propertiesInDoubt: the store cannot report properties, or reports others than the records. Until these are read
	// afresh, those are meant that the task carried.
	propertiesInDoubt bool
	metadata          pb.Metadata
	metadataDetail    string
}

// A requirement is the evidence that a verdict requires next.
type requirement uint8

// The requirements, in the order in which needs returns them.
const (
	needNothing requirement = iota
	// needObservation: a stat of the object, its bytes, and a second stat.
	needObservation
	// needMarker: an absence counts only if the store's marker is read after it.
	needMarker
	// needRecords: a verdict other than a pass must not rest on the records that the task carried. If the space is absent
	// its record is read with them.
	needRecords
	// needProperties: the store cannot report properties, or others than those on record. Tasks carry only a hash of them,
	// so they are read from fresh records. The verdict does not rest on these records.
	needProperties
	// needAlgorithms: the fresh records have a supported algorithm that the digests of the bytes lack.
	needAlgorithms
	// needUnchanged: a stat after the fresh records, which may include an event that is later than the bytes.
	needUnchanged
	// needSecondRead: the bytes are read twice before the row is concluded.
	needSecondRead
	requirements // their number
)

// String returns the requirement in the words of docs/decisions-fixity.md.
func (r requirement) String() string {
	switch r {
	case needNothing:
		return "nothing"
	case needObservation:
		return "observation"
	case needMarker:
		return "marker"
	case needRecords:
		return "records"
	case needProperties:
		return "properties"
	case needAlgorithms:
		return "algorithms"
	case needUnchanged:
		return "unchanged"
	case needSecondRead:
		return "second read"
	}
	return strconv.Itoa(int(r))
}

// needs returns what the verdict on the evidence requires next. It is pure. After the answer the evidence is judged
// again, and needs never returns the same one again.
func (a attemptState) needs() requirement {
	row := a.verdict.Row
	switch {
	case a.evidence.Stored.State == pb.EvidenceState_EVIDENCE_STATE_UNSPECIFIED:
		return needObservation
	case !a.markerRead && a.evidence.reportsAbsence():
		return needMarker
	case !a.recordsRead && a.restsOnRecords():
		return needRecords
	case !a.recordsRead && a.propertiesInDoubt && (row == RowPass || a.verdict.Detail == detailUnreadable):
		return needProperties
	case a.fresh == nil: // the verdict rests on no fresh record, or is unknown
		return needNothing
	case a.evidence.lacksAlgorithm():
		return needAlgorithms
	case row == RowUnknown:
		return needNothing
	case !a.unchanged && (row != RowPass || a.propertiesInDoubt):
		return needUnchanged
	case a.evidence.Second.State == pb.EvidenceState_EVIDENCE_STATE_UNSPECIFIED && a.restsOnBytes():
		return needSecondRead
	}
	return needNothing
}

// restsOnRecords reports whether the verdict depends on the records. A pass may rest on those that the task carried,
// but not that of a re-check.
func (a attemptState) restsOnRecords() bool {
	switch {
	case a.evidence.unansweredByStore() != "", a.verdict.Detail == detailPresence, a.verdict.Detail == detailUnreadable:
		return false
	}
	return a.recheck || a.verdict.Row != RowPass
}

// restsOnBytes reports whether the row is concluded only after a second reading of the bytes.
func (a attemptState) restsOnBytes() bool {
	if a.evidence.Content.State != pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
		return false
	}
	switch a.verdict.Row {
	case RowContentCorrupt, RowStoreDigestWrong, RowReplaced, RowNoQuorum:
		return true
	case RowNotCaptured, RowUpdateNotCaptured:
		return a.conclusion.Final
	}
	return false
}

// reportsAbsence reports whether the store answered, and reported the object or its bytes absent.
func (e EvidenceSet) reportsAbsence() bool {
	const absent = pb.EvidenceState_EVIDENCE_STATE_ABSENT
	return e.Stored.State == absent ||
		e.Content.State == absent && e.Stored.State != pb.EvidenceState_EVIDENCE_STATE_UNKNOWN
}

// lacksAlgorithm reports whether the records have a supported algorithm that the digests of the bytes lack.
func (e EvidenceSet) lacksAlgorithm() bool {
	c := e.Content
	if c.State != pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
		return false
	}
	for _, p := range [...]Evidence{e.Manifest, e.Audit} {
		for alg := range p.Digests {
			if c.Digests[alg] == "" && digest.Known(alg) {
				return true
			}
		}
	}
	return false
}
