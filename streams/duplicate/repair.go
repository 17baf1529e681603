package duplicate

import (
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage/record"
)

// repair decides C0. The source is the good copy, the destination the failed one. It is written over only if it is
// still the object that failed, and order, manifest, audit log and good copy agree on verified digests.
func (s Observation) repair() Decision {
	moot := Decision{Row: RowRepair, Result: "repair-moot", CheckDestination: true}
	// The records name a good copy that is not good: it is checked too, so that the next repair does not use it again.
	noSource := moot
	noSource.CheckSource = true
	order := s.Command.GetRepair()
	switch {
	case !s.observed():
		return Decision{Row: RowRepair, action: actFail}
	case order == nil, s.Destination.Presence != Present && !s.isFailedObject():
		return moot
	case s.Source.Presence != Present:
		return noSource
	case s.recordsState != recordsRead:
		return s.needRecords(RowRepair)
	}
	m, a := s.Destination.Record.GetManifest(), s.Destination.Record.GetAudit()
	for _, r := range []*pb.Record{m, a} {
		if r.GetState() == pb.RecordState_RECORD_STATE_UNSPECIFIED {
			return Decision{Row: RowRepair, action: actFail}
		}
	}
	if _, ok := s.Source.lostProperties(nil); !ok {
		return Decision{Row: RowRepair, action: actFail}
	}
	expected, ok := repairReference(order.GetDigests(), s.Destination.Record)
	switch {
	case !isLive(m) || !isLive(a) || !ok:
		return moot
	case expected.Compare(s.Source.digests()) == digest.Disagree:
		return noSource
	case !s.isFailedObject():
		// Repaired already, perhaps by an execution that died before it published its result.
		if m.GetVersion() != s.Destination.Object.Version && expected.Compare(s.Destination.digests()) == digest.Agree {
			moot.Announce, moot.CheckDestination = true, false // a check follows its Change
		}
		return moot
	}
	return Decision{Row: RowRepair, action: actCopy, Result: "repaired", Expected: expected}
}

// repairProperties decides C0p. The properties on record are set if the copy is still the object that failed, its store
// still cannot report any, or reports those that the check has found, and the manifest, read afresh, has others of the
// bytes that the object holds. Both sides of such a command are the copy.
func (s Observation) repairProperties() Decision {
	order, at := s.Command.GetRepair(), s.Destination
	moot := Decision{Row: RowRepairProperties, Result: "repair-moot", CheckDestination: true}
	switch {
	case !s.managed():
		return moot
	case !s.observed():
		return Decision{Row: RowRepairProperties, action: actFail}
	case at.Presence == Absent:
		return moot
	case !s.isFailedObject():
		if s.recordsState == recordsUnread {
			return s.needRecords(RowRepairProperties)
		}
		// Put again already, perhaps by an execution that died before it published its result.
		moot.Announce = s.isUnreported()
		moot.CheckDestination = !moot.Announce // a check follows its Change
		return moot
	case !s.hasFailedProperties():
		return moot
	}
	digests := at.digests().Union(order.GetDigests())
	damaged, ok := at.altersProperties(digests, s.FoldCase)
	if at.Object.PropertiesUnknown {
		var lost digest.Agreement
		lost, ok = at.lostProperties(digests)
		damaged = lost == digest.Agree
	}
	switch {
	case !ok:
		return s.needRecords(RowRepairProperties)
	case !damaged:
		return moot
	}
	return Decision{Row: RowRepairProperties, action: actRepairProperties, Result: "properties-set"}
}

// isUnreported reports whether the destination has a version that is on no record, of the bytes and the properties on
// record.
func (s Observation) isUnreported() bool {
	at, m := s.Destination, s.Destination.Record.GetManifest()
	p := record.Properties(m)
	return isLive(m) && m.GetVersion() != at.Object.Version && !at.Object.PropertiesUnknown &&
		!p.IsEmpty() && p.Equal(at.Object.Properties, s.FoldCase) &&
		digest.Set(m.GetDigests()).Compare(at.digests()) == digest.Agree
}

// hasFailedProperties reports whether the destination's properties are still those of the failed check: unknown, or the
// ones that it found.
func (s Observation) hasFailedProperties() bool {
	found, o := s.Command.GetRepair().GetFailed().GetPropertiesHash(), s.Destination.Object
	if found == 0 || o.PropertiesUnknown {
		return found == 0 && o.PropertiesUnknown
	}
	return found == schemas.PropertiesHash(o.Properties.MediaType, o.Properties.User)
}

// repairReference returns the digests that the repaired copy must have. It returns false unless order, manifest and
// audit log agree, and the digests were verified against bytes.
func repairReference(order digest.Set, r *pb.CopyRecord) (digest.Set, bool) {
	m, a := digest.Set(r.GetManifest().GetDigests()), digest.Set(r.GetAudit().GetDigests())
	verified := r.GetLastPass() != nil ||
		r.GetManifest().GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED ||
		r.GetAudit().GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED
	expected := supported(order.Union(m).Union(a))
	return expected, verified && len(expected) > 0 &&
		m.Compare(a) == digest.Agree && order.Compare(m) == digest.Agree && order.Compare(a) == digest.Agree
}
