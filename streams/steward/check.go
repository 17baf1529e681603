package steward

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
)

// check handles the result of a check. It ignores results that are not final, were overtaken by a change, or have no
// conclusive verdict.
func (s *Steward) check(ctx context.Context, r *pb.FixityResult) (out []schemas.Message, err error) {
	ended := false
	if r.GetAccept() != nil {
		out, ended = s.accepted(r)
	}
	if !r.GetFinal() || r.GetOvertaken() {
		return out, nil
	}
	var more []schemas.Message
	switch r.GetVerdict() {
	case pb.Verdict_VERDICT_PASS, pb.Verdict_VERDICT_MOOT:
		more = s.passed(r)
	case pb.Verdict_VERDICT_FAIL, pb.Verdict_VERDICT_MISSING, pb.Verdict_VERDICT_NOT_CAPTURED:
		if ended {
			break
		}
		if more, err = s.failed(ctx, r); err != nil {
			return nil, err
		}
	}
	out = append(out, more...)
	if more, err = s.metadata(ctx, r); err != nil {
		return nil, err
	}
	return append(out, more...), nil
}

// metadata opens, updates or closes the incident of a copy that has lost the media type and properties on record.
// It does not depend on the verdict about the bytes.
func (s *Steward) metadata(ctx context.Context, r *pb.FixityResult) ([]schemas.Message, error) {
	cp, damaged := schemas.CopyOf(r), r.GetMetadata() == pb.Metadata_METADATA_DAMAGED
	if r.GetMetadata() == pb.Metadata_METADATA_UNSPECIFIED || !damaged && s.table.of(cp) == nil { // usual case
		return nil, nil
	}
	defer s.lock(cp)()
	c := cause{ref: r.GetId(), at: r.GetFinished().AsTime()}
	i := s.table.find(cp, kindMetadata)
	older := isOlder(r, s.table.newest(cp)) || isOlder(r, i.GetChecked().AsTime())
	switch {
	case hasRef(i, c.ref):
		return s.save(i, c.ref), nil
	case closed(i) && (!damaged || older):
		return nil, nil
	case older:
		i = clone(i)
		s.step(i, stepOlder, c, r.GetMetadata().String())
		return s.save(i, c.ref), nil
	case !damaged:
		i = clone(i)
		if isOnOlderRecords(i, r) {
			s.step(i, stepOlderRecords, c, "intact")
		} else {
			s.close(i, r, c, "intact")
		}
		return s.save(i, c.ref), nil
	case closed(i):
		i = s.open(cp, kindMetadata, i, c)
		s.step(i, stepOpened, c, r.GetMetadataDetail())
		s.logOpened(i, c)
	default:
		i = clone(i)
		s.step(i, stepSeenAgain, c, r.GetMetadataDetail())
	}
	i.Checked = later(i.GetChecked(), r.GetStarted())
	if r.GetReason() != pb.FixityReason_FIXITY_REASON_REPAIR && s.inProgress(i, c) {
		return s.save(i, c.ref), nil
	}
	i.Object, i.Size, i.Found, i.LastEvent = r.GetObject(), r.GetObject().GetSize(), found(r), r.GetLastEvent()
	if err := s.applyMode(ctx, i, c); err != nil {
		return nil, err
	}
	return s.save(i, c.ref), nil
}

// close closes i, a clone, because of the check r.
func (s *Steward) close(i *pb.Incident, r *pb.FixityResult, c cause, detail string) {
	i.State, i.Closed = pb.IncidentState_INCIDENT_STATE_CLOSED, r.GetFinished()
	i.Checked = later(i.GetChecked(), r.GetStarted())
	s.step(i, stepClosed, c, detail)
}

// passed closes the incidents of a copy that is intact or was deleted on purpose.
func (s *Steward) passed(r *pb.FixityResult) []schemas.Message {
	cp := schemas.CopyOf(r)
	if s.table.of(cp) == nil { // usual case
		return nil
	}
	defer s.lock(cp)()
	c := cause{ref: r.GetId(), at: r.GetFinished().AsTime()}
	var out []schemas.Message
	for _, i := range s.table.of(cp) {
		switch {
		case i.GetKind() == kindMetadata && r.GetVerdict() != pb.Verdict_VERDICT_MOOT: // see metadata
			continue
		case hasRef(i, c.ref):
			out = append(out, s.save(i, c.ref)...)
			continue
		case closed(i), !cures(r, i.GetKind()):
			continue
		}
		i = clone(i)
		switch {
		case isOlder(r, i.GetChecked().AsTime()):
			s.step(i, stepOlder, c, r.GetFinding())
		case isOnOlderRecords(i, r):
			s.step(i, stepOlderRecords, c, r.GetFinding())
		default:
			s.close(i, r, c, r.GetFinding())
		}
		out = append(out, s.save(i, c.ref)...)
	}
	return out
}

