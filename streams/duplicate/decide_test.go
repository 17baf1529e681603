package duplicate

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

const (
	a = "0cc175b9c0f1b6a831c399e269772661" // md5 of "a"
	b = "92eb5ffee6ae2fec3ad71c777531578f"
)

var (
	pair = policy.Pair{Source: "1", Destination: "2"}
	live = pb.RecordState_RECORD_STATE_LIVE
	none = pb.RecordState_RECORD_STATE_NONE
	tomb = pb.RecordState_RECORD_STATE_TOMBSTONE
)

func hour(h int) time.Time               { return time.Date(2026, 9, 1, h, 0, 0, 0, time.UTC) }
func stamp(h int) *timestamppb.Timestamp { return timestamppb.New(hour(h)) }
func md5of(d string) digest.Set          { return digest.Set{digest.MD5: d} }
func there(version, md5 string, h int) Side {
	return Side{Presence: Present, Object: object(version, md5, h)}
}

func object(version, md5 string, h int) storage.Object {
	o := storage.Object{Item: "a.jpg", Size: 1, Modified: hour(h), Version: version}
	if md5 != "" {
		o.Digests = md5of(md5)
	}
	return o
}

func row(state pb.RecordState, version, md5 string, h int) *pb.Record {
	r := &pb.Record{State: state, Version: version, Time: stamp(h), Size: 1, Provenance: pb.Provenance_PROVENANCE_VERIFIED}
	if md5 != "" {
		r.Digests = md5of(md5)
	}
	return r
}

// claims adds a claim to a row, which its digests contradict.
func claims(r *pb.Record) *pb.Record {
	r.Claims = md5of(b)
	return r
}

// unsized makes the size of a row unknown.
func unsized(r *pb.Record) *pb.Record {
	r.Size, r.SizeUnknown = 0, true
	return r
}

// typed adds properties to a row.
func typed(r *pb.Record) *pb.Record {
	r.MediaType, r.Properties = "image/jpeg", map[string]string{"By": "me"}
	return r
}

// of marks the properties of a row as those of another content.
func of(r *pb.Record, version string, digests digest.Set) *pb.Record {
	r.PropertiesOf = &pb.Content{Version: version, Digests: digests}
	return r
}

// claimed marks the properties of a row as claimed by a listing.
func claimed(r *pb.Record) *pb.Record {
	r.PropertiesClaimed = true
	return r
}

// lose makes the properties unknown to the side's store.
func (s *Side) lose() { s.Object.Properties, s.Object.PropertiesUnknown = storage.Properties{}, true }

// observation returns one in which a change of hour 2 made version v1 with bytes a at the source, and the destination
// is absent. f alters it.
func observation(f func(*Observation)) Observation {
	s := Observation{
		Command: &pb.DuplicationCommand{
			Id: "c", Account: "acme", Space: "photos", Item: "a.jpg", SourceStore: "1", DestinationStore: "2",
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, CauseOp: pb.Op_OP_ADD,
			ChangeVersion: "v1", ChangeTime: stamp(2), Digests: md5of(a), Size: 1,
		},
		Rules:       policy.Rules{Pairs: []policy.Pair{pair}, Deletes: policy.Propagate, Since: hour(1)},
		Source:      there("v1", a, 2),
		Destination: Side{Presence: Absent},
	}
	if f != nil {
		f(&s)
	}
	return s
}

// records sets the rows of both sides as if read afresh.
func (s *Observation) records(source, destination *pb.Record) {
	s.recordsState = recordsRead
	s.Source.Record = &pb.CopyRecord{Manifest: source, Audit: source}
	s.Destination.Record = &pb.CopyRecord{Manifest: destination, Audit: destination}
}

// checked sets a pass of a check of the destination's content.
func (s *Observation) checked() {
	s.Destination.Record.LastPass = s.Destination.Record.GetManifest().GetTime()
}

// setCause replaces the change that caused the command.
func (s *Observation) setCause(op pb.Op, version, md5 string, h int) {
	c := s.Command
	c.CauseOp, c.ChangeVersion, c.Digests, c.ChangeTime = op, version, nil, stamp(h)
	if md5 != "" {
		c.Digests = md5of(md5)
	}
}

// bySweep makes the command one of a sweep, with these rows.
func (s *Observation) bySweep(source, destination *pb.Record) {
	s.setCause(pb.Op_OP_UNSPECIFIED, "", "", 0)
	s.Command.ChangeTime, s.Command.Reason = nil, pb.DuplicationReason_DUPLICATION_REASON_SWEEP
	s.Command.SourceRecord, s.Command.DestinationRecord = source, destination
}

// chained makes the source a destination.
func (s *Observation) chained() { s.Rules.Pairs = []policy.Pair{{Source: "0", Destination: "1"}, pair} }

// adopted makes a row one that only a sweep has reported.
func adopted(r *pb.Record) *pb.Record {
	r.Origin = pb.Origin_ORIGIN_SWEEP
	return r
}

func (s *Observation) copied(version, md5 string) { s.Destination = there(version, md5, 3) }

// bound is deleted in hour 4, with no version and the reported time of an hour. The copy's source is dated hour 100,
// and its record has Kafka's time of hour 5.
func (s *Observation) bound(reported int) {
	s.deleted(row(tomb, "", a, 4))
	s.Source.Record.Manifest.Reported = stamp(reported)
	m := s.Destination.Record.Manifest
	m.SourceTime, m.SourceEffective, m.SourceVersion = stamp(100), stamp(5), ""
}

// lost is deleted, with the copy absent too.
func (s *Observation) lost(source *pb.Record) {
	s.deleted(source)
	s.Destination.Presence, s.Destination.Object = Absent, storage.Object{}
}

// offRecord is deleted, with a copy of hour 6 that is on no record.
func (s *Observation) offRecord(source *pb.Record) {
	s.deleted(source)
	s.Destination = there("d1", a, 6)
	s.Destination.Record = &pb.CopyRecord{Manifest: row(none, "", "", 0)}
}

// deleted makes the source absent and the copy present.
func (s *Observation) deleted(source *pb.Record) {
	s.Source = Side{Presence: Absent}
	s.copied("d1", a)
	to := row(live, "d1", a, 3)
	to.SourceTime = stamp(2)
	s.records(source, to)
	s.setCause(pb.Op_OP_UNSPECIFIED, "", "", 0)
	s.Command.ChangeTime = nil
}

// A decisionCase is a case of the item table. Its name begins with the row that it is about; want has the value of the
// row on the wire.
type decisionCase struct {
	observe func(*Observation)
	want    Decision
}

