package fixity

import (
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// manifestEvidence returns the evidence of a record of the manifest: of claims and digests that contradict each other,
// the claims. The audit log has the digests.
func manifestEvidence(r *pb.Record) Evidence {
	if r.GetState() == pb.RecordState_RECORD_STATE_TOMBSTONE {
		return Evidence{State: pb.EvidenceState_EVIDENCE_STATE_TOMBSTONE}
	}
	e := auditEvidence(r)
	if e.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS && len(r.GetClaims()) > 0 {
		e.Digests, e.Claimed = r.GetClaims(), true
	}
	return e
}

// auditEvidence returns the evidence of a record of the audit log: a delete is none. Digests that are not known to be
// verified are claimed.
func auditEvidence(r *pb.Record) Evidence {
	switch r.GetState() {
	case pb.RecordState_RECORD_STATE_LIVE:
		return Evidence{
			State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: r.GetDigests(),
			Claimed: r.GetProvenance() != pb.Provenance_PROVENANCE_VERIFIED,
		}
	case pb.RecordState_RECORD_STATE_NONE, pb.RecordState_RECORD_STATE_TOMBSTONE:
		return Evidence{State: pb.EvidenceState_EVIDENCE_STATE_NONE}
	}
	return Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN}
}

// isNewer reports whether o is another object than the one on record, and a later one. A date that is ahead of now says
// nothing: it is later than each record.
func isNewer(o storage.Object, m *pb.Record, now time.Time) bool {
	if m.GetTime() == nil || !record.IsNewer(o, m) || record.IsAhead(o, now) {
		return false
	}
	return m.GetVersion() != "" && o.Version != "" && m.GetVersion() != o.Version ||
		m.GetEtag() != "" && o.ETag != "" && m.GetEtag() != o.ETag
}

// lastEvent returns the time of the newest event on record.
func lastEvent(r *pb.CopyRecord) time.Time {
	var last time.Time
	for _, t := range [...]*timestamppb.Timestamp{r.GetManifest().GetTime(), r.GetAudit().GetTime()} {
		if t != nil && t.AsTime().After(last) {
			last = t.AsTime()
		}
	}
	return last
}

// sameObject reports whether a and b are the same object by all that a store reports.
func sameObject(a, b storage.Object) bool {
	return a.Version == b.Version && a.ETag == b.ETag && a.Size == b.Size && a.Modified.Equal(b.Modified)
}

// result returns the FixityResult of the check.
func (k *check) result(now time.Time) *pb.FixityResult {
	t := k.task
	r := &pb.FixityResult{
		Id: schemas.NewID(), Task: t.GetId(), Cause: t.GetCause(),
		Account: k.copy.Account, Store: k.copy.Store, Space: k.copy.Space, Item: k.copy.Item,
		StoreKind: k.store.Capabilities().Kind, Reason: t.GetReason(),
		Verdict: k.conclusion.Outcome, Row: int32(k.verdict.Row), Finding: k.verdict.Finding,
		Final: k.conclusion.Final, EvidenceLevel: k.evidence.level(), Detail: k.verdict.Detail,
		BytesRead: k.bytesRead, Recheck: t.GetRecheck(), Attempt: int32(k.attempt),
		Worker: k.config.Worker, Host: k.config.Host, Software: k.config.Software,
		Round: t.GetRound(), Baseline: t.GetBaseline(), Overtaken: k.overtaken,
		Started: timestamppb.New(k.started), Finished: schemas.Finished(k.started, now),
		Content: k.evidence.Content.proto(), Stored: k.evidence.Stored.proto(),
		Manifest: k.evidence.Manifest.proto(), Audit: k.evidence.Audit.proto(), Confirmed: k.evidence.Second.proto(),
	}
	r.Object = k.identity()
	r.Metadata, r.MetadataDetail = k.metadata, k.metadataDetail
	if k.altered() && !(k.conclusion.Final && k.verdict.concludesMetadata()) {
		r.Metadata, r.Object.PropertiesHash = pb.Metadata_METADATA_UNSPECIFIED, 0
	}
	if last := lastEvent(k.known()); !last.IsZero() {
		r.LastEvent = timestamppb.New(last)
	}
	if k.acceptance.result != "" {
		r.Accept, r.AcceptResult, r.AcceptDetail = k.task.GetAccept(), k.acceptance.result, k.acceptance.detail
	}
	if !k.conclusion.Final {
		r.Next = timestamppb.New(k.conclusion.Next)
	}
	return r
}

// proto returns the evidence as a message; nil if the place was not asked.
func (p Evidence) proto() *pb.Evidence {
	if p.State == pb.EvidenceState_EVIDENCE_STATE_UNSPECIFIED {
		return nil
	}
	e := &pb.Evidence{State: p.State, Digests: p.Digests}
	if p.hasDigests() {
		e.Provenance = pb.Provenance_PROVENANCE_VERIFIED
		if p.Claimed {
			e.Provenance = pb.Provenance_PROVENANCE_CLAIMED
		}
	}
	return e
}

// level returns the evidence level of a result: 4 for bytes read, 2 for the store's own digest, 1 for other reports of
// the store, 0 for none.
func (e EvidenceSet) level() int32 {
	const digests = pb.EvidenceState_EVIDENCE_STATE_DIGESTS
	switch {
	case e.Content.State == digests:
		return 4
	case e.Stored.State == digests:
		return 2
	case e.Stored.State == pb.EvidenceState_EVIDENCE_STATE_NONE, e.Stored.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT:
		return 1
	}
	return 0
}