// cures reports whether a good result closes incidents of kind. A fault that was found by reading bytes needs a check
// that reads bytes.
func cures(r *pb.FixityResult, kind string) bool {
	switch {
	case r.GetVerdict() == pb.Verdict_VERDICT_MOOT:
		return true
	case r.GetEvidenceLevel() == 3: // computed by the provider, of a version that the store may not serve any more
		return false
	case r.GetEvidenceLevel() >= 4:
		return true
	}
	switch kind {
	case kindCorrupt, kindReplaced, "store-digest-wrong", kindNoQuorum, kindUpdate:
		return false
	}
	return true
}

// failed opens or updates the incident of a check that found a fault.
func (s *Steward) failed(ctx context.Context, r *pb.FixityResult) ([]schemas.Message, error) {
	cp := schemas.CopyOf(r)
	defer s.lock(cp)()
	c := cause{ref: r.GetId(), at: r.GetFinished().AsTime()}
	kind := r.GetFinding()
	if kind == kindManifestWrong && !closed(s.table.find(cp, kindManifestCorrected)) {
		kind = kindManifestCorrected // the correction has not helped
	}
	i := s.table.find(cp, kind)
	older := isOlder(r, s.table.newest(cp))
	switch {
	case hasRef(i, c.ref):
		return s.save(i, c.ref), nil
	case older && i == nil:
		s.log.Info("ignore fault of an older check", "copy", cp.String(), "check", c.ref, "kind", r.GetFinding())
		return nil, nil
	case older:
		i = clone(i)
		s.step(i, stepOlder, c, r.GetFinding())
		return s.save(i, c.ref), nil
	}
	opens := closed(i)
	if opens {
		i = s.open(cp, kind, i, c)
		s.step(i, stepOpened, c, r.GetDetail())
	} else {
		i = clone(i)
		s.step(i, stepSeenAgain, c, r.GetDetail())
	}
	i.Checked = later(i.GetChecked(), r.GetStarted())
	if r.GetReason() != pb.FixityReason_FIXITY_REASON_REPAIR && !endsAccept(i, r) && s.inProgress(i, c) {
		return s.save(i, c.ref), nil
	}
	i.Row, i.Expected, i.Found, i.Object = r.GetRow(), expected(r), found(r), r.GetObject()
	i.LastEvent = r.GetLastEvent()
	if size := r.GetObject().GetSize(); size > 0 { // 0 if the object is missing
		i.Size = size
	}
	if err := s.proceed(ctx, i, r, c); err != nil {
		return nil, err
	}
	if opens {
		s.logOpened(i, c)
	}
	return s.save(i, c.ref), nil
}

// proceed decides what follows from the fault that r has found: a check of the corrected records, or a repair according
// to the mode of the store. i is a clone.
func (s *Steward) proceed(ctx context.Context, i *pb.Incident, r *pb.FixityResult, c cause) error {
	if r.GetCorrection() != "" {
		s.corrected(i, r.GetCorrection(), c)
		return nil
	}
	err := s.applyMode(ctx, i, c)
	switch {
	case retry.ClassOf(err) == retry.ClassUnavailable:
		// The fault is certain, so the incident is published; only the repair order waits. The check that save requests
		// leads to the order. That check needs the records too, so it waits until they are available, and it examines
		// the copy as it is then.
		s.step(i, stepUnknown, c, "")
		s.log.Warn("postpone repair: the records of its sources are unavailable",
			"copy", schemas.CopyOf(i).String(), "kind", i.GetKind(), "err", err)
	case err != nil:
		return err
	}
	if endsAccept(i, r) {
		s.endAccept(i, r, c)
	}
	return nil
}

// applyMode starts or requests a repair according to the mode of the store.
func (s *Steward) applyMode(ctx context.Context, i *pb.Incident, c cause) error {
	if !Repairable(i.GetKind()) {
		i.State = pb.IncidentState_INCIDENT_STATE_OPEN
		return nil
	}
	mode := Approve // a checker that may correct the records at once has done so
	if WritesStore(i.GetKind()) {
		mode = s.stores.RepairMode(i.GetAccount(), i.GetStore(), i.GetOpened().AsTime())
	}
	if mode == Auto && (i.GetKind() == kindReplaced || i.GetKind() == kindBack) {
		mode = Approve
	}
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	switch mode {
	case Auto:
		if s.isHeld(i, c.at) { // until the decision about its list, or about it alone
			return nil
		}
		return s.orderRepair(ctx, i, c)
	case Approve:
		if i.GetState() != pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL {
			i.State = pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL
			s.step(i, stepAsked, c, "")
		}
	default:
		i.State = pb.IncidentState_INCIDENT_STATE_OPEN
	}
	return nil
}

// Repairable reports whether incidents of kind can be repaired: from a good copy, by a delete of what is present under
// a tombstone, by setting properties again, or by a correction of the records.
func Repairable(kind string) bool {
	switch kind {
	case kindCorrupt, kindMissing, kindReplaced, kindBack, kindMetadata, kindUpdate:
		return true
	}
	return false
}

// WritesStore reports whether the repair of incidents of kind writes to the store, so that the mode of the store holds
// for it.
func WritesStore(kind string) bool { return kind != kindUpdate }