func copyCases() map[string]decisionCase {
	image := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"By": "me"}}
	folded := storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	orphan := Decision{Row: "C7c", Result: "orphan",
		Detail: "the source is itself a destination, and only a sweep or a check has found the item there"}
	return map[string]decisionCase{
		"C12: the pair is not in the policy": {func(s *Observation) { s.Rules.Pairs = nil; s.Source = Side{} },
			Decision{Row: "C12", Result: "not-in-policy"}},
		"C9: source unknown":      {func(s *Observation) { s.Source = Side{} }, Decision{Row: "C9", action: actFail}},
		"C9: destination unknown": {func(s *Observation) { s.Destination = Side{} }, Decision{Row: "C9", action: actFail}},
		"C9: a row is needed": {func(s *Observation) { s.Source = there("v2", b, 3) },
			Decision{Row: "C9", action: actReadRecords}},
		"C9: another version of the same time and size": {func(s *Observation) { s.Source = there("v2", "", 2) },
			Decision{Row: "C9", action: actReadRecords}},
		"C9: a needed row cannot be read": {func(s *Observation) {
			s.Source = there("v2", b, 3)
			s.recordsState = recordsFailed
		}, Decision{Row: "C9", action: actFail}},
		"C9: a change of unknown size is not known to be about an empty content": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "", "", 2)
			s.Command.Digests = digest.Set{digest.SHA1: "00ff"} // not computed here
			s.Command.Size, s.Command.SizeUnknown, s.Source.Object.Size = 0, true, 0
		}, Decision{Row: "C9", action: actReadRecords}},
		"C1: the source has no digest": {func(s *Observation) { s.Source = there("v1", "", 2); s.copied("d1", a) },
			Decision{Row: "C1", action: actReadBytes, ReadSource: true}},
		"C1: the destination has no digest": {func(s *Observation) { s.copied("d1", "") },
			Decision{Row: "C1", action: actReadBytes, ReadDestination: true}},
		"C1: neither has": {func(s *Observation) { s.Source = there("v1", "", 2); s.copied("d1", "") },
			Decision{Row: "C1", action: actReadBytes, ReadSource: true, ReadDestination: true}},
		"C1: a touched source may be what is known": {func(s *Observation) {
			s.Source = there("v2", "", 3)
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C1", action: actReadBytes, ReadSource: true}},
		"C4s: the store's digest is not the known one": {func(s *Observation) { s.Source = there("v1", b, 2) },
			Decision{Row: "C4s", Result: "source-suspect", CheckSource: true}},
		"C4s: and the destination is there": {func(s *Observation) { s.Source = there("v1", b, 2); s.copied("d1", a) },
			Decision{Row: "C4s", Result: "source-suspect", CheckSource: true, CheckDestination: true}},
		"C4s: the bytes that were read are not": {func(s *Observation) {
			s.Source = there("v1", "", 2)
			s.Source.Read = md5of(b)
			s.copied("d1", b)
		}, Decision{Row: "C4s", Result: "source-suspect", CheckSource: true, CheckDestination: true}},
		"C4s: by the manifest, as the change has no digests": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v1", "", 2)
			s.Source = there("v1", b, 2)
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C4s", Result: "source-suspect", CheckSource: true}},
		"C4s: the destination is a copy of this very version, and holds other bytes": {func(s *Observation) {
			s.bySweep(nil, nil)
			s.copied("d1", b)
			s.Destination.Object.Original = record.Original(s.Source.Object)
			s.records(row(none, "", "", 0), row(none, "", "", 0))
		}, Decision{Row: "C4s", Result: "source-suspect", CheckSource: true, CheckDestination: true}},
		"C4s: no digests on record, and the destination is a copy of this very version": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v1", "", 2)
			s.copied("d1", b)
			s.Destination.Object.Original = record.Original(s.Source.Object)
			s.records(row(live, "v1", "", 2), copyOf(row(live, "d1", b, 3)))
		}, Decision{Row: "C4s", Result: "source-suspect", CheckSource: true, CheckDestination: true}},
		"C4s: a claim beside verified digests": {func(s *Observation) {
			s.setCause(pb.Op_OP_UNSPECIFIED, "", "", 0)
			s.records(claims(row(live, "v1", a, 2)), row(none, "", "", 0))
		}, Decision{Row: "C4s", Result: "source-suspect", CheckSource: true}},
		"C4s: a claim beside verified digests, which the change has too": {func(s *Observation) {
			s.copied("d1", b)
			s.records(claims(row(live, "v1", a, 2)), row(live, "d1", b, 1))
		}, Decision{Row: "C4s", Result: "source-suspect", CheckSource: true, CheckDestination: true}},
		"C4s: a claim beside verified digests, once the records are read": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v1", "", 2)
			s.records(claims(row(live, "v1", a, 2)), row(none, "", "", 0))
		}, Decision{Row: "C4s", Result: "source-suspect", CheckSource: true}},
		"C4s: also against content that a check recorded": {func(s *Observation) {
			s.copied("d1", b)
			s.Destination.Object.Original = record.Original(s.Source.Object)
			s.Command.Approved = "checker"
		}, Decision{Row: "C4s", Result: "source-suspect", CheckSource: true, CheckDestination: true}},
		"C4r: under a tombstone that is younger": {func(s *Observation) {
			s.setCause(pb.Op_OP_UNSPECIFIED, "", "", 0)
			s.records(row(tomb, "v1", a, 4), row(none, "", "", 0))
		}, Decision{Row: "C4r", Result: "resurrected", CheckSource: true}},
		"C4r: under one of the same time, with a copy": {func(s *Observation) {
			s.bySweep(nil, nil)
			s.copied("d1", a)
			s.records(row(tomb, "v1", a, 2), row(live, "d1", a, 3))
		}, Decision{Row: "C4r", Result: "resurrected", CheckSource: true}},
		"C4r: though a sweep has put it on record": {func(s *Observation) {
			s.Command.IfAbsent = true
			s.records(row(tomb, "v1", a, 4), row(none, "", "", 0))
		}, Decision{Row: "C4r", Result: "resurrected", CheckSource: true}},
		"C4r: though a correction was approved": {func(s *Observation) {
			s.Command.Approved = "checker"
			s.records(row(tomb, "v1", a, 4), row(none, "", "", 0))
		}, Decision{Row: "C4r", Result: "resurrected", CheckSource: true}},
		"C4r: needs the source's row, as no client reported the content": {func(s *Observation) { s.Command.IfAbsent = true },
			Decision{Row: "C9", action: actReadRecords}},
		"C5: to observe again after a delete, and a client's newer change is on record": {func(s *Observation) {
			s.setCause(pb.Op_OP_UNSPECIFIED, "", "", 0)
			s.records(row(live, "v1", a, 5), row(tomb, "d1", a, 4))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C4w: to observe again after a delete, of a younger source": {func(s *Observation) {
			s.setCause(pb.Op_OP_UNSPECIFIED, "", "", 0)
			s.Source = there("v1", a, 5)
			s.records(row(tomb, "v0", a, 4), row(tomb, "d1", a, 4))
		}, Decision{Row: "C4w", action: actWait, Result: "source-newer", CheckSource: true}},
		"C4w: newer than all that is known": {func(s *Observation) {
			s.Source = there("v2", b, 3)
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C4w", action: actWait, Result: "source-newer", CheckSource: true}},
		"C4w: present after its tombstone": {func(s *Observation) {
			s.Source = there("v2", b, 3)
			s.records(row(tomb, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C4w", action: actWait, Result: "source-newer", CheckSource: true}},
		"C4w: also if both sides agree": {func(s *Observation) {
			s.Source = there("v2", b, 3)
			s.copied("d1", b)
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C4w", action: actWait, Result: "source-newer", CheckSource: true}},
		"C7c: adopted in the middle of a chain": {func(s *Observation) {
			s.chained()
			s.bySweep(adopted(row(live, "v1", a, 2)), row(none, "", "", 0))
			s.Command.IfAbsent = true
		}, orphan},
		"C7c: found by a check in the middle of a chain": {func(s *Observation) {
			s.chained()
			s.bySweep(row(live, "v1", a, 2), row(none, "", "", 0))
			s.Command.SourceRecord.Origin = pb.Origin_ORIGIN_FIXITY
		}, orphan},
		"C7c: on no record in the middle of a chain": {func(s *Observation) {
			s.chained()
			s.bySweep(nil, nil)
			s.records(row(none, "", "", 0), row(none, "", "", 0))
		}, orphan},
		"C7c: adopted in the middle of a chain, and the destination has it": {func(s *Observation) {
			s.chained()
			s.bySweep(adopted(row(live, "v1", a, 2)), row(live, "d1", a, 3))
			s.copied("d1", a)
		}, orphan},
		"C7c: adopted in the middle of a chain, and the destination has other content": {func(s *Observation) {
			s.chained()
			s.bySweep(adopted(row(live, "v1", a, 2)), row(live, "d1", b, 3))
			s.copied("d1", b)
		}, orphan},
		"C5: of a sweep, copied into the middle of a chain": {func(s *Observation) {
			s.chained()
			s.bySweep(row(live, "v1", a, 2), row(none, "", "", 0))
			s.Command.SourceRecord.Origin = pb.Origin_ORIGIN_DUPLICATION
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C5: of a sweep, adopted at the start of a chain": {func(s *Observation) {
			s.Rules.Pairs = []policy.Pair{pair, {Source: "2", Destination: "3"}}
			s.bySweep(adopted(row(live, "v1", a, 2)), row(none, "", "", 0))
			s.Command.IfAbsent = true
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C5: adopted in the middle of a chain, and approved": {func(s *Observation) {
			s.chained()
			s.Command.Approved = "me"
			s.records(adopted(row(live, "v1", a, 2)), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C4d: was lost": {func(s *Observation) {
			s.bySweep(nil, nil)
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
		}, Decision{Row: "C4d", action: actCopy, Result: "was-lost", Expected: md5of(a)}},
		"C4d: lost, by what the sweep carries, is read afresh": {func(s *Observation) {
			s.bySweep(row(live, "v1", a, 2), row(live, "d1", a, 3))
		}, Decision{Row: "C9", action: actReadRecords}},
		"C4d: there, and not as recorded": {func(s *Observation) {
			s.bySweep(nil, nil)
			s.copied("d2", b)
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
		}, Decision{Row: "C4d", Result: "destination-suspect", CheckDestination: true}},
		"C4d: there, and of another time than recorded, with an unknown size": {func(s *Observation) {
			s.bySweep(nil, nil)
			s.copied("d1", a)
			s.records(row(live, "v1", a, 2), unsized(row(live, "", "", 4)))
		}, Decision{Row: "C4d", Result: "destination-suspect", CheckDestination: true}},
		"C2: the destination's row, of the same time, has no size to differ in": {func(s *Observation) {
			s.bySweep(nil, nil)
			s.copied("d1", a)
			s.records(row(live, "v1", a, 2), unsized(row(live, "", "", 3)))
		}, Decision{Row: "C2", Result: "in-sync", Announce: true}},
		"C4w: the source's row, of the same time, has no size to be the same by": {func(s *Observation) {
			s.bySweep(nil, nil)
			s.Source.Object.Size = 0
			s.records(unsized(row(live, "", "", 2)), row(none, "", "", 0))
		}, waitForSource()},
		"C9: a row of the same bytes, written before, that a sweep carries is no answer": {func(s *Observation) {
			s.bySweep(row(live, "v1", a, 2), row(live, "d1", b, 1))
			s.copied("d2", b)
		}, Decision{Row: "C9", action: actReadRecords}},
		"C9: a row of unknown size that a sweep carries is no answer": {func(s *Observation) {
			s.bySweep(unsized(row(live, "", "", 2)), row(none, "", "", 0))
			s.Source.Object.Size = 0
		}, Decision{Row: "C9", action: actReadRecords}},
		"C2: in sync, and on record": {func(s *Observation) {
			s.copied("d1", a)
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C2: in sync, on record, and never checked": {func(s *Observation) {
			s.copied("d1", a)
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
		}, Decision{Row: "C2", Result: "in-sync", Unchecked: true}},
		"C2: in sync, the Change was never sent": {func(s *Observation) {
			s.copied("d1", a)
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C2", Result: "in-sync", Announce: true}},
		"C2: in sync, in another version than on record": {func(s *Observation) {
			s.copied("d2", a)
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
		}, Decision{Row: "C2", Result: "in-sync", Announce: true}},
		"C2: in sync, and the source is on no record": {func(s *Observation) {
			s.bySweep(nil, nil)
			s.copied("d1", a)
			s.records(row(none, "", "", 0), row(live, "d1", a, 3))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync", AnnounceSource: true}},
		"C2: in sync, and the source is on record without digests": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v1", "", 2)
			s.copied("d1", a)
			s.records(row(live, "v1", "", 2), row(live, "d1", a, 3))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync", AnnounceSource: true}},
		"C2: in sync, and the manifest has the digests that the change lacks": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v1", "", 2)
			s.copied("d1", a)
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C2: needs the destination's row": {func(s *Observation) {
			s.copied("d1", a)
		}, Decision{Row: "C9", action: actReadRecords}},
		"C2: the sweep carries both rows": {func(s *Observation) {
			s.bySweep(row(live, "v1", a, 2), row(live, "d1", a, 3))
			s.copied("d1", a)
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C2: names have no case": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties, s.Destination.Object.Properties, s.FoldCase = image, folded, true
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
			s.Destination.Record.Manifest.MediaType, s.Destination.Record.Manifest.Properties = image.MediaType, image.User
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C2: the Change of the properties was never sent": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties, s.Destination.Object.Properties = image, image
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync", AnnounceProperties: true}},
		"C3: properties differ": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties = image
			s.records(typed(row(live, "v1", a, 2)), row(live, "d1", a, 3))
		}, Decision{Row: "C3", action: actSetProperties, Result: "properties-set"}},
		"C3: names have case": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties, s.Destination.Object.Properties = image, folded
			s.records(typed(row(live, "v1", a, 2)), row(live, "d1", a, 3))
		}, Decision{Row: "C3", action: actSetProperties, Result: "properties-set"}},
		"C3: those of the destination were altered": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties, s.Destination.Object.Properties = image, folded
			s.records(typed(row(live, "v1", a, 2)), typed(row(live, "d1", a, 3)))
		}, Decision{Row: "C3", action: actSetProperties, Result: "properties-set"}},
		"C3: those of the source are on record as a claim": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties = folded
			s.records(claimed(typed(row(live, "v1", a, 2))), row(live, "d1", a, 3))
		}, Decision{Row: "C3", action: actSetProperties, Result: "properties-set"}},
		"C3: those of the source are on record of other bytes": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties = folded
			s.records(typed(row(live, "v0", b, 1)), row(live, "d1", a, 3))
		}, Decision{Row: "C3", action: actSetProperties, Result: "properties-set"}},
		"C2u: those of the source were altered": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties, s.Destination.Object.Properties = folded, image
			s.records(typed(row(live, "v1", a, 2)), typed(row(live, "d1", a, 3)))
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true}},
		"C2u: all those of the source are gone": {func(s *Observation) {
			s.copied("d1", a)
			s.Destination.Object.Properties = image
			s.records(typed(row(live, "v1", a, 2)), typed(row(live, "d1", a, 3)))
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true}},
		"C2u: those of another version of the bytes were altered": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties = folded
			s.records(typed(row(live, "v0", a, 1)), typed(row(live, "d1", a, 3)))
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true}},
		"C2u: those of the source were altered, and the destination has lost its own": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties = folded
			s.Destination.lose()
			s.records(typed(row(live, "v1", a, 2)), typed(row(live, "d1", a, 3)))
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true, CheckDestination: true}},
		"C2u: the source has lost its own, and those of the destination were altered": {func(s *Observation) {
			s.copied("d1", a)
			s.Destination.Object.Properties = folded
			s.Source.lose()
			s.records(typed(row(live, "v1", a, 2)), typed(row(live, "d1", a, 3)))
			s.checked()
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true, CheckDestination: true}},
		"C2u: the source has lost its own, and the destination is another version with others": {func(s *Observation) {
			s.copied("d2", a)
			s.Destination.Object.Properties = folded
			s.Source.lose()
			s.records(typed(row(live, "v1", a, 2)), typed(row(live, "d1", a, 3)))
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true, CheckDestination: true}},
		"C2u: both were altered alike": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties, s.Destination.Object.Properties = folded, folded
			s.records(typed(row(live, "v1", a, 2)), typed(row(live, "d1", a, 3)))
			s.checked()
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true, CheckDestination: true}},
		"C3: another program was expected to set those of the source": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties, s.Source.Object.Modified, s.Source.ExternalWrites = folded, hour(5), true
			s.records(typed(row(live, "v1", a, 2)), row(live, "d1", a, 3))
		}, Decision{Row: "C3", action: actSetProperties, Result: "properties-set"}},
		"C9: whether the record lacks those of the destination needs the record": {func(s *Observation) {
			s.bySweep(row(live, "v1", a, 2), row(live, "d1", a, 3))
			s.copied("d1", a)
			s.Source.Object.Properties, s.Destination.Object.Properties = image, image
		}, Decision{Row: "C9", action: actReadRecords}},
		"C9: whether those of the source were altered needs the record": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties = image
		}, Decision{Row: "C9", action: actReadRecords}},
		"C2u: the source has lost its properties": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.lose()
			s.Destination.Object.Properties = image
			s.records(typed(row(live, "v1", a, 2)), typed(row(live, "d1", a, 3)))
			s.checked()
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true}},
		"C2u: the destination has lost its properties": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties = image
			s.Destination.lose()
			s.records(typed(row(live, "v1", a, 2)), typed(row(live, "d1", a, 3)))
			s.checked()
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckDestination: true}},
		"C3: the destination has lost others than the source has now": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties = folded
			s.Destination.lose()
			s.records(row(live, "v1", a, 2), typed(row(live, "d1", a, 3)))
			s.checked()
		}, Decision{Row: "C3", action: actSetProperties, Result: "properties-set"}},
		"C2u: both have lost them": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.lose()
			s.Destination.lose()
			s.records(typed(row(live, "v1", a, 2)), typed(row(live, "d1", a, 3)))
			s.checked()
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true, CheckDestination: true}},
		"C2u: the source has lost its properties, and the Change of the copy was never sent": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.lose()
			s.Destination.Object.Properties = image
			s.records(typed(row(live, "v1", a, 2)), row(none, "", "", 0))
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true, Announce: true}},
		"C2: neither store can report properties, and none are on record": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.lose()
			s.Destination.lose()
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C2: what the source cannot report, and is on no record, is not carried": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.lose()
			s.Destination.Object.Properties = image
			s.records(row(live, "v1", a, 2), typed(row(live, "d1", a, 3)))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C3: what the destination cannot report, and is on no record, is none": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties = image
			s.Destination.lose()
			s.records(typed(row(live, "v1", a, 2)), row(live, "d1", a, 3))
		}, Decision{Row: "C3", action: actSetProperties, Result: "properties-set"}},
		"C2: the properties on record were those of other bytes": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.lose()
			s.records(of(typed(row(live, "v1", a, 2)), "v0", md5of(b)), row(live, "d1", a, 3))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C2u: the properties on record were those of these bytes, in another version": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.lose()
			s.records(of(typed(row(live, "v1", "", 2)), "v0", md5of(a)), row(live, "d1", a, 3))
			s.checked()
		}, Decision{Row: "C2u", Result: "properties-unknown", CheckSource: true}},
		"C2: the bytes that had the properties on record are not known": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.lose()
			s.Destination.lose()
			s.records(of(typed(row(live, "v1", a, 2)), "v0", nil), of(typed(row(live, "d1", a, 3)), "", nil))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C2: the properties on record were only claimed": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.lose()
			s.Destination.lose()
			s.records(claimed(typed(row(live, "v1", a, 2))), claimed(typed(row(live, "d1", a, 3))))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C3: the destination had the same with other bytes": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.Object.Properties = image
			s.Destination.lose()
			s.records(typed(row(live, "v1", a, 2)), of(typed(row(live, "d1", a, 3)), "d0", md5of(b)))
			s.checked()
		}, Decision{Row: "C3", action: actSetProperties, Result: "properties-set"}},
		"C9: whether properties are lost needs the record": {func(s *Observation) { s.copied("d1", a); s.Destination.lose() },
			Decision{Row: "C9", action: actReadRecords}},
		"C9: a row that a sweep carries says nothing of properties": {func(s *Observation) {
			s.bySweep(row(live, "v1", a, 2), row(live, "d1", a, 3))
			s.copied("d1", a)
			s.Source.lose()
		}, Decision{Row: "C9", action: actReadRecords}},
		"C9: whether properties are lost is not known": {func(s *Observation) {
			s.copied("d1", a)
			s.Source.lose()
			s.recordsState = recordsFailed
		}, Decision{Row: "C9", action: actFail}},
		"C9: to copy a source with lost properties needs the record": {func(s *Observation) { s.Source.lose() },
			Decision{Row: "C9", action: actReadRecords}},
		"C5: the source has lost its properties": {func(s *Observation) {
			s.Source.lose()
			s.records(typed(row(live, "v1", a, 2)), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a), CheckSource: true}},
		"C5: the source cannot report properties, and none are on record": {func(s *Observation) {
			s.Source.lose()
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C5: the source has lost the properties of these bytes, which another version had": {func(s *Observation) {
			s.Source.lose()
			s.records(of(typed(row(live, "v1", "", 2)), "v0", md5of(a)), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a), CheckSource: true}},
		"C5: the properties on record of the source are those of other bytes": {func(s *Observation) {
			s.Source.lose()
			s.records(of(typed(row(live, "v1", a, 2)), "v0", md5of(b)), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C5: the properties on record of the source were only claimed": {func(s *Observation) {
			s.Source.lose()
			s.records(claimed(typed(row(live, "v1", a, 2))), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C1: the source's bytes may be those that had the properties on record": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v1", "", 2)
			s.Source = there("v1", "", 2)
			s.Source.lose()
			s.records(of(typed(row(live, "v1", "", 2)), "v0", md5of(a)), row(none, "", "", 0))
		}, Decision{Row: "C1", action: actReadBytes, ReadSource: true}},
		"C5: the source's bytes, which were read, are those that had the properties on record": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v1", "", 2)
			s.Source = there("v1", "", 2)
			s.Source.lose()
			s.Source.Read = md5of(a)
			s.records(of(typed(row(live, "v1", "", 2)), "v0", md5of(a)), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: digest.Set{},
			CheckSource: true}},
		"C5: the bytes that had the properties on record are not known": {func(s *Observation) {
			s.Source.lose()
			s.Source.Read = md5of(a)
			s.records(of(typed(row(live, "v1", a, 2)), "v0", nil), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C4: over a destination that has lost its properties": {func(s *Observation) {
			s.copiedFrom(1)
			s.Destination.lose()
		}, Decision{Row: "C4", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C4: a client reported the source, whatever the destination is a copy of": {func(s *Observation) {
			s.copied("d1", b)
			s.Destination.Object.Original = record.Original(s.Source.Object)
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C4", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C4: if_absent: a client's change copies it": {func(s *Observation) {
			s.copied("d1", b)
			s.Command.IfAbsent = true
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C4", Result: "if-absent"}},
		"C4: if_absent: a check has found the content": {func(s *Observation) {
			s.copied("d1", b)
			s.Command.IfAbsent = true
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
			s.Source.Record.Manifest.Origin = pb.Origin_ORIGIN_FIXITY
		}, Decision{Row: "C4", action: actWait, Result: "copy-differs"}},
		"C4: of a sweep: the content was adopted since": {func(s *Observation) {
			s.copied("d1", b)
			s.bySweep(adopted(row(live, "v1", a, 2)), row(live, "d1", b, 1))
			s.records(adopted(row(live, "v1", a, 2)), row(live, "d1", b, 1))
		}, Decision{Row: "C4", action: actWait, Result: "copy-differs"}},
		"C4: of a sweep: only a sweep has reported what the destination holds": {func(s *Observation) {
			s.bySweep(row(live, "v1", a, 2), adopted(row(live, "d2", b, 4)))
			s.Destination = there("d2", b, 4)
		}, Decision{Row: "C4", action: actWait, Result: "copy-differs"}},
		"C4: of a sweep: the destination is on record as a copy": {func(s *Observation) {
			s.bySweep(row(live, "v1", a, 2), copyOf(row(live, "d1", b, 3)))
			s.copied("d1", b)
		}, Decision{Row: "C4", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C4: a client's change, over what only a sweep has reported": {func(s *Observation) {
			s.copied("d1", b)
			s.records(row(live, "v1", a, 2), adopted(row(live, "d1", b, 3)))
		}, Decision{Row: "C4", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C4: of a deleter: only a check has found the content": {func(s *Observation) {
			s.setCause(pb.Op_OP_UNSPECIFIED, "", "", 0)
			s.copied("d1", b)
			s.records(by(pb.Origin_ORIGIN_FIXITY, row(live, "v1", a, 2)), copyOf(row(live, "d1", b, 3)))
		}, Decision{Row: "C4", action: actWait, Result: "copy-differs"}},
		"C4: of a deleter: a client has put the content": {func(s *Observation) {
			s.setCause(pb.Op_OP_UNSPECIFIED, "", "", 0)
			s.copied("d1", b)
			s.records(row(live, "v1", a, 2), copyOf(row(live, "d1", b, 3)))
		}, Decision{Row: "C4", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C4: of a delete: only a check has found the content since": {func(s *Observation) {
			s.setCause(pb.Op_OP_DELETE, "v0", "", 1)
			s.copied("d1", b)
			s.records(by(pb.Origin_ORIGIN_FIXITY, row(live, "v1", a, 2)), copyOf(row(live, "d1", b, 3)))
		}, Decision{Row: "C4", action: actWait, Result: "copy-differs"}},
		"C4: approved, and a check has found another content since": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v0", b, 1)
			s.Command.Approved = "me"
			s.copied("d1", b)
			s.records(by(pb.Origin_ORIGIN_FIXITY, row(live, "v1", a, 2)), copyOf(row(live, "d1", b, 3)))
		}, Decision{Row: "C4", action: actWait, Result: "copy-differs", Newer: true}},
		"C4: of a sweep, and approved on a list": {func(s *Observation) {
			s.bySweep(row(live, "v1", a, 2), copyOf(row(live, "d1", b, 3)))
			s.setCause(pb.Op_OP_UNSPECIFIED, "v1", a, 2)
			s.Command.Approved, s.Command.List = "me", "rewrites-1"
			s.copied("d1", b)
			s.Command.Effect = s.effect(RowContentDiffers)
		}, Decision{Row: "C4", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C2: of a sweep: only a sweep has reported what the destination holds": {func(s *Observation) {
			s.bySweep(row(live, "v1", a, 2), adopted(row(live, "d1", a, 3)))
			s.copied("d1", a)
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C9: whether a client has reported the content, not only its properties, needs the record": {func(s *Observation) {
			s.setCause(pb.Op_OP_SET_PROPERTIES, "v1", a, 2)
			s.copied("d1", b)
		}, Decision{Row: "C9", action: actReadRecords}},
		"C4: a client set properties of content that it had reported": {func(s *Observation) {
			s.setCause(pb.Op_OP_SET_PROPERTIES, "v1", a, 2)
			s.copied("d1", b)
			s.records(row(live, "v1", a, 2), row(live, "d1", b, 1))
		}, Decision{Row: "C4", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C4: a client set properties of content that only a sweep has reported": {func(s *Observation) {
			s.setCause(pb.Op_OP_SET_PROPERTIES, "v1", a, 2)
			s.copied("d1", b)
			s.records(adopted(row(live, "v1", a, 2)), row(live, "d1", b, 1))
		}, Decision{Row: "C4", action: actWait, Result: "copy-differs"}},
		"C4: a client set properties of content that only a sweep has reported, and names no version": {func(s *Observation) {
			s.setCause(pb.Op_OP_SET_PROPERTIES, "", "", 4)
			s.copied("d1", b)
			s.records(adopted(row(live, "v1", a, 2)), row(live, "d1", b, 1))
		}, Decision{Row: "C4", action: actWait, Result: "copy-differs"}},
		"C4: a client set properties of content that is not on record": {func(s *Observation) {
			s.setCause(pb.Op_OP_SET_PROPERTIES, "v1", a, 2)
			s.copied("d1", b)
			s.records(row(live, "v0", b, 1), row(live, "d1", b, 1))
		}, Decision{Row: "C4", action: actWait, Result: "copy-differs"}},
		"C4: properties of content that only a sweep has reported, approved": {func(s *Observation) {
			s.setCause(pb.Op_OP_SET_PROPERTIES, "v1", a, 2)
			s.Command.Approved = "me"
			s.copied("d1", b)
			s.records(adopted(row(live, "v1", a, 2)), row(live, "d1", b, 1))
		}, Decision{Row: "C4", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C5: a client set properties of content that only a sweep has reported": {func(s *Observation) {
			s.setCause(pb.Op_OP_SET_PROPERTIES, "v1", a, 2)
			s.records(adopted(row(live, "v1", a, 2)), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C3: a client set properties of content that only a sweep has reported": {func(s *Observation) {
			s.setCause(pb.Op_OP_SET_PROPERTIES, "v1", a, 2)
			s.copied("d1", a)
			s.Source.Object.Properties = image
			s.records(adopted(row(live, "v1", a, 2)), row(live, "d1", a, 3))
		}, Decision{Row: "C3", action: actSetProperties, Result: "properties-set"}},
		"C4: if_absent: the record is of another content": {func(s *Observation) {
			s.copied("d1", b)
			s.Command.IfAbsent = true
			s.records(row(live, "v0", b, 1), row(none, "", "", 0))
		}, Decision{Row: "C4", action: actWait, Result: "copy-differs"}},
		"C4n: nothing is known": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "", "", 0)
			s.copied("d1", b)
			s.records(row(none, "", "", 0), row(none, "", "", 0))
		}, Decision{Row: "C4n", action: actCopy, Result: "copied", Expected: digest.Set{}, ReadTwice: true}},
		"C4n: known without digests": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v1", "", 2)
			s.copied("d1", b)
			s.records(row(live, "v1", "", 2), row(none, "", "", 0))
		}, Decision{Row: "C4n", action: actCopy, Result: "copied", Expected: digest.Set{}, ReadTwice: true}},
		"C5: plain": {nil, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C5: if_absent too": {func(s *Observation) {
			s.Command.IfAbsent = true
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C5: without digests the manifest is asked first": {func(s *Observation) { s.setCause(pb.Op_OP_ADD, "v1", "", 2) },
			Decision{Row: "C9", action: actReadRecords}},
		"C5: a row without digests that the command carries is read afresh": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v1", "", 2)
			s.Command.SourceRecord = row(live, "v1", "", 2)
		}, Decision{Row: "C9", action: actReadRecords}},
		"C5: the manifest knows them": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "v1", "", 2)
			s.records(row(live, "v1", a, 2), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C5: nothing known, so the bytes become the reference": {func(s *Observation) {
			s.setCause(pb.Op_OP_UNSPECIFIED, "", "", 0)
			s.records(row(none, "", "", 0), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: digest.Set{}}},
		"C5: a change that names no version speaks by time and size": {func(s *Observation) {
			s.setCause(pb.Op_OP_ADD, "", a, 2)
			s.Source = there("v1", "", 2)
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C11: a newer version, which the manifest knows": {func(s *Observation) {
			s.Source = there("v2", b, 3)
			s.records(row(live, "v2", b, 3), row(none, "", "", 0))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(b), Newer: true}},
		"C11: another version of the same bytes is not newer": {func(s *Observation) { s.Source = there("v2", a, 3) },
			Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
	}
}