// corrects reports whether a Change records what the check has read: the bytes were read, the check is concluded, and
// its row allows it or an operator has accepted the content. Known digests are never replaced while the record is about
// the object that the store has, except if the bytes agree with manifest or audit log.
func (k *check) corrects() bool {
	if !k.conclusion.Final || k.evidence.Content.State != pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
		return false
	}
	m := k.fresh.GetManifest()
	known := record.IsOf(m, k.object) && len(m.GetDigests()) > 0
	switch k.verdict.Row {
	case RowPass:
		return k.accepts() || k.completes()
	case RowAuditMissing:
		return true
	case RowManifestWrong, RowAuditMismatch:
		return isLater(k.statTime, k.fresh)
	case RowNotCaptured:
		return k.accepts() || !known && (k.completes() || isLater(k.statTime, k.fresh))
	case RowUpdateNotCaptured:
		return k.accepts() || k.correctsUpdates() && !known && isLater(k.statTime, k.fresh)
	}
	return k.accepts()
}

// completes reports whether the digests that the check has computed join the content on record: it was reported without
// any and is that of the object, or it has claimed digests, with which the bytes agree.
func (k *check) completes() bool {
	switch m := k.known().GetManifest(); k.verdict.Row {
	case RowNotCaptured:
		return record.IsOf(m, k.object) && len(m.GetDigests()) == 0
	case RowPass:
		return k.evidence.Manifest.Claimed
	}
	return false
}

// known returns the newest records that the check has: fresh ones, or those of the task.
func (k *check) known() *pb.CopyRecord {
	if k.fresh != nil {
		return k.fresh
	}
	return k.task.GetKnown()
}

// correctsUpdates reports whether an update that the check has found is recorded without approval. One from before that
// was allowed is not: it may wait for an operator.
func (k *check) correctsUpdates() bool {
	found := k.started
	if first := k.task.GetFirst(); first != nil {
		found = first.AsTime()
	}
	since := k.settings.CorrectUpdatesSince
	return k.settings.CorrectUpdates && !found.Before(since) && !k.object.Modified.Before(since)
}

// correctionTime returns the time of a correction: that of the second stat if an operator accepts the content and the
// store tells its time; else just later than the records, or, of an item without any, the date of the object, as of a
// sweep. So what a client has written since stays newer, also at a copy.
func (k *check) correctionTime() time.Time {
	last := lastEvent(k.fresh)
	switch {
	case k.accepts() && !k.object.ObservedAt.IsZero():
		return k.statTime
	case last.IsZero():
		return record.Dated(k.object, k.statTime)
	}
	return last.Add(time.Millisecond)
}

// correction returns the Change that records what the check has read; nil if it does not. It may complete the Change on
// record. Of RowAuditMissing it is the missing Change, under its own id. Any other has the time of correctionTime.
func (k *check) correction() *pb.Change {
	if !k.corrects() {
		return nil
	}
	o := k.object
	o.Digests = k.evidence.Content.Digests
	c := record.Content(k.copy, o)
	m := k.fresh.GetManifest()
	if k.altered() && !k.accepts() { // only the digests are corrected
		p := record.PropertiesOn(o, m)
		c.MediaType, c.Properties = p.MediaType, maps.Clone(p.User)
	}
	c.Origin = pb.Origin_ORIGIN_FIXITY
	c.Agent = k.config.Agent
	c.Cause = k.task.GetId()
	c.Evidence = map[string]string{
		"row": strconv.Itoa(int(k.verdict.Row)),
		"C":   k.evidence.Content.String(), "S": k.evidence.Stored.String(),
		"M": k.evidence.Manifest.String(), "A": k.evidence.Audit.String(),
	}
	if k.completes() && !k.accepts() {
		record.Complete(c, k.known().GetManifest())
		return record.Seal(c)
	}
	same := m.GetVersion() == o.Version && !k.accepts()
	switch {
	case k.verdict.Row != RowAuditMissing:
		record.At(c, o, k.correctionTime())
	case same && m.GetTime() != nil:
		record.At(c, o, schemas.Reported(m).AsTime())
	}
	if same { // the copy keeps its source content
		c.SourceTime, c.SourceVersion = m.GetSourceTime(), m.GetSourceVersion()
	}
	if k.accepts() {
		order := k.task.GetAccept()
		c.Approved = order.GetBy()
		c.Evidence["incident"], c.Evidence["accepted"] = order.GetIncident(), order.GetAction()
		c.Evidence["why"] = order.GetReason()
		if order.GetForce() {
			c.Evidence["forced"] = "true"
		}
	}
	return record.Seal(c)
}

// String returns the state, or the digests as algorithm:hex, sorted.
func (p Evidence) String() string {
	switch p.State {
	case pb.EvidenceState_EVIDENCE_STATE_DIGESTS:
		var b strings.Builder
		for i, alg := range p.Digests.Algorithms() {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(alg + ":" + p.Digests[alg])
		}
		return b.String()
	case pb.EvidenceState_EVIDENCE_STATE_NONE:
		return "none"
	case pb.EvidenceState_EVIDENCE_STATE_ABSENT:
		return "absent"
	case pb.EvidenceState_EVIDENCE_STATE_UNREAD:
		return "unread"
	case pb.EvidenceState_EVIDENCE_STATE_TOMBSTONE:
		return "tombstone"
	}
	return "unknown"
}
