package duplicate

import (
	"maps"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/storage"
)

// A Presence is what is known of an item, or a space, being in a store.
type Presence int

// The presences. Unknown is the zero value: what nobody looked at is not absent.
const (
	Unknown Presence = iota
	// Absent: the store said so, and its marker was read after that.
	Absent
	Present
)

// A Side is one of the two copies that a command is about, as it was seen.
type Side struct {
	Presence Presence
	// Object is what stat told, where the item is present.
	Object storage.Object
	// NoSpace says that the space is absent too.
	NoSpace bool
	// Seen is when the store said that the item is absent, by the store's clock; zero if it does not say when.
	AbsentAt time.Time
	// Read are the digests of the bytes, where they were read for want of others.
	Read digest.Set
	// Record is what is on record of the copy, read afresh or made by this execution;
	// nil where nobody asked.
	Record *pb.CopyRecord
	// Err is why the presence is unknown.
	Err error
}

// asked says how far reading the records afresh has come.
type recordsState int

// The states of asking.
const (
	recordsUnread recordsState = iota
	recordsRead
	recordsFailed
)

// A Sight is all that a decision about an item is made from.
type Observation struct {
	Command             *pb.DuplicationCommand
	Rules               policy.Rules
	Source, Destination Side
	// fresh says whether the records of both sides were read afresh.
	recordsState recordsState
	// FoldCase says that names of properties have no case in one of the stores.
	FoldCase bool
}

// digests are the content's: of the bytes where they were read, else the store's.
func (s Side) digests() digest.Set {
	if len(s.Read) > 0 {
		return s.Read
	}
	return s.Object.Digests
}

// modified is the object's time as Changes have it.
func (s Side) modified() time.Time { return s.Object.Modified.Truncate(time.Millisecond) }

// version tells of one content, as a change or a row has it.
type content struct {
	version string
	digests digest.Set
	time    time.Time
	size    int64 // -1: unknown
}

func contentOf(r *pb.Record) content {
	return content{r.GetVersion(), r.GetDigests(), r.GetTime().AsTime(), schemas.SizeOf(r)}
}

func (v content) empty() bool { return v.version == "" && len(v.digests) == 0 }

// about compares v with the content that is there: it agrees if it has the same version, or agreeing digests, or, if it
// names no version, the same time and size. At the same time an unknown size is no evidence, for or against.
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

// speaksOf reports whether v is known to be about the content that is there.
func (v content) matches(s Side) bool { return v.compare(s) == digest.Agree }

// differs reports whether the side is known not to be what v, which is live, says that it is.
func (s Side) differs(v content) bool {
	return s.Presence != Present || v.compare(s) == digest.Disagree || v.digests.Compare(s.digests()) == digest.Disagree
}

// row returns the manifest's row of a side, and whether there is an answer at all. A
// row that a sweep's command carries is an answer while it agrees with what is there.
func (s Observation) row(side Side, carried *pb.Record) (*pb.Record, bool) {
	if r := side.Record.GetManifest(); r.GetState() != pb.RecordState_RECORD_STATE_UNSPECIFIED {
		return r, true
	}
	if s.recordsState != recordsUnread {
		return nil, false
	}
	switch carried.GetState() {
	case pb.RecordState_RECORD_STATE_LIVE:
		return carried, side.Presence == Present && contentOf(carried).matches(side)
	case pb.RecordState_RECORD_STATE_NONE, pb.RecordState_RECORD_STATE_TOMBSTONE:
		return carried, side.Presence == Absent
	}
	return nil, false
}

// sourceRow returns the manifest's row of the source. To a command that brings back what a deletion took, the tombstone
// that the deletion carried says nothing: the source was put back after it.
func (s Observation) sourceRow() (*pb.Record, bool) {
	r, ok := s.row(s.Source, s.Command.GetSourceRecord())
	if s.carried(r) {
		r = &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
	}
	return r, ok
}

// carried reports whether r is the tombstone, or one before it, whose deletion took the copy that the command is to
// bring back.
func (s Observation) carried(r *pb.Record) bool {
	carried := s.Command.GetCarriedDelete()
	return carried != nil && isTombstone(r) && !r.GetTime().AsTime().After(carried.AsTime())
}

// returned reports whether the source is there under a tombstone that its deletion has carried, and is not younger.
func (s Observation) returned() bool {
	r := s.Source.Record.GetManifest()
	return s.Source.Presence == Present && s.carried(r) && !r.GetTime().AsTime().Before(s.Source.modified())
}

func (s Observation) destinationRow() (*pb.Record, bool) {
	return s.row(s.Destination, s.Command.GetDestinationRecord())
}

func isLive(r *pb.Record) bool      { return r.GetState() == pb.RecordState_RECORD_STATE_LIVE }
func isTombstone(r *pb.Record) bool { return r.GetState() == pb.RecordState_RECORD_STATE_TOMBSTONE }

