package duplicate

import (
	"maps"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// A Presence says whether a store has an item or a space.
type Presence int

// The presences. The zero value is Unknown, so that an observation that was not made is never taken for absence.
const (
	Unknown Presence = iota
	// Absent: the store reported it absent, and its marker was read afterwards.
	Absent
	Present
)

// A Side is one of the two copies of a command, as observed.
type Side struct {
	Presence Presence
	// Object is the result of Stat if the item is present.
	Object storage.Object
	// NoSpace: the space is absent too.
	NoSpace bool
	// AbsentAt is when the store reported the item absent, by the store's clock; zero if it reports no time.
	AbsentAt time.Time
	// Read are digests computed from the bytes; nil if they were not read.
	Read digest.Set
	// Record is the record of the copy, read afresh, or made from the last write; nil if it was not read.
	Record *pb.CopyRecord
	// ExternalWrites: another program than millrace's clients was expected to write the object.
	ExternalWrites bool
	// SetsProperties: the store can set properties without a new object, so that a client may have set those it reports.
	SetsProperties bool
	// Err is the reason for which the presence is unknown.
	Err error
}

// A recordsState says whether the records were read afresh.
type recordsState int

// The states of the records.
const (
	recordsUnread recordsState = iota
	recordsRead
	recordsFailed
)

// An Observation is the complete input of a decision about an item.
type Observation struct {
	Command             *pb.DuplicationCommand
	Rules               policy.Rules
	Source, Destination Side
	// Hold is the hold of the item that is in force; nil if there is none.
	Hold *policy.Hold
	// lists are those of Rules.ExcludeLists, if they were read.
	lists []*policy.List
	// recordsState is that of both sides' records.
	recordsState recordsState
	// old: the Change that caused the command, or the sweep's command, is dated further than recent from now.
	old bool
	// FoldCase: one of the stores ignores the case of property names.
	FoldCase bool
}

// digests returns the digests of the bytes if they were read, or else those that the store reports.
func (s Side) digests() digest.Set {
	if len(s.Read) > 0 {
		return s.Read
	}
	return s.Object.Digests
}

// modified returns the modification time with the precision of Changes.
func (s Side) modified() time.Time { return record.Time(s.Object.Modified).AsTime() }

// A content describes one content of an item, by a change or a row.
type content struct {
	version string
	digests digest.Set
	time    time.Time
	size    int64      // -1: unknown
	claims  digest.Set // claimed digests that the verified ones contradict
}

func contentOf(r *pb.Record) content {
	return content{r.GetVersion(), r.GetDigests(), schemas.Reported(r).AsTime(), schemas.SizeOf(r), r.GetClaims()}
}

func (v content) empty() bool { return v.version == "" && len(v.digests) == 0 }

// compare compares v with the content that a side has. They agree if they have the same version or agreeing digests or,
// if v has no version, the same time and size. If the times are equal and v's size is unknown they are incomparable.
func (v content) compare(s Side) digest.Agreement {
	agreement := v.digests.Compare(s.digests())
	switch {
	case v.version != "" && v.version == s.Object.Version, agreement == digest.Agree:
		return digest.Agree
	case v.version != "", agreement == digest.Disagree, !v.time.Equal(s.modified()):
		return digest.Disagree
	case v.size < 0:
		return digest.Incomparable
	case v.size == s.Object.Size:
		return digest.Agree
	}
	return digest.Disagree
}

// matches reports whether v is known to describe the content that the side has.
func (v content) matches(s Side) bool { return v.compare(s) == digest.Agree }

// differs reports whether the side is known not to hold v, a live content.
func (s Side) differs(v content) bool {
	return s.Presence != Present || v.compare(s) == digest.Disagree || v.digests.Compare(s.digests()) == digest.Disagree
}

// row returns the manifest's row of a side; false if it is not known. A row that a sweep's command carries is
// used if the command is recent and the row is about the object observed.
func (s Observation) row(side Side, carried *pb.Record) (*pb.Record, bool) {
	if r := side.Record.GetManifest(); r.GetState() != pb.RecordState_RECORD_STATE_UNSPECIFIED {
		return r, true
	}
	if s.recordsState != recordsUnread || s.old {
		return nil, false
	}
	switch carried.GetState() {
	case pb.RecordState_RECORD_STATE_LIVE:
		return carried, side.Presence == Present && record.IsOf(carried, side.Object)
	case pb.RecordState_RECORD_STATE_NONE, pb.RecordState_RECORD_STATE_TOMBSTONE:
		return carried, side.Presence == Absent
	}
	return nil, false
}

func (s Observation) sourceRow() (*pb.Record, bool) {
	return s.row(s.Source, s.Command.GetSourceRecord())
}

func (s Observation) destinationRow() (*pb.Record, bool) {
	return s.row(s.Destination, s.Command.GetDestinationRecord())
}

func isLive(r *pb.Record) bool      { return r.GetState() == pb.RecordState_RECORD_STATE_LIVE }
func isTombstone(r *pb.Record) bool { return r.GetState() == pb.RecordState_RECORD_STATE_TOMBSTONE }

// reported returns the content that the causing change names; empty if it names none, as a delete.
func (s Observation) reported() content {
	c := s.Command
	if c.GetCauseOp() == pb.Op_OP_DELETE {
		return content{}
	}
	return content{c.GetChangeVersion(), c.GetDigests(), c.GetChangeTime().AsTime(), schemas.SizeOf(c), nil}
}

// reportedByClient reports whether a client's change of content caused the command. The findings of sweeps and checks,
// and the requests of operators and repairs, are no such change.
func reportedByClient(c *pb.DuplicationCommand) bool {
	switch c.GetCauseOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		return c.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_CHANGE && !c.GetIfAbsent() && c.GetApproved() == ""
	}
	return false
}

