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

// check takes the result of a check. What is not final, or was overtaken by a change,
// moves nothing, and neither does a check that found nothing out.
func (s *Steward) check(ctx context.Context, r *pb.FixityResult) ([]schemas.Message, error) {
	if !r.GetFinal() || r.GetOvertaken() {
		return nil, nil
	}
	var out []schemas.Message
	var err error
	switch r.GetVerdict() {
	case pb.Verdict_VERDICT_PASS, pb.Verdict_VERDICT_MOOT:
		out = s.passed(r)
	case pb.Verdict_VERDICT_FAIL, pb.Verdict_VERDICT_MISSING, pb.Verdict_VERDICT_NOT_CAPTURED:
		if out, err = s.failed(ctx, r); err != nil {
			return nil, err
		}
	}
	return append(out, s.metadata(r)...), nil
}

// metadata opens, adds to or closes the incident of a copy whose media type and properties are on record and cannot be told
// by its store, whatever the check found of the bytes.
func (s *Steward) metadata(r *pb.FixityResult) []schemas.Message {
	place, damaged := schemas.CopyOf(r), r.GetMetadata() == pb.Metadata_METADATA_DAMAGED
	if r.GetMetadata() == pb.Metadata_METADATA_UNSPECIFIED || !damaged && s.table.of(place) == nil { // nearly always
		return nil
	}
	defer s.lock(place)()
	c := cause{ref: r.GetId(), at: r.GetFinished().AsTime()}
	i := s.table.get(schemas.Key(place.Account, place.Store, place.Space, place.Item, kindMetadata))
	started := r.GetStarted().AsTime()
	older := started.Before(s.table.newest(place)) || started.Before(i.GetChecked().AsTime())
	switch {
	case knows(i, c.ref):
		return s.tell(i, c.ref)
	case closed(i) && (!damaged || older):
		return nil
	case older:
		i = edit(i)
		s.step(i, stepOlder, c, r.GetMetadata().String())
		return s.tell(i, c.ref)
	case !damaged:
		i = edit(i)
		i.State, i.Checked, i.Closed = pb.IncidentState_INCIDENT_STATE_CLOSED, r.GetStarted(), r.GetFinished()
		s.step(i, stepClosed, c, "")
		return s.tell(i, c.ref)
	case closed(i):
		i = s.open(place, kindMetadata, i, c)
		s.step(i, stepOpened, c, r.GetMetadataDetail())
		s.log.Warn("incident opened", "copy", place.String(), "kind", kindMetadata, "check", c.ref)
	default:
		i = edit(i)
		s.step(i, stepSeenAgain, c, r.GetMetadataDetail())
	}
	i.Checked, i.Object, i.Size = r.GetStarted(), r.GetObject(), r.GetObject().GetSize()
	return s.tell(i, c.ref)
}

// passed closes the incidents of a copy that is well, or that is rightly gone.
func (s *Steward) passed(r *pb.FixityResult) []schemas.Message {
	place := schemas.CopyOf(r)
	if s.table.of(place) == nil { // nearly always
		return nil
	}
	defer s.lock(place)()
	c := cause{ref: r.GetId(), at: r.GetFinished().AsTime()}
	var out []schemas.Message
	for _, i := range s.table.of(place) {
		switch {
		case i.GetKind() == kindMetadata && r.GetVerdict() != pb.Verdict_VERDICT_MOOT: // see metadata
			continue
		case knows(i, c.ref):
			out = append(out, s.tell(i, c.ref)...)
			continue
		case closed(i), !cures(r, i.GetKind()):
			continue
		}
		i = edit(i)
		if r.GetStarted().AsTime().Before(i.GetChecked().AsTime()) {
			s.step(i, stepOlder, c, r.GetFinding())
		} else {
			i.State, i.Checked, i.Closed = pb.IncidentState_INCIDENT_STATE_CLOSED, r.GetStarted(), r.GetFinished()
			s.step(i, stepClosed, c, r.GetFinding())
		}
		out = append(out, s.tell(i, c.ref)...)
	}
	return out
}