func TestDecideCarries(t *testing.T) {
	for name, tt := range copyCases() {
		t.Run(name, func(t *testing.T) {
			got := Decide(observation(tt.observe))
			if len(got.Expected) == 0 && len(tt.want.Expected) == 0 {
				got.Expected, tt.want.Expected = nil, nil
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func deleteCases() map[string]decisionCase {
	ordered := func(row Row, h int, approval bool) Decision {
		return Decision{Row: row, action: actDelete, Result: "deletion-ordered", Deleted: hour(h), NeedsApproval: approval}
	}
	announced := func(d Decision) Decision { d.Announce = true; return d }
	kept := Decision{Row: "C7b", Result: "kept"}
	gone := func(h int) Decision { return Decision{Row: "C8", Result: "gone", Announce: true, Deleted: hour(h)} }
	unexplained := Decision{Row: "C8", Result: "gone-unexplained"}
	return map[string]decisionCase{
		"C6: the source's row is live": {func(s *Observation) { s.deleted(row(live, "v1", a, 2)) },
			Decision{Row: "C6", action: actWait, Result: "source-missing"}},
		"C6: the reported delete is older": {func(s *Observation) {
			s.deleted(row(live, "v1", a, 5))
			s.setCause(pb.Op_OP_DELETE, "v0", "", 4)
		}, Decision{Row: "C6", action: actWait, Result: "source-missing"}},
		"C7: a tombstone": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
		}, ordered("C7", 4, false)},
		"C7: in the same millisecond": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 2))
		}, ordered("C7", 2, false)},
		"C7: this command's delete": {func(s *Observation) {
			s.deleted(row(live, "v1", a, 2))
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
		}, ordered("C7", 4, false)},
		"C7: the younger of two deletes": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 3))
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
		}, ordered("C7", 4, false)},
		"C7d: a reported delete, no newer than the copy's content": {func(s *Observation) {
			s.deleted(row(none, "", "", 0))
			s.setCause(pb.Op_OP_DELETE, "v1", a, 2)
		}, Decision{Row: "C7d", Result: "kept-newer"}},
		"C7: a client's delete, at a command of what a check found": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Command.IfAbsent = true
		}, ordered("C7", 4, false)},
		"C7: a client's delete, which a sweep reports with a later time": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.setCause(pb.Op_OP_DELETE, "", "", 6)
			s.Command.IfAbsent = true
		}, ordered("C7", 4, false)},
		"C7b: a client's delete before the content of the copy, and a later one that a sweep reports": {
			func(s *Observation) {
				s.deleted(row(tomb, "v1", a, 4))
				s.Destination.Record.Manifest.SourceTime = stamp(5)
				s.setCause(pb.Op_OP_DELETE, "", "", 6)
				s.Command.IfAbsent = true
			}, ordered("C7b", 6, true)},
		"C7b: a client's delete before the rule, and a later one that a sweep reports": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Rules.Since = hour(5)
			s.setCause(pb.Op_OP_DELETE, "", "", 6)
			s.Command.IfAbsent = true
		}, kept},
		"C7: nothing is read yet": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.recordsState, s.Source.Record = recordsUnread, nil
		}, Decision{Row: "C9", action: actReadRecords}},
		"C7: the records are unknown": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.recordsState, s.Destination.Record = recordsFailed, nil
		}, Decision{Row: "C9", action: actFail}},
		"C7d: the copy is of a younger content": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Destination.Record.Manifest.SourceTime = stamp(5)
		}, Decision{Row: "C7d", Result: "kept-newer"}},
		"C7: the copy is of the deleted version, which was dated ahead": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Destination.Record.Manifest.SourceTime, s.Destination.Record.Manifest.SourceVersion = stamp(5), "v1"
		}, ordered("C7", 4, false)},
		"C7: the copy is of the version that the command's delete names": {func(s *Observation) {
			s.deleted(row(none, "", "", 0))
			s.Destination.Record.Manifest.SourceVersion = "v1"
			s.setCause(pb.Op_OP_DELETE, "v1", a, 2)
		}, ordered("C7", 2, false)},
		"C7: the copy has no row, and its store says that it is of the deleted version": {func(s *Observation) {
			s.offRecord(row(tomb, "v1", a, 4))
			s.Destination.Object.Original = storage.Original{Modified: hour(5), Version: "v1"}
		}, announced(ordered("C7", 4, false))},
		"C7b: the delete is newer than the content by Kafka's clock alone": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Source.Record.Manifest.Disputed = true
		}, ordered("C7b", 4, true)},
		"C7: so it is, and an operator approved it": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Source.Record.Manifest.Disputed, s.Command.Approved = true, "me"
			s.Command.CauseOp = pb.Op_OP_DELETE
		}, ordered("C7", 4, false)},
		"C7b: a client has written other content to the destination, whose clock may be behind": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Destination = there("d1", b, 3)
			s.Destination.Record = &pb.CopyRecord{Manifest: by(pb.Origin_ORIGIN_CLIENT, row(live, "d1", b, 3))}
		}, ordered("C7b", 4, true)},
		"C7b: only a sweep has found other content at the destination, whose clock may be behind": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.copied("d2", b)
			s.records(row(tomb, "v1", a, 4), adopted(row(live, "d2", b, 3)))
		}, ordered("C7b", 4, true)},
		"C7b: the destination holds another object than is on record": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.copied("d2", b)
			s.records(row(tomb, "v1", a, 4), copyOf(row(live, "d1", a, 3)))
		}, ordered("C7b", 4, true)},
		"C7: only a sweep has found the content of the source at the destination": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Destination.Record.Manifest = adopted(row(live, "d1", a, 3))
		}, ordered("C7", 4, false)},
		"C7: the content is as new as its copy by Kafka's clock, and older by the clock that was ahead for both": {
			func(s *Observation) { s.bound(102) }, ordered("C7", 4, false)},
		"C7b: so it is, and newer by that clock":      {func(s *Observation) { s.bound(99) }, ordered("C7b", 4, true)},
		"C7b: so it is, and the delete was not ahead": {func(s *Observation) { s.bound(4) }, ordered("C7b", 4, true)},
		"C7: so it was, and an operator approved it": {func(s *Observation) {
			s.bound(4)
			s.Command.Approved, s.Command.CauseOp = "me", pb.Op_OP_DELETE
		}, ordered("C7", 4, false)},
		"C7d: the delete is older than the content, whose copy is older than that": {func(s *Observation) {
			s.bound(102)
			s.Destination.Record.Manifest.SourceTime, s.Destination.Record.Manifest.SourceEffective = stamp(5), nil
		}, Decision{Row: "C7d", Result: "kept-newer"}},
		"C7: a client has reported the content of the source at the destination": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Destination = there("d1", a, 3)
			s.Destination.Record = &pb.CopyRecord{Manifest: by(pb.Origin_ORIGIN_CLIENT, row(live, "d1", a, 3))}
		}, ordered("C7", 4, false)},
		"C8: the delete is newer than the content by Kafka's clock alone": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Source.Record.Manifest.Disputed = true
			s.Destination = Side{Presence: Absent, Record: s.Destination.Record}
		}, unexplained},
		"C7d: the copy is not the recorded one, and younger": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Destination = Side{Presence: Present, Object: object("d2", b, 6), Record: s.Destination.Record}
		}, Decision{Row: "C7d", Result: "kept-newer"}},
		"C7: the copy has no row and is older": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Destination.Record.Manifest = row(none, "", "", 0)
		}, announced(ordered("C7", 4, false))},
		"C7: the copy has no row, and its store says that it is of older content": {func(s *Observation) {
			s.offRecord(row(tomb, "v1", a, 4))
			s.Destination.Object.Original = storage.Original{Modified: hour(2), Version: "v1"}
		}, announced(ordered("C7", 4, false))},
		"C7: the copy has no row, and the command says so": {func(s *Observation) {
			s.offRecord(row(tomb, "v1", a, 4))
			s.setCause(pb.Op_OP_ADD, "v1", a, 2)
		}, announced(ordered("C7", 4, false))},
		"C7d: the copy has no row, and its store says that it is of younger content": {func(s *Observation) {
			s.offRecord(row(tomb, "v1", a, 4))
			s.Destination.Object.Original = storage.Original{Modified: hour(5), Version: "v2"}
		}, announced(Decision{Row: "C7d", Result: "kept-newer"})},
		"C7: the copy has no row, and is of content that is older by the clock that was ahead for both": {
			func(s *Observation) {
				s.offRecord(row(tomb, "v1", a, 4))
				s.Source.Record.Manifest.Reported = stamp(102)
				s.Destination.Object.Original = storage.Original{Modified: hour(100), Version: "v0"}
			}, announced(ordered("C7", 4, false))},
		"C7d: the copy is on record, of younger content than a delete that was dated ahead": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Source.Record.Manifest.Reported, s.Destination.Record.Manifest.SourceTime = stamp(102), stamp(5)
			s.Destination.Object.Original = storage.Original{Modified: hour(5),
				Version: s.Destination.Record.Manifest.GetSourceVersion()}
		}, Decision{Row: "C7d", Result: "kept-newer"}},
		"C7d: the copy has no row, and nothing says what it is a copy of": {func(s *Observation) {
			s.offRecord(row(tomb, "v1", a, 4))
		}, announced(Decision{Row: "C7d", Result: "kept-newer"})},
		"C7d: the copy has no row, and the command reports other bytes": {func(s *Observation) {
			s.offRecord(row(tomb, "v1", a, 4))
			s.setCause(pb.Op_OP_ADD, "v1", b, 2)
		}, announced(Decision{Row: "C7d", Result: "kept-newer"})},
		"C7d: the copy has no row, and the delete's digests say nothing of its time": {func(s *Observation) {
			s.offRecord(row(none, "", "", 0))
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
		}, announced(Decision{Row: "C7d", Result: "kept-newer"})},
		"C7: the row of the copy is of an older delete": {func(s *Observation) {
			s.offRecord(row(tomb, "v1", a, 4))
			s.Destination.Object.Original = storage.Original{Modified: hour(2), Version: "v1"}
			s.Destination.Record.Manifest = row(tomb, "d0", a, 5)
		}, announced(ordered("C7", 4, false))},
		"C7: the row of the copy is of a younger delete": {func(s *Observation) {
			s.offRecord(row(tomb, "v1", a, 4))
			s.Destination.Object.Original = storage.Original{Modified: hour(2), Version: "v1"}
			s.Destination.Record.Manifest = row(tomb, "d0", a, 6)
		}, ordered("C7", 4, false)},
		"C7b: keep, and the copy has no row": {func(s *Observation) {
			s.offRecord(row(tomb, "v1", a, 7))
			s.Rules.Deletes = policy.KeepCopy
		}, announced(kept)},
		"C7c: nothing is known of either": {func(s *Observation) { s.offRecord(row(none, "", "", 0)) },
			announced(Decision{Row: "C7c", Result: "orphan"})},
		"C7b: keep": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Rules.Deletes = policy.KeepCopy
		}, kept},
		"C7b: approve": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Rules.Deletes = policy.Approve
		}, ordered("C7b", 4, true)},
		"C7b: older than the rule": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Rules.Since = hour(4)
		}, kept},
		"C7b: older than the end of approval": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Rules.Propagated = hour(5)
		}, ordered("C7b", 4, true)},
		"C7b: older than the pair": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Rules.Added = map[policy.Pair]time.Time{pair: hour(5)}
		}, kept},
		"C7: a client's delete, reported after a sweep had found it": {func(s *Observation) {
			s.deleted(adopted(row(tomb, "", "", 5)))
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
		}, ordered("C7", 4, false)},
		"C7: a client's delete of what a sweep had adopted": {func(s *Observation) {
			s.deleted(adopted(row(live, "v1", a, 2)))
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
		}, ordered("C7", 4, false)},
		"C7b: a client's delete before the content of the copy, and a later one that a sweep found": {func(s *Observation) {
			s.deleted(adopted(row(tomb, "", "", 5)))
			s.Destination.Record.Manifest.SourceTime = stamp(4)
			s.setCause(pb.Op_OP_DELETE, "v0", a, 3)
		}, ordered("C7b", 5, true)},
		"C7b: a client's delete before the rule, and a later one that a sweep found": {func(s *Observation) {
			s.deleted(adopted(row(tomb, "", "", 6)))
			s.Rules.Since = hour(5)
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
		}, kept},
		"C7b: a client's delete, reported after a sweep had found it, and approve": {func(s *Observation) {
			s.deleted(adopted(row(tomb, "", "", 5)))
			s.Rules.Deletes = policy.Approve
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
		}, ordered("C7b", 4, true)},
		"C7b: a delete that a sweep reports": {func(s *Observation) {
			s.deleted(adopted(row(tomb, "", "", 4)))
			s.setCause(pb.Op_OP_DELETE, "", "", 4)
			s.Command.IfAbsent = true
		}, ordered("C7b", 4, true)},
		"C7b: only a sweep says so": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Source.Record.Manifest.Origin = pb.Origin_ORIGIN_SWEEP
		}, ordered("C7b", 4, true)},
		"C7: a sweep says so, and an operator": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Source.Record.Manifest.Origin, s.Command.Approved = pb.Origin_ORIGIN_SWEEP, "me"
		}, ordered("C7", 4, false)},
		"C7b: an approved correction of content approves no delete": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.setCause(pb.Op_OP_ADD, "v1", a, 2)
			s.Source.Record.Manifest.Origin, s.Command.Approved = pb.Origin_ORIGIN_SWEEP, "checker"
		}, ordered("C7b", 4, true)},
		"C7c: nothing is known of the source": {func(s *Observation) {
			s.deleted(row(none, "", "", 0))
		}, Decision{Row: "C7c", Result: "orphan"}},
		"C8: gone": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Destination.Presence = Absent
			s.Destination.Record.Manifest = row(tomb, "d1", a, 5)
		}, Decision{Row: "C8", Result: "gone"}},
		"C8: gone, without a Change": {func(s *Observation) { s.lost(row(tomb, "v1", a, 4)) }, gone(4)},
		"C8: by this command's delete": {func(s *Observation) {
			s.lost(row(live, "v1", a, 2))
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
		}, gone(4)},
		"C8: in the millisecond of what was copied": {func(s *Observation) { s.lost(row(tomb, "v1", a, 2)) }, gone(2)},
		"C8: the delete is a guess": {func(s *Observation) {
			s.lost(row(tomb, "v1", a, 4))
			s.Source.Record.Manifest.Origin = pb.Origin_ORIGIN_SWEEP
		}, unexplained},
		"C8: a client's delete, reported after a sweep had found it": {func(s *Observation) {
			s.lost(adopted(row(tomb, "", "", 5)))
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
		}, gone(4)},
		"C8: the command comes from a guess": {func(s *Observation) {
			s.lost(row(none, "", "", 0))
			s.setCause(pb.Op_OP_DELETE, "v1", a, 4)
			s.Command.IfAbsent = true
		}, unexplained},
		"C8: a client's delete, at a command of what a check found": {func(s *Observation) {
			s.lost(row(tomb, "v1", a, 4))
			s.Command.IfAbsent = true
		}, gone(4)},
		"C8: the guess was approved": {func(s *Observation) {
			s.lost(row(tomb, "v1", a, 4))
			s.Source.Record.Manifest.Origin, s.Command.Approved = pb.Origin_ORIGIN_SWEEP, "me"
		}, gone(4)},
		"C8: an approved correction of content approves no delete": {func(s *Observation) {
			s.lost(row(tomb, "v1", a, 4))
			s.setCause(pb.Op_OP_UPDATE, "v1", a, 2)
			s.Source.Record.Manifest.Origin, s.Command.Approved = pb.Origin_ORIGIN_FIXITY, "checker"
		}, unexplained},
		"C8: the destination held younger content": {func(s *Observation) {
			s.lost(row(tomb, "v1", a, 4))
			s.Destination.Record.Manifest.SourceTime = stamp(5)
		}, unexplained},
		"C8: the destination held content of its own, and it is younger": {func(s *Observation) {
			s.lost(row(tomb, "v1", a, 4))
			s.Destination.Record.Manifest = row(live, "d2", b, 5)
		}, unexplained},
		"C8: the rule keeps": {func(s *Observation) {
			s.lost(row(tomb, "v1", a, 4))
			s.Rules.Deletes = policy.KeepCopy
		}, unexplained},
		"C8: the rule asks for approval": {func(s *Observation) {
			s.lost(row(tomb, "v1", a, 4))
			s.Rules.Deletes = policy.Approve
		}, unexplained},
		"C8: older than the rule": {func(s *Observation) {
			s.lost(row(tomb, "v1", a, 4))
			s.Rules.Since = hour(4)
		}, unexplained},
		"C8: nothing is known of the source, and the destination's row is live": {func(s *Observation) {
			s.lost(row(none, "", "", 0))
		}, unexplained},
		"C8: never was": {func(s *Observation) {
			s.deleted(row(none, "", "", 0))
			s.Destination = Side{Presence: Absent, Record: &pb.CopyRecord{Manifest: row(none, "", "", 0)}}
		}, Decision{Row: "C8", Result: "gone"}},
		"C8x: all copies are missing": {func(s *Observation) {
			s.deleted(row(live, "v1", a, 2))
			s.Destination.Presence = Absent
		}, Decision{Row: "C8x", action: actWait, Result: "all-copies-missing"}},
	}
}

func TestDecideDeletes(t *testing.T) {
	for name, tt := range deleteCases() {
		t.Run(name, func(t *testing.T) {
			if got := Decide(observation(tt.observe)); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}