// reportsProperties reports whether a change of properties caused the command. It names the content that had them set,
// but nobody has reported that content by it.
func reportsProperties(c *pb.DuplicationCommand) bool {
	return c.GetCauseOp() == pb.Op_OP_SET_PROPERTIES && c.GetApproved() == ""
}

// original returns the source content that the destination was copied from: as its store reports, or as the command
// does if their digests agree; zero if it is not known.
func (s Observation) original() storage.Original {
	if o := s.Destination.Object.Original; o != (storage.Original{}) {
		return o
	}
	reported := s.reported()
	switch s.Command.GetCauseOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		if reported.digests.Compare(s.Destination.digests()) == digest.Agree {
			return storage.Original{Modified: reported.time, Version: reported.version}
		}
	}
	return storage.Original{}
}

// sameVersionDiffers reports whether the destination was copied from the version that the source has, and its bytes
// differ.
func (s Observation) sameVersionDiffers() bool {
	return s.Destination.Object.Original == record.Original(s.Source.Object) &&
		s.Source.digests().Compare(s.Destination.digests()) == digest.Disagree
}

// reportedDelete returns the time that orders the delete that caused the command, if one did.
func (s Observation) reportedDelete() (time.Time, bool) {
	c := s.Command
	return schemas.ChangedAt(c).AsTime(), c.GetCauseOp() == pb.Op_OP_DELETE && c.GetChangeTime() != nil
}

// reportsDelete reports whether a client's delete, or the one of a copier along a chain, caused the command: not a
// finding of a sweep or a check.
func reportsDelete(c *pb.DuplicationCommand) bool {
	return c.GetCauseOp() == pb.Op_OP_DELETE && c.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_CHANGE &&
		!c.GetIfAbsent() && c.GetApproved() == ""
}

// supported returns the digests of v by algorithms that this program computes.
func supported(v digest.Set) digest.Set {
	c := maps.Clone(v)
	maps.DeleteFunc(c, func(alg, _ string) bool { return !digest.Known(alg) })
	return c
}

