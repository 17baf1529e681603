package duplicate

import (
	"slices"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
)

// action is what a decision asks for.
type action int

// The actions. Copy, SetProperties, CreateSpace write; none of the others changes a store.
const (
	actNothing action = iota
	// actFail ends the execution with the error of what did not answer.
	actFail
	// actReadRecords has the records of both sides read afresh, and the decision taken again.
	actReadRecords
	// actReadBytes has a side's bytes read for their digests, and the decision taken again.
	actReadBytes
	// actWait is for what may still arrive; after the last wait it ends in Result.
	actWait
	actCopy
	actSetProperties
	// actDelete hands a DeletionCommand to the owner of the destination's deletes.
	actDelete
	actCreateSpace
)

// A Decision is a row of the tables of docs/decisions-duplication.md, and what follows from it.
type Decision struct {
	Row    Row
	action action
	// Result is the word in which the command ends.
	Result string
	// CheckSource and CheckDestination ask for a fixity check of that side.
	CheckSource, CheckDestination bool
	// ReadSource and ReadDestination are the sides whose bytes ReadBytes wants.
	ReadSource, ReadDestination bool
	// Known is what copied bytes must agree with.
	Expected digest.Set
	// Reference: nothing is known of the source, so what is read becomes it, and a
	// Change of the source says so. Twice: it is read a second time first.
	Reference, ReadTwice bool
	// Announce: the destination's Change goes out, since the manifest does not show it.
	// AnnounceProperties: that of its properties does. AnnounceSource: the source's does.
	Announce, AnnounceProperties, AnnounceSource bool
	// Unchecked: the manifest shows the content and no pass of it. An execution that died
	// between its outputs may have sent the Change and not the task of its check.
	Unchecked bool
	// NeedsApproval is of a Delete.
	NeedsApproval bool
	// Deleted is when the source was deleted, by its store's clock: of a Delete, and of C8 with Announce.
	Deleted time.Time
	// Newer: the source is newer than the command knew (C11).
	Newer bool
}

// Decide returns the first row of the item table that matches what was seen. It is pure
// and total, and nothing that is unknown leads to a write.
func Decide(s Observation) Decision {
	c := s.Command
	switch {
	case c.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_REPAIR:
		if !s.managed() {
			return Decision{Row: RowRepair, Result: "repair-moot", CheckDestination: true}
		}
		return s.repair()
	case !s.inPolicy():
		return Decision{Row: RowNotInPolicy, Result: "not-in-policy"}
	case !s.observed():
		return Decision{Row: RowUnknown, action: actFail}
	case s.Source.Presence == Present:
		if s.Rules.Excludes(c.GetItem(), s.Source.Object.Size) {
			return Decision{Row: RowExcluded, Result: "excluded"}
		}
		return s.sourcePresent()
	case s.Destination.Presence == Present:
		return s.destinationOnly()
	}
	return s.bothAbsent()
}

func (s Observation) inPolicy() bool {
	return slices.Contains(s.Rules.Pairs, policy.Pair{Source: s.Command.GetSourceStore(), Destination: s.Command.GetDestinationStore()})
}

// managed reports whether the destination is one of the policy's stores, on either side of a pair: a repair may go
// against a pair.
func (s Observation) managed() bool {
	to := s.Command.GetDestinationStore()
	return slices.ContainsFunc(s.Rules.Pairs, func(p policy.Pair) bool { return p.Source == to || p.Destination == to })
}

func (s Observation) observed() bool {
	known := func(p Presence) bool { return p == Present || p == Absent }
	return known(s.Source.Presence) && known(s.Destination.Presence)
}

// needRecords is the decision while a row that is needed is not known.
func (s Observation) needRecords(row Row) Decision {
	if s.recordsState == recordsUnread {
		return Decision{Row: row, action: actReadRecords}
	}
	return Decision{Row: row, action: actFail}
}

// A knowledge is what is on record of the source's content.
type expectation struct {
	digests    digest.Set // that we can compute
	none       bool       // there is none
	current    bool       // it is about the version that is there now
	suspect    bool       // and yet the digests differ
	newer      bool       // than the command knew
	unreported bool       // only a sweep or a check said so, or there is nothing
}