// orderRepair orders a repair, if the limit of repairs is not reached and what it needs is there: a good copy for the
// bytes of a copy, or the object that it is about.
func (s *Steward) orderRepair(ctx context.Context, i *pb.Incident, c cause) error {
	log := s.log.With("copy", schemas.CopyOf(i).String(), "kind", i.GetKind(), "incident", i.GetId())
	i.State = pb.IncidentState_INCIDENT_STATE_OPEN
	if c.by == "" && int(i.GetRepairs())-heldRepairs(i) >= s.config.MaxRepairs {
		if !hasStep(i, stepExhausted) {
			s.step(i, stepExhausted, c, "")
			log.Error("stop repairs: the limit is reached and an operator must decide", "repairs", i.GetRepairs())
		}
		return nil
	}
	switch {
	case i.GetKind() == kindMetadata:
		s.orderStep(i, c, "set media type and properties")
		return nil
	case i.GetKind() == kindBack && (i.GetObject() == nil || i.GetLastEvent() == nil):
		s.step(i, stepUnseen, c, "no check has found the copy since the incident was opened")
		return nil
	case i.GetKind() == kindBack:
		s.orderStep(i, c, "delete the copy")
		return nil
	case len(i.GetExpected()) == 0:
		s.step(i, stepNoDigests, c, "")
		log.Error("skip repair: no verified digests are on record")
		return nil
	}
	source, size, err := s.source(ctx, i)
	if err != nil {
		return err
	}
	if source == "" {
		s.step(i, stepNoCopy, c, "")
		log.Error("skip repair: no good copy is left")
		return nil
	}
	if size > 0 {
		i.Size = size
	}
	s.orderStep(i, c, source)
	return nil
}

// orderStep orders a repair: from the store that detail names, or by what detail says.
func (s *Steward) orderStep(i *pb.Incident, c cause, detail string) {
	i.State = pb.IncidentState_INCIDENT_STATE_REPAIRING
	i.Repairs++
	s.step(i, stepOrdered, c, detail)
	s.log.Info("order repair", "copy", schemas.CopyOf(i).String(), "kind", i.GetKind(), "incident", i.GetId(),
		"source", detail, "number", i.GetRepairs())
}

// recordsTimeout is the longest wait for records. It is less than the time limit of a message, because unavailable
// records are not a failure of the message.
const recordsTimeout = 8 * time.Second

// source returns the first store with a copy that has no open incident and is on record with the expected digests of i,
// and the recorded size of that copy; empty if there is none. Stores that an earlier repair of i used come last: that
// repair had no success, so their copies may differ from the record. An error is of class unavailable, or the cause of
// a cancelled ctx.
func (s *Steward) source(ctx context.Context, i *pb.Incident) (store string, size int64, err error) {
	var copies []schemas.Copy
	for _, store := range s.stores.Others(i.GetAccount(), i.GetSpace(), i.GetStore()) {
		other := schemas.CopyOf(i).In(store)
		if !slices.ContainsFunc(s.table.of(other), func(i *pb.Incident) bool {
			return !closed(i) && excludesSource(i.GetKind())
		}) {
			copies = append(copies, other)
		}
	}
	if len(copies) == 0 {
		return "", 0, nil
	}
	records, err := s.fresh(ctx, copies)
	if err != nil {
		return "", 0, err
	}
	for n, r := range records {
		m := r.GetManifest()
		if m.GetState() != pb.RecordState_RECORD_STATE_LIVE ||
			digest.Set(m.GetDigests()).Compare(i.GetExpected()) != digest.Agree {
			continue
		}
		other := copies[n].Store
		if !triedSource(i, other) {
			return other, m.GetSize(), nil
		}
		if store == "" {
			store, size = other, m.GetSize()
		}
	}
	return store, size, nil
}

// fresh reads the records of copies. A deadline of ctx that passes means that the records are unavailable. If ctx is
// cancelled, fresh returns its cause.
func (s *Steward) fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	wait, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	records, err := s.records.Fresh(wait, copies)
	switch {
	case err == nil:
		return records, nil
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, context.Cause(ctx)
	}
	return nil, retry.Unavailable(fmt.Errorf("read records of the other copies afresh: %w", err))
}

// excludesSource reports whether a copy with an open incident of kind must not be the source of a repair.
func excludesSource(kind string) bool {
	switch kind {
	case kindCorrupt, kindMissing, kindReplaced, kindNoQuorum, kindBack, "source-missing":
		return true
	}
	return false
}

// expected returns the digests that the copy should have: all verified digests of manifest and audit log. It returns
// nil if they contradict each other.
func expected(r *pb.FixityResult) map[string]string {
	var all, verified digest.Set
	for _, e := range [...]*pb.Evidence{r.GetManifest(), r.GetAudit()} {
		if e.GetState() != pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
			continue
		}
		if all.Compare(e.GetDigests()) == digest.Disagree {
			return nil
		}
		all = all.Union(e.GetDigests())
		if e.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED {
			verified = verified.Union(e.GetDigests())
		}
	}
	return verified
}

// found returns the digests that the check found.
func found(r *pb.FixityResult) map[string]string {
	if d := r.GetContent().GetDigests(); len(d) > 0 {
		return maps.Clone(d)
	}
	return maps.Clone(r.GetStored().GetDigests())
}