// told is the content that the command's causing change speaks of; empty where it was no change of content.
func (s Observation) reported() content {
	c := s.Command
	if c.GetCauseOp() == pb.Op_OP_DELETE {
		return content{}
	}
	return content{c.GetChangeVersion(), c.GetDigests(), c.GetChangeTime().AsTime(), schemas.SizeOf(c)}
}

// byClient reports whether a command comes from a change of content that was reported when it was made. What a sweep or
// a check found, and what a person or a repair asks for, is no such change.
func reportedByClient(c *pb.DuplicationCommand) bool {
	switch c.GetCauseOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		return c.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_CHANGE && !c.GetIfAbsent() && c.GetApproved() == ""
	}
	return false
}

// original returns the content that the destination is a copy of: as its store says, or as the command does, if their
// digests agree. Zero if neither knows.
func (s Observation) original() storage.Original {
	if o := s.Destination.Object.Original; o != (storage.Original{}) {
		return o
	}
	told := s.reported()
	switch s.Command.GetCauseOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		if told.digests.Compare(s.Destination.digests()) == digest.Agree {
			return storage.Original{Modified: told.time, Version: told.version}
		}
	}
	return storage.Original{}
}

// contradicts reports whether the destination is a copy of the very version that the source is in, and holds other bytes.
func (s Observation) sameVersionDiffers() bool {
	return s.Destination.Object.Original == record.Original(s.Source.Object) &&
		s.Source.digests().Compare(s.Destination.digests()) == digest.Disagree
}

// deleteTold returns the time of the delete that caused the command, if one did.
func (s Observation) reportedDelete() (time.Time, bool) {
	c := s.Command
	return c.GetChangeTime().AsTime(), c.GetCauseOp() == pb.Op_OP_DELETE && c.GetChangeTime() != nil
}

// computable are those of v's digests that we can compute too.
func supported(v digest.Set) digest.Set {
	c := maps.Clone(v)
	maps.DeleteFunc(c, func(alg, _ string) bool { return !digest.Known(alg) })
	return c
}

// lost reports whether properties are on record of the side's content that its store cannot tell; false, and not ok,
// if the record would have to be read first. Records that a command carries have no properties. digests are all that
// are known of the content; Incomparable: they do not show whether it is the one that had the properties.
func (s Side) lostProperties(digests digest.Set) (lost digest.Agreement, ok bool) {
	r := s.Record.GetManifest()
	switch {
	case !s.Object.PropertiesUnknown:
		return digest.Disagree, true
	case r.GetState() == pb.RecordState_RECORD_STATE_UNSPECIFIED:
		return digest.Incomparable, false
	case isEmpty(record.Properties(r)):
		return digest.Disagree, true
	}
	return record.Describes(r, s.Object.Version, digests), true
}

func isEmpty(p storage.Properties) bool { return p.MediaType == "" && len(p.User) == 0 }

// properties returns those of the side or, if its store cannot tell them, those on record of the content with these
// digests. If there are none, unknown says so.
func (s Side) properties(digests digest.Set) (p storage.Properties, unknown bool) {
	if s.Presence == Present && !s.Object.PropertiesUnknown {
		return s.Object.Properties, false
	}
	r := s.Record.GetManifest()
	if p = record.Properties(r); isEmpty(p) || record.Describes(r, s.Object.Version, digests) != digest.Agree {
		return storage.Properties{}, true
	}
	return p, false
}

// given returns the properties that a copy of the source's content, which has these digests, is given. If none are
// known, the destination keeps its own. A copy, other than a repair, does not if the source is on record to have had
// some with another content: the destination's came with a copy of that.
func (s Observation) copyProperties(digests digest.Set) storage.Properties {
	p, unknown := s.Source.properties(digests)
	r := s.Source.Record.GetManifest()
	had := !isEmpty(record.Properties(r)) || r.GetPropertiesOf() != nil
	if unknown && (!had || s.Command.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_REPAIR) {
		p, _ = s.Destination.properties(digests)
	}
	return p
}

// sameProperties compares what users said about both sides, which hold the bytes of these digests.
func (s Observation) sameProperties(digests digest.Set) bool {
	a := s.Source.Object.Properties
	b, _ := s.Destination.properties(digests)
	return a.MediaType == b.MediaType && equalProperties(a.User, b.User, s.FoldCase)
}

func equalProperties(a, b map[string]string, fold bool) bool {
	if !fold {
		return maps.Equal(a, b)
	}
	return maps.Equal(lowerKeys(a), lowerKeys(b))
}

func lowerKeys(m map[string]string) map[string]string {
	f := make(map[string]string, len(m))
	for k, v := range m {
		f[strings.ToLower(k)] = v
	}
	return f
}

// isFailed reports whether the destination is what the repair's check found: that very
// object, or nothing where the bytes were gone.
func (s Observation) isFailedObject() bool {
	failed := s.Command.GetRepair().GetFailed()
	if s.Destination.Presence == Absent {
		return failed == nil
	}
	return failed != nil && record.Is(s.Destination.Object, failed)
}