// known returns what is on record of the source, from the causing change, else from
// the manifest; false where that would have to be read first.
func (s Observation) expected() (expectation, bool) {
	if told := s.reported(); !told.empty() && told.matches(s.Source) {
		k := s.expect(told)
		k.unreported = !reportedByClient(s.Command)
		return k, true
	}
	row, ok := s.sourceRow()
	if !ok {
		return expectation{}, false
	}
	if isLive(row) && contentOf(row).matches(s.Source) {
		k := s.expect(contentOf(row))
		k.newer, k.unreported = !s.reported().empty(), unreported(row)
		return k, true
	}
	return expectation{none: row.GetState() == pb.RecordState_RECORD_STATE_NONE && s.reported().empty(), unreported: true}, true
}

func (s Observation) expect(v content) expectation {
	return expectation{
		digests: supported(v.digests), current: true,
		suspect: v.digests.Compare(s.Source.digests()) == digest.Disagree,
	}
}

// found reports whether a row comes from a sweep or a check, and not from a reported change.
func unreported(r *pb.Record) bool {
	o := r.GetOrigin()
	return o == pb.Origin_ORIGIN_SWEEP || o == pb.Origin_ORIGIN_FIXITY
}

// carry decides where the source is present.
func (s Observation) sourcePresent() Decision {
	k, ok := s.expected()
	if !ok {
		return s.needRecords(RowUnknown)
	}
	present := s.Destination.Presence == Present
	if present {
		if d, ok := s.digestsMissing(); ok {
			return d
		}
	}
	if k.suspect || present && k.unreported && s.sameVersionDiffers() {
		return Decision{Row: RowSourceSuspect, Result: "source-suspect", CheckSource: true, CheckDestination: present}
	}
	if d, ok := s.resurrected(); ok {
		return d
	}
	switch {
	case !k.current && !k.none && len(s.Source.digests()) == 0 && len(s.Source.Read) == 0:
		return Decision{Row: RowNoDigest, action: actReadBytes, ReadSource: true} // it may be what is known, only touched
	case !k.current && !k.none:
		return waitForSource()
	}
	lost := false
	if s.Command.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_SWEEP {
		row, ok := s.destinationRow()
		if !ok {
			return s.needRecords(RowUnknown)
		}
		lost = isLive(row) && s.Destination.differs(contentOf(row))
		if present && lost {
			return Decision{Row: RowDestinationNotAsRecorded, Result: "destination-suspect", CheckDestination: true, Newer: k.newer}
		}
	}
	var d Decision
	if present && s.Source.digests().Compare(s.Destination.digests()) == digest.Agree {
		d = s.inSync(k)
	} else {
		d = s.copy(k, lost)
	}
	d.CheckSource = d.CheckSource || s.returned()
	return d
}

// resurrected decides C4r: the source is there under a tombstone that is not older than it. Unless a client's change of
// content says otherwise, it came back with a disk or a backup.
func (s Observation) resurrected() (Decision, bool) {
	if reportedByClient(s.Command) {
		return Decision{}, false
	}
	row, ok := s.sourceRow()
	if !ok {
		return s.needRecords(RowUnknown), true
	}
	if isTombstone(row) && !row.GetTime().AsTime().Before(s.Source.modified()) {
		return Decision{Row: RowSourceResurrected, Result: "resurrected", CheckSource: true}, true
	}
	return Decision{}, false
}

// waitForSource is C4w: the source is not the version that anything on record speaks of.
func waitForSource() Decision {
	return Decision{Row: RowSourceNewer, action: actWait, Result: "source-newer", CheckSource: true}
}