// lostProperties reports, as agreement, whether the records have properties of the side's content that its store cannot
// report. digests are all that are known of the content; it is Incomparable if they do not show whether the properties
// on record belong to it. It returns false if the record has to be read first; records in commands have no properties.
func (s Side) lostProperties(digests digest.Set) (lost digest.Agreement, ok bool) {
	r := s.Record.GetManifest()
	switch {
	case !s.Object.PropertiesUnknown:
		return digest.Disagree, true
	case r.GetState() == pb.RecordState_RECORD_STATE_UNSPECIFIED:
		return digest.Incomparable, false
	case record.Properties(r).IsEmpty():
		return digest.Disagree, true
	}
	return record.Describes(r, s.Object.Version, digests), true
}

// altersProperties reports whether the store reports other properties than the manifest has of the side's content, and
// no other program may have set them; false if the manifest is not known. digests are all that are known of the
// content.
func (s Side) altersProperties(digests digest.Set, foldCase bool) (altered, ok bool) {
	r := s.Record.GetManifest()
	if r.GetState() == pb.RecordState_RECORD_STATE_UNSPECIFIED {
		return false, false
	}
	mayBeSet := s.ExternalWrites && record.IsNewer(s.Object, r)
	return s.Presence == Present && !mayBeSet && !s.Object.PropertiesUnknown && r.GetPropertiesOf() == nil &&
		record.Alters(s.Object.Properties, r, foldCase) &&
		record.Describes(r, s.Object.Version, digests) == digest.Agree, true
}

// properties returns the properties of the side. If its store cannot report them, they are those on record of the
// content with these digests; unknown is true if there are none.
func (s Side) properties(digests digest.Set) (p storage.Properties, unknown bool) {
	if s.Presence == Present && !s.Object.PropertiesUnknown {
		return s.Object.Properties, false
	}
	r := s.Record.GetManifest()
	if p = record.Properties(r); p.IsEmpty() || record.Describes(r, s.Object.Version, digests) != digest.Agree {
		return storage.Properties{}, true
	}
	return p, false
}

// copyProperties returns the properties for a copy of the source's content, which has these digests. In a repair they
// are those of the destination, if it has them. If the records were read, and the source's store reports others than
// its record, they are those on record. If they are unknown, the destination keeps its own. It does not if the record
// shows that the source had properties with another content: then the destination's belong to a copy of that content.
func (s Observation) copyProperties(digests digest.Set) storage.Properties {
	if s.Command.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_REPAIR {
		if own, ok := s.Destination.repairedProperties(digests, s.FoldCase); ok {
			return own
		}
	}
	p, unknown := s.Source.properties(digests)
	r := s.Source.Record.GetManifest()
	if altered, _ := s.Source.altersProperties(digests, s.FoldCase); altered {
		return record.PropertiesOn(s.Source.Object, r)
	}
	had := !record.Properties(r).IsEmpty() || r.GetPropertiesOf() != nil
	if unknown && !had {
		p, _ = s.Destination.properties(digests)
	}
	return p
}

// repairedProperties returns the properties that the side keeps when its bytes are repaired: those that its store
// reports, if the object is the one on record and a client may have set them since it was copied, and else those on
// record of the content with these digests. It returns false if there are none.
func (s Side) repairedProperties(digests digest.Set, foldCase bool) (storage.Properties, bool) {
	if m := s.Record.GetManifest(); m.GetVersion() == "" || m.GetVersion() != s.Object.Version {
		s.Presence = Absent // what is there is another object
	}
	if altered, _ := s.altersProperties(digests, foldCase); altered && !s.SetsProperties {
		return record.PropertiesOn(s.Object, s.Record.GetManifest()), true
	}
	p, unknown := s.properties(digests)
	return p, !unknown
}

// sameProperties compares the users' properties of both sides, which hold the content with these digests.
func (s Observation) sameProperties(digests digest.Set) bool {
	a := s.Source.Object.Properties
	b, _ := s.Destination.properties(digests)
	return a.Equal(b, s.FoldCase)
}

// isFailedObject reports whether the destination is still as the failed check found it: the same object, or absent.
func (s Observation) isFailedObject() bool {
	failed := s.Command.GetRepair().GetFailed()
	if s.Destination.Presence == Absent {
		return failed == nil
	}
	return failed != nil && record.Is(s.Destination.Object, failed)
}