// cures says whether a result that is good closes incidents of kind: what was found by
// reading bytes is closed only by reading bytes, and what was found beside another copy only beside that.
func cures(r *pb.FixityResult, kind string) bool {
	switch {
	case r.GetVerdict() == pb.Verdict_VERDICT_MOOT:
		return true
	case kind == kindDiffers:
		return false
	case r.GetEvidenceLevel() >= 4:
		return true
	}
	switch kind {
	case kindCorrupt, kindReplaced, "store-digest-wrong", "no-quorum", "not-captured-update":
		return false
	}
	return true
}

// failed opens the incident of a check that found a fault, or adds to it.
func (s *Steward) failed(ctx context.Context, r *pb.FixityResult) ([]schemas.Message, error) {
	if r.GetFinding() == kindUncaptured && takenIn(r) {
		return nil, nil
	}
	place := schemas.CopyOf(r)
	defer s.lock(place)()
	c := cause{ref: r.GetId(), at: r.GetFinished().AsTime()}
	i := s.table.get(schemas.Key(place.Account, place.Store, place.Space, place.Item, r.GetFinding()))
	older := r.GetStarted().AsTime().Before(s.table.newest(place))
	switch {
	case knows(i, c.ref):
		return s.tell(i, c.ref), nil
	case older && i == nil:
		s.log.Info("fault of an older check ignored", "copy", place.String(), "check", c.ref, "kind", r.GetFinding())
		return nil, nil
	case older:
		i = edit(i)
		s.step(i, stepOlder, c, r.GetFinding())
		return s.tell(i, c.ref), nil
	}
	if closed(i) {
		i = s.open(place, r.GetFinding(), i, c)
		s.step(i, stepOpened, c, r.GetDetail())
		s.log.Warn("incident opened", "copy", place.String(), "kind", i.GetKind(), "row", r.GetRow(), "check", c.ref)
	} else {
		i = edit(i)
		s.step(i, stepSeenAgain, c, r.GetDetail())
	}
	i.Checked = r.GetStarted()
	if r.GetReason() != pb.FixityReason_FIXITY_REASON_REPAIR && s.onItsWay(i, c) {
		return s.tell(i, c.ref), nil
	}
	i.Row, i.Expected, i.Found, i.Object = r.GetRow(), expected(r), found(r), r.GetObject()
	if size := r.GetObject().GetSize(); size > 0 { // nothing is known of one that is gone
		i.Size = size
	}
	err := s.treat(ctx, i, c)
	switch {
	case retry.ClassOf(err) == retry.ClassUnavailable:
		// The fault is a fact, and is told; only the order waits. It comes from the check
		// that tell asks for: that one reads the records too, so it goes on until they
		// answer, and it sees what became of the copy meanwhile.
		s.step(i, stepUnknown, c, "")
		s.log.Warn("repair is put off: what could be its source is not known", "copy", place.String(), "kind", i.GetKind(), "err", err)
	case err != nil:
		return nil, err
	}
	return s.tell(i, c.ref), nil
}

// onItsWay says that a repair was ordered not too long ago and has not come to an end.
func (s *Steward) onItsWay(i *pb.Incident, c cause) bool {
	if i.GetState() != pb.IncidentState_INCIDENT_STATE_REPAIRING {
		return false
	}
	n := lastOrder(i)
	return n >= 0 && c.at.Sub(i.GetSteps()[n].GetTime().AsTime()) < s.config.Patience
}