// digestsMissing decides C1: both sides are present and cannot be compared.
func (s Observation) digestsMissing() (Decision, bool) {
	from, to := s.Source.digests(), s.Destination.digests()
	if from.Compare(to) != digest.Incomparable {
		return Decision{}, false
	}
	d := Decision{Row: RowNoDigest, action: actReadBytes,
		ReadSource: len(s.Source.Read) == 0, ReadDestination: len(s.Destination.Read) == 0}
	switch {
	case d.ReadSource && d.ReadDestination && len(from) == 0 && hasComputed(to):
		d.ReadDestination = false
	case d.ReadSource && d.ReadDestination && len(to) == 0 && hasComputed(from):
		d.ReadSource = false
	case !d.ReadSource && !d.ReadDestination:
		return Decision{Row: RowUnknown, action: actFail}, true // read, and still nothing to compare
	}
	return d, true
}

// has reports whether a reading of the other side can be compared with s.
func hasComputed(s digest.Set) bool { return s[digest.MD5] != "" || s[digest.SHA256] != "" }

// inSync decides where both sides hold the same bytes: C2, C2u, C3. Properties that a store cannot tell are never set
// elsewhere. At the destination those on record of this content stand for them: what is on record and was lost is not
// set again here, and if none are on record, unknown is none.
func (s Observation) inSync(k expectation) Decision {
	content := s.Source.digests().Union(s.Destination.digests())
	source, okSource := s.Source.lostProperties(content)
	destination, okDestination := s.Destination.lostProperties(content)
	fromLost, toLost := source == digest.Agree, destination == digest.Agree
	row, ok := s.destinationRow()
	d := Decision{Row: RowInSync, Result: "in-sync", Newer: k.newer}
	switch {
	case !okSource || !okDestination:
		return s.needRecords(RowUnknown)
	case !s.Source.Object.PropertiesUnknown && !s.sameProperties(content):
		return Decision{Row: RowPropertiesDiffer, action: actSetProperties, Result: "properties-set", Newer: k.newer}
	case fromLost || toLost:
		d.Row, d.Result, d.CheckSource, d.CheckDestination = RowPropertiesUnknown, "properties-unknown", fromLost, toLost
	}
	if !ok {
		return s.needRecords(RowUnknown)
	}
	if len(k.digests) == 0 {
		from, ok := s.sourceRow()
		if !ok {
			return s.needRecords(RowUnknown)
		}
		d.AnnounceSource = len(supported(from.GetDigests())) == 0
	}
	at := s.Destination.Object
	if !isLive(row) || !contentOf(row).matches(s.Destination) || row.GetVersion() != "" && row.GetVersion() != at.Version {
		d.Announce = true // tells the properties too
	} else {
		d.AnnounceProperties = !at.PropertiesUnknown &&
			(row.GetMediaType() != at.Properties.MediaType || !equalProperties(row.GetProperties(), at.Properties.User, s.FoldCase))
		d.Unchecked = s.recordsState == recordsRead && s.Destination.Record.GetLastPass() == nil
	}
	return d
}

// copy decides where the source's bytes are not at the destination: C4, C4n, C5, and C4d of what was lost.
func (s Observation) copy(k expectation, lost bool) Decision {
	d := Decision{Row: RowDestinationAbsent, action: actCopy, Result: "copied", Expected: k.digests, Newer: k.newer}
	over := s.Destination.Presence == Present
	fromLost, ok := s.Source.lostProperties(k.digests.Union(s.Source.digests()))
	d.CheckSource = fromLost == digest.Agree
	switch {
	case over && s.Command.GetIfAbsent():
		return s.notOverwritten(k)
	case !ok:
		return s.needRecords(RowUnknown)
	case fromLost == digest.Incomparable && len(s.Source.Read) == 0:
		return Decision{Row: RowNoDigest, action: actReadBytes, ReadSource: true} // they may be those that had the properties
	case over:
		d.Row = RowContentDiffers
	case lost:
		d.Row, d.Result = RowDestinationNotAsRecorded, "was-lost"
	}
	if len(d.Expected) > 0 {
		return d
	}
	// The change said nothing of the bytes: what the manifest says comes first.
	row, ok := s.sourceRow()
	if !ok {
		return s.needRecords(RowUnknown)
	}
	switch {
	case row.GetState() == pb.RecordState_RECORD_STATE_NONE:
	case !isLive(row) || !contentOf(row).matches(s.Source):
		return waitForSource()
	case contentOf(row).digests.Compare(s.Source.digests()) == digest.Disagree:
		return Decision{Row: RowSourceSuspect, Result: "source-suspect", CheckSource: true, CheckDestination: over}
	default:
		d.Expected = supported(row.GetDigests())
	}
	if len(d.Expected) == 0 {
		d.Reference, d.ReadTwice = true, over
		if over {
			d.Row = RowSourceUnrecorded
		}
	}
	return d
}

// left decides C4 of a command that overwrites nothing. If a client has reported what the source is, a command of that
// change copies it; else none does. It waits before it says so: the client's change, or its command, may be on its way.
func (s Observation) notOverwritten(k expectation) Decision {
	row, ok := s.sourceRow()
	if !ok {
		return s.needRecords(RowUnknown)
	}
	reported := isLive(row) && contentOf(row).matches(s.Source)
	switch {
	case reported && !unreported(row):
		return Decision{Row: RowContentDiffers, Result: "if-absent", Newer: k.newer}
	case !reported && s.Command.GetCarriedDelete() != nil: // it was put back a moment ago
		return waitForSource()
	}
	return Decision{Row: RowContentDiffers, action: actWait, Result: "copy-differs", Newer: k.newer}
}

// extra decides where only the destination is present: C6, C7 and its variants.
func (s Observation) destinationOnly() Decision {
	from, okFrom := s.sourceRow()
	to, okTo := s.destinationRow()
	if !okFrom || !okTo {
		return s.needRecords(RowUnknown)
	}
	if s.sourceExpected(from) {
		return Decision{Row: RowSourceMissing, action: actWait, Result: "source-missing"}
	}
	d, ok := s.decideDelete(from, s.sourceTime(to))
	if !ok {
		d = Decision{Row: RowOrphan, Result: "orphan"}
	}
	d.Announce = s.unrecorded(to)
	return d
}

// missing reports whether the source should be there: its row is live, and the command comes from no later delete.
func (s Observation) sourceExpected(from *pb.Record) bool {
	deleted, told := s.reportedDelete()
	return isLive(from) && (!told || !deleted.After(from.GetTime().AsTime()))
}

// deletion decides C7, C7b or C7d for a copy that holds the source's content of a time; false if nothing says that the
// source was deleted.
func (s Observation) decideDelete(from *pb.Record, held time.Time) (Decision, bool) {
	deleted, told := s.reportedDelete()
	if !told && !isTombstone(from) {
		return Decision{}, false
	}
	// A tombstone that is as old as what it follows came after it: rows are folded in
	// the order of the log. Of the command's own delete that is not known.
	newer := told && deleted.After(held)
	if isTombstone(from) {
		at := from.GetTime().AsTime()
		newer = newer || !at.Before(held)
		if !told || at.After(deleted) {
			deleted = at
		}
	}
	if !newer {
		return Decision{Row: RowDestinationNewer, Result: "kept-newer"}, true
	}
	pair := policy.Pair{Source: s.Command.GetSourceStore(), Destination: s.Command.GetDestinationStore()}
	if s.Rules.Deletes == policy.KeepCopy || !deleted.After(s.Rules.Since) || !deleted.After(s.Rules.Added[pair]) {
		return Decision{Row: RowDeleteHeld, Result: "kept"}, true
	}
	d := Decision{Row: RowSourceDeleted, action: actDelete, Result: "deletion-ordered", Deleted: deleted}
	if s.Rules.Deletes != policy.Propagate || s.unconfirmed(from) {
		d.Row, d.NeedsApproval = RowDeleteHeld, true
	}
	return d, true
}

// sourceTime returns when the source content that the destination holds was made. If that
// is on no record of this very object, it is taken to be as young as the object.
func (s Observation) sourceTime(to *pb.Record) time.Time {
	if isLive(to) && contentOf(to).matches(s.Destination) && to.GetSourceTime() != nil {
		return to.GetSourceTime().AsTime()
	}
	if o := s.original(); o != (storage.Original{}) {
		return o.Modified
	}
	return s.Destination.modified()
}