// treat does about an open incident what the store's mode says.
func (s *Steward) treat(ctx context.Context, i *pb.Incident, c cause) error {
	if !Repairable(i.GetKind()) {
		return nil
	}
	mode := s.stores.RepairMode(i.GetAccount(), i.GetStore())
	if mode == Auto && i.GetKind() == kindReplaced {
		mode = Approve
	}
	switch mode {
	case Auto:
		return s.order(ctx, i, c)
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

// Repairable reports whether there is a repair for incidents of kind.
func Repairable(kind string) bool {
	return kind == kindCorrupt || kind == kindMissing || kind == kindReplaced
}

// order has the copy repaired from a good one, if there is one and the steps so far allow it.
func (s *Steward) order(ctx context.Context, i *pb.Incident, c cause) error {
	log := s.log.With("copy", schemas.CopyOf(i).String(), "kind", i.GetKind(), "incident", i.GetId())
	i.State = pb.IncidentState_INCIDENT_STATE_OPEN
	if c.by == "" && int(i.GetRepairs()) >= s.config.MaxRepairs {
		if !has(i, stepExhausted) {
			s.step(i, stepExhausted, c, "")
			log.Error("repairs are exhausted: a person must decide", "repairs", i.GetRepairs())
		}
		return nil
	}
	if len(i.GetExpected()) == 0 {
		s.step(i, stepNoDigests, c, "")
		log.Error("no repair: what the copy should be is not on record, or only claimed")
		return nil
	}
	source, size, err := s.source(ctx, i)
	if err != nil {
		return err
	}
	if source == "" {
		s.step(i, stepNoCopy, c, "")
		log.Error("no repair: no good copy is left")
		return nil
	}
	i.State = pb.IncidentState_INCIDENT_STATE_REPAIRING
	if size > 0 {
		i.Size = size
	}
	i.Repairs++
	s.step(i, stepOrdered, c, source)
	log.Info("repair ordered", "source", source, "number", i.GetRepairs())
	return nil
}

// freshWait bounds how long the records are waited for. It is less than a message may be
// at work before it is put aside as failed: not to know is no failure of the message.
const freshWait = 8 * time.Second

// source returns, with the size that is on record, the first store whose copy is on record with the digests that i's copy
// should have, and has no open incident itself; empty where there is none. Stores that i
// had a repair ordered from come last: that did not cure it, and their copies may not be
// what the record says. An error is of class unavailable, or the end of a ctx that was
// cancelled.
func (s *Steward) source(ctx context.Context, i *pb.Incident) (store string, size int64, err error) {
	var copies []schemas.Copy
	for _, store := range s.stores.Others(i.GetAccount(), i.GetSpace(), i.GetStore()) {
		other := schemas.Copy{Account: i.GetAccount(), Store: store, Space: i.GetSpace(), Item: i.GetItem()}
		if !slices.ContainsFunc(s.table.of(other), func(i *pb.Incident) bool { return !closed(i) && bad(i.GetKind()) }) {
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
		if m.GetState() != pb.RecordState_RECORD_STATE_LIVE || digest.Set(m.GetDigests()).Compare(i.GetExpected()) != digest.Agree {
			continue
		}
		other := copies[n].Store
		if !tried(i, other) {
			return other, m.GetSize(), nil
		}
		if store == "" {
			store, size = other, m.GetSize()
		}
	}
	return store, size, nil
}

// fresh reads the records of copies. That ctx has a deadline which passes tells no more
// of them than that they do not answer; that it was cancelled tells nothing.
func (s *Steward) fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	wait, cancel := context.WithTimeout(ctx, freshWait)
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

// bad says that a copy with an open incident of kind is no source of a repair.
func bad(kind string) bool {
	return Repairable(kind) || kind == "no-quorum" || kind == "source-missing" || kind == kindBack
}

// takenIn says that the check took in what nobody had told of, as it should: a
// baseline's, or of a row without digests.
func takenIn(r *pb.FixityResult) bool {
	const digests = pb.EvidenceState_EVIDENCE_STATE_DIGESTS
	return r.GetBaseline() || r.GetManifest().GetState() == digests || r.GetAudit().GetState() == digests
}

// expected returns the digests that the copy should have: what manifest and audit log
// say together and is verified. Empty where they contradict each other.
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

// found returns the digests that the copy has.
func found(r *pb.FixityResult) map[string]string {
	if d := r.GetContent().GetDigests(); len(d) > 0 {
		return maps.Clone(d)
	}
	return maps.Clone(r.GetStored().GetDigests())
}