// unrecorded reports whether the manifest does not know of the destination's object: it has no row, or one of a delete
// that is older.
func (s Observation) unrecorded(to *pb.Record) bool {
	return to.GetState() == pb.RecordState_RECORD_STATE_NONE ||
		isTombstone(to) && to.GetTime().AsTime().Before(s.Destination.modified())
}

// guessed reports whether the delete is only what a sweep or a check concluded: loss
// looks the same, so a person must say that it was meant. A command to copy again what a deletion took says nothing of one.
func (s Observation) unconfirmed(from *pb.Record) bool {
	return approvedDelete(s.Command) == "" && (s.Command.GetIfAbsent() && s.Command.GetCarriedDelete() == nil || unreported(from))
}

// approvedDelete returns who approved the delete that a command is about. The approval of a correction of content is no
// approval of a delete.
func approvedDelete(c *pb.DuplicationCommand) string {
	switch c.GetCauseOp() {
	case pb.Op_OP_DELETE, pb.Op_OP_UNSPECIFIED:
		return c.GetApproved()
	}
	return ""
}

// gone decides where neither side is present: C8, C8x. Loss of the destination looks the same as a delete that was
// carried: it is announced as a delete only if it would have been one, without a person's approval.
func (s Observation) bothAbsent() Decision {
	from, okFrom := s.sourceRow()
	to, okTo := s.destinationRow()
	if !okFrom || !okTo {
		return s.needRecords(RowUnknown)
	}
	if s.sourceExpected(from) {
		return Decision{Row: RowAllCopiesMissing, action: actWait, Result: "all-copies-missing"}
	}
	if !isLive(to) {
		return Decision{Row: RowBothAbsent, Result: "gone"}
	}
	held := to.GetTime()
	if to.GetSourceTime() != nil {
		held = to.GetSourceTime()
	}
	d, ok := s.decideDelete(from, held.AsTime())
	if !ok || d.action != actDelete || d.NeedsApproval {
		return Decision{Row: RowBothAbsent, Result: "gone-unexplained"}
	}
	return Decision{Row: RowBothAbsent, Result: "gone", Announce: true, Deleted: d.Deleted}
}

// repair decides C0: the preconditions of docs/decisions-duplication.md. The
// source is the good copy, the destination the bad one.
func (s Observation) repair() Decision {
	moot := Decision{Row: RowRepair, Result: "repair-moot", CheckDestination: true}
	// The good copy is none. The order comes from a record that says otherwise, so the
	// next one would name it again: it is checked too.
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
	known, ok := repairReference(order.GetDigests(), s.Destination.Record)
	switch {
	case !isLive(m) || !isLive(a) || !ok:
		return moot
	case known.Compare(s.Source.digests()) == digest.Disagree:
		return noSource
	case !s.isFailedObject():
		// Mended already, perhaps by an execution that died before it could tell.
		if m.GetVersion() != s.Destination.Object.Version && known.Compare(s.Destination.digests()) == digest.Agree {
			moot.Announce, moot.CheckDestination = true, false // its Change brings a check
		}
		return moot
	}
	return Decision{Row: RowRepair, action: actCopy, Result: "repaired", Expected: known}
}

// reference returns the digests that the repaired copy must have; false unless the order,
// the manifest and the audit log agree, and somebody has verified them.
func repairReference(order digest.Set, r *pb.CopyRecord) (digest.Set, bool) {
	m, a := digest.Set(r.GetManifest().GetDigests()), digest.Set(r.GetAudit().GetDigests())
	verified := r.GetLastPass() != nil ||
		r.GetManifest().GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED ||
		r.GetAudit().GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED
	known := supported(order.Union(m).Union(a))
	return known, verified && len(known) > 0 &&
		m.Compare(a) == digest.Agree && order.Compare(m) == digest.Agree && order.Compare(a) == digest.Agree
}
