package duplicate

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
)

// An action is the operation that a Decision asks for.
type action int

// The actions. Only actCopy, actSetProperties, actCreateSpace, actSetSpace and actRepairProperties change a store.
const (
	actNothing action = iota
	// actFail ends the execution with the error of the side or record that is unknown.
	actFail
	// actReadRecords reads the records of both sides afresh and decides again.
	actReadRecords
	// actReadLists reads the exclusion lists of the rules and decides again.
	actReadLists
	// actReadBytes computes the digests of a side from its bytes and decides again.
	actReadBytes
	// actWait returns an error of class wait. After the last interval the command ends with Result.
	actWait
	actCopy
	actSetProperties
	// actDelete publishes a DeletionCommand for the deleter that owns the destination.
	actDelete
	actCreateSpace
	// actReadProof reads whether the audit log proves the content of a restore order, and decides again.
	actReadProof
	// actNextSource looks at the next source of a restore order and decides again.
	actNextSource
	// actSetSpace sets the properties and the ACL of the destination's space.
	actSetSpace
	// actRepairProperties sets the properties on record of a copy whose store has lost them.
	actRepairProperties
)

// A Decision is a row of the tables in docs/decisions-duplication.md, with the parameters of its action.
type Decision struct {
	Row    Row
	action action
	// Result is the field result of the DuplicationResult if the command ends with this decision.
	Result string
	// Detail says more about Result; empty if it says all.
	Detail string
	// CheckSource and CheckDestination request a fixity check of that side.
	CheckSource, CheckDestination bool
	// ReadSource and ReadDestination select the sides that actReadBytes reads.
	ReadSource, ReadDestination bool
	// Expected are the digests that the copied bytes must match.
	Expected digest.Set
	// ReadTwice: the bytes are read once more before they are copied.
	ReadTwice bool
	// Announce publishes the destination's Change, which the manifest lacks; AnnounceProperties that of its properties
	// only; AnnounceSource the source's Change.
	Announce, AnnounceProperties, AnnounceSource bool
	// Unchecked: the manifest has the destination's content and no pass of a check. An execution that died while it
	// published may have sent the Change without the task of the check, so the task is sent again.
	Unchecked bool
	// NeedsApproval marks the DeletionCommand of actDelete.
	NeedsApproval bool
	// Deleted is the time of the source's delete, by its store's clock. It is set for actDelete, and for RowBothAbsent
	// with Announce.
	Deleted time.Time
	// Newer: the source is newer than the content that the command names.
	Newer bool
}

// Decide returns the first row of the item table that applies to s. It is pure and total. If anything that it needs is
// unknown, its decision writes nothing.
func Decide(s Observation) Decision {
	c := s.Command
	switch {
	case c.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_REPAIR:
		switch {
		case c.GetRepair().GetProperties():
			return s.repairProperties()
		case !s.managed():
			return Decision{Row: RowRepair, Result: "repair-moot", CheckDestination: true}
		}
		return s.repair()
	case !s.inPolicy():
		return Decision{Row: RowNotInPolicy, Result: "not-in-policy"}
	case len(s.lists) < len(s.Rules.ExcludeLists):
		return Decision{Row: RowUnknown, action: actReadLists}
	case !s.observed():
		return Decision{Row: RowUnknown, action: actFail}
	case s.Source.Presence == Present:
		if d, ok := s.excluded(); ok {
			return d
		}
		return s.sourcePresent()
	case s.Destination.Presence == Present:
		return s.destinationOnly()
	}
	return s.bothAbsent()
}

func (s Observation) inPolicy() bool {
	return slices.Contains(s.Rules.Pairs, pairOf(s.Command))
}

// excluded decides C10: the rules exclude the source. If only its digests can say so, they are read from the bytes.
func (s Observation) excluded() (Decision, bool) {
	from := s.Source.Object
	digests := from.Digests.Union(s.Source.Read)
	if reported := s.reported(); !reported.empty() && reported.matches(s.Source) {
		digests = digests.Union(reported.digests)
	}
	reason, certain := s.Rules.Excluded(s.Command.GetItem(),
		policy.Content{Size: from.Size, Modified: from.Modified, Digests: digests}, s.lists)
	switch {
	case reason != "":
		return Decision{Row: RowExcluded, Result: "excluded", Detail: reason}, true
	case !certain && len(s.Source.Read) == 0:
		return Decision{Row: RowNoDigest, action: actReadBytes, ReadSource: true}, true
	case !certain:
		return Decision{Row: RowUnknown, action: actFail}, true
	}
	return Decision{}, false
}

// The results of a command that would change a destination under a hold, of what only a person may have overwritten,
// of what waits for a decision, and of what a person has decided not to do.
const (
	ResultHeld             = "held"
	resultDiffers          = "copy-differs"
	resultAwaitingApproval = "awaiting-approval"
	resultKept             = "kept"
)

// held returns the decision in place of d, which would change the destination. The sweep takes it up when the hold has
// ended: a wait of years does not belong into the delay lanes.
func (s Observation) held(d Decision) Decision {
	return Decision{Row: d.Row, Result: ResultHeld, Newer: d.Newer, Detail: s.Hold.String()}
}

// pairOf returns the stores of a command.
func pairOf(c *pb.DuplicationCommand) policy.Pair {
	return policy.Pair{Source: c.GetSourceStore(), Destination: c.GetDestinationStore()}
}

// managed reports whether the policy has the destination on either side of a pair. A repair may copy against the
// direction of a pair.
func (s Observation) managed() bool {
	to := s.Command.GetDestinationStore()
	return slices.ContainsFunc(s.Rules.Pairs, func(p policy.Pair) bool { return p.Source == to || p.Destination == to })
}

func (s Observation) observed() bool {
	isKnown := func(p Presence) bool { return p == Present || p == Absent }
	return isKnown(s.Source.Presence) && isKnown(s.Destination.Presence)
}

// needRecords decides when a record is needed: read it, or fail if that was tried.
func (s Observation) needRecords(row Row) Decision {
	if s.recordsState == recordsUnread {
		return Decision{Row: row, action: actReadRecords}
	}
	return Decision{Row: row, action: actFail}
}

// An expectation is the content that the source should hold, by the change or by the manifest.
type expectation struct {
	digests    digest.Set // of the algorithms that this program computes
	none       bool       // nothing is on record
	current    bool       // it describes the version that the store has now
	suspect    bool       // it describes that version, with other digests, or with verified and claimed ones that differ
	newer      bool       // it describes a newer version than the command
	unreported bool       // no client has reported it, only a sweep or a check
	named      bool       // the command names it
}

// expected returns the content that the source should hold, by the causing change, or else by the manifest. It returns
// false if the manifest has to be read first.
func (s Observation) expected() (expectation, bool) {
	row, ok := s.sourceRow()
	if reported := s.reported(); !reported.empty() && reported.matches(s.Source) {
		k := s.expect(reported)
		k.suspect = k.suspect || ok && s.contradicted(row)
		k.named, k.unreported = true, !reportedByClient(s.Command)
		return k, true
	}
	if !ok {
		return expectation{}, false
	}
	if isLive(row) && contentOf(row).matches(s.Source) {
		k := s.expect(contentOf(row))
		k.newer, k.unreported = !s.reported().empty(), unreported(row)
		return k, true
	}
	none := row.GetState() == pb.RecordState_RECORD_STATE_NONE && s.reported().empty()
	return expectation{none: none, unreported: true}, true
}

func (s Observation) expect(v content) expectation {
	return expectation{
		digests: supported(v.digests), current: true,
		suspect: v.digests.Compare(s.Source.digests()) == digest.Disagree || len(v.claims) > 0,
	}
}

// contradicted reports whether the row is of the content that the source has, and a claim contradicts the verified
// digests of it.
func (s Observation) contradicted(row *pb.Record) bool {
	return isLive(row) && len(row.GetClaims()) > 0 && contentOf(row).matches(s.Source)
}

// unreported reports whether a row comes from a sweep or a check, not from a client or a copy.
func unreported(r *pb.Record) bool {
	o := r.GetOrigin()
	return o == pb.Origin_ORIGIN_SWEEP || o == pb.Origin_ORIGIN_FIXITY
}

// sourcePresent decides if the source is present.
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
		// The content may be unchanged, with a new version or time.
		return Decision{Row: RowNoDigest, action: actReadBytes, ReadSource: true}
	case !k.current && !k.none:
		return waitForSource()
	}
	if bySweep(s.Command) && k.unreported && s.isChained() {
		return Decision{Row: RowOrphan, Result: "orphan", Detail: "the source is itself a destination, and only a sweep or " +
			"a check has found the item there"}
	}
	lost := false
	if bySweep(s.Command) {
		row, ok := s.destinationRow()
		if !ok {
			return s.needRecords(RowUnknown)
		}
		lost = isLive(row) && s.Destination.differs(contentOf(row))
		if present && lost {
			return Decision{
				Row: RowDestinationNotAsRecorded, Result: "destination-suspect", CheckDestination: true, Newer: k.newer,
			}
		}
	}
	if present && s.Source.digests().Compare(s.Destination.digests()) == digest.Agree {
		return s.inSync(k)
	}
	return s.copy(k, lost)
}

// isChained reports whether the source is itself the destination of a pair.
func (s Observation) isChained() bool {
	from := s.Command.GetSourceStore()
	return slices.ContainsFunc(s.Rules.Pairs, func(p policy.Pair) bool { return p.Destination == from })
}

// waitForSource decides C4w: neither the change nor the manifest describes the version that the source has.
func waitForSource() Decision {
	return Decision{Row: RowSourceNewer, action: actWait, Result: "source-newer", CheckSource: true}
}

// digestsMissing decides C1: both sides are present, and their digests share no algorithm.
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
		return Decision{Row: RowUnknown, action: actFail}, true // both were read, and still share no algorithm
	}
	return d, true
}

// hasComputed reports whether s has a digest that a reading of the other side computes too.
func hasComputed(s digest.Set) bool { return s[digest.MD5] != "" || s[digest.SHA256] != "" }

// inSync decides if both sides have the same content: C2, C2u, C3. Properties that the source's store cannot report are
// never set at the destination. If the destination's store cannot report its own, those on record of this content are
// compared instead, so that lost properties are not set again here; if none are on record, it has none.
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
		altered, ok := s.Source.altersProperties(content, s.FoldCase)
		switch {
		case !ok:
			return s.needRecords(RowUnknown)
		case altered: // a check shows whether a client's change is under way
			d.Row, d.Result, d.CheckSource, d.CheckDestination = RowPropertiesUnknown, "properties-unknown", true, toLost
			return d
		}
		d.Row, d.action, d.Result = RowPropertiesDiffer, actSetProperties, "properties-set"
		if s.Hold != nil {
			return s.held(d)
		}
		return d
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
		d.Announce = true // this Change has the properties too
	} else {
		d.AnnounceProperties = !at.PropertiesUnknown && (row.GetMediaType() != at.Properties.MediaType ||
			!storage.EqualUser(row.GetProperties(), at.Properties.User, s.FoldCase))
		if d.AnnounceProperties && s.recordsState == recordsUnread {
			return s.needRecords(RowUnknown)
		}
		d.Unchecked = s.recordsState == recordsRead && s.Destination.Record.GetLastPass() == nil
	}
	s.distrust(&d, content)
	return d
}

// distrust replaces the announcement of the destination's properties by checks if the record has others of this
// content, and the source does not show that an earlier execution has carried these.
func (s Observation) distrust(d *Decision, content digest.Set) {
	altered, _ := s.Destination.altersProperties(content, s.FoldCase)
	fromAltered, _ := s.Source.altersProperties(content, s.FoldCase)
	if !d.Announce && !d.AnnounceProperties || !altered || !fromAltered && !s.Source.Object.PropertiesUnknown {
		return
	}
	d.Announce, d.AnnounceProperties = false, false
	d.CheckDestination, d.CheckSource = true, d.CheckSource || fromAltered
	d.Row, d.Result = RowPropertiesUnknown, "properties-unknown"
}

// copy decides if the destination lacks the source's content: C4, C4n, C5, and C4d of a lost copy.
func (s Observation) copy(k expectation, lost bool) Decision {
	d := Decision{Row: RowDestinationAbsent, action: actCopy, Result: "copied", Expected: k.digests, Newer: k.newer}
	over := s.Destination.Presence == Present
	fromLost, ok := s.Source.lostProperties(k.digests.Union(s.Source.digests()))
	d.CheckSource = fromLost == digest.Agree
	if over && reportsProperties(s.Command) {
		row, ok := s.sourceRow()
		if !ok {
			return s.needRecords(RowUnknown)
		}
		k.named, k.unreported = false, !isLive(row) || unreported(row) || !contentOf(row).matches(s.Source)
	}
	switch {
	case over && s.isApproved(RowContentDiffers):
	case over && (s.Command.GetIfAbsent() || k.unreported && !k.named && !reportedByClient(s.Command)):
		return s.notOverwritten(k) // a sweep or a check may have found the content since the command was made
	case over && s.destinationFound():
		return copyDiffers(k)
	}
	if d, ok := s.older(k); ok {
		return d
	}
	switch {
	case over && s.Hold != nil:
		return s.held(Decision{Row: RowContentDiffers, Newer: k.newer})
	case !ok:
		return s.needRecords(RowUnknown)
	case fromLost == digest.Incomparable && len(s.Source.Read) == 0:
		// The bytes show whether the lost properties belong to this content.
		return Decision{Row: RowNoDigest, action: actReadBytes, ReadSource: true}
	case over:
		d.Row = RowContentDiffers
	case lost && s.recordsState == recordsUnread: // a repair that may wait for a decision
		return s.needRecords(RowDestinationNotAsRecorded)
	case lost:
		d.Row, d.Result = RowDestinationNotAsRecorded, "was-lost"
	}
	if len(d.Expected) > 0 {
		return d
	}
	// The change has no digests: those in the manifest come before a new reference.
	row, ok := s.sourceRow()
	if !ok || s.recordsState == recordsUnread { // a row that the command carries may be from before a first check
		return s.needRecords(RowUnknown)
	}
	switch {
	case row.GetState() == pb.RecordState_RECORD_STATE_NONE:
	case !isLive(row) || !contentOf(row).matches(s.Source):
		return waitForSource()
	case contentOf(row).digests.Compare(s.Source.digests()) == digest.Disagree || s.contradicted(row):
		return Decision{Row: RowSourceSuspect, Result: "source-suspect", CheckSource: true, CheckDestination: over}
	default:
		d.Expected = supported(row.GetDigests())
	}
	switch {
	case len(d.Expected) > 0 || !over:
		return d
	case s.sameVersionDiffers():
		return Decision{Row: RowSourceSuspect, Result: "source-suspect", CheckSource: true, CheckDestination: true}
	}
	d.Row, d.ReadTwice = RowSourceUnrecorded, true
	return d
}

// bySweep reports whether the sweep that compares stores made a command.
func bySweep(c *pb.DuplicationCommand) bool {
	return c.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_SWEEP
}

// notOverwritten decides C4 of a command that overwrites nothing. If a client has reported the source's content, the
// command of that change copies it. Otherwise the command waits, since that change or its command may be on its way.
func (s Observation) notOverwritten(k expectation) Decision {
	row, ok := s.sourceRow()
	if !ok {
		return s.needRecords(RowUnknown)
	}
	if isLive(row) && contentOf(row).matches(s.Source) && !unreported(row) {
		return Decision{Row: RowContentDiffers, Result: "if-absent", Newer: k.newer}
	}
	return copyDiffers(k)
}

// copyDiffers decides C4 if only an operator may have the copy overwritten.
func copyDiffers(k expectation) Decision {
	return Decision{Row: RowContentDiffers, action: actWait, Result: resultDiffers, Newer: k.newer}
}

// destinationFound reports whether the command is a sweep's and only a sweep or a check has reported what the
// destination holds: another program has written it there.
func (s Observation) destinationFound() bool {
	if !bySweep(s.Command) {
		return false
	}
	row, _ := s.destinationRow() // known: C4d needs it
	return isLive(row) && unreported(row)
}

// destinationOnly decides if only the destination is present: C6, C7, C7b, C7c, C7d.
func (s Observation) destinationOnly() Decision {
	from, okFrom := s.sourceRow()
	to, okTo := s.destinationRow()
	if !okFrom || !okTo {
		return s.needRecords(RowUnknown)
	}
	if s.sourceExpected(from) {
		return Decision{Row: RowSourceMissing, action: actWait, Result: "source-missing"}
	}
	d, ok := s.decideDelete(from, s.sourceHeld(to))
	if !ok {
		d = Decision{Row: RowOrphan, Result: "orphan"}
	}
	d.Announce = s.unrecorded(to)
	return d
}

// sourceExpected reports whether the source should be present: its row is live, and the command reports no later
// delete.
func (s Observation) sourceExpected(from *pb.Record) bool {
	deleted, ok := s.reportedDelete()
	return isLive(from) && (!ok || !deleted.After(from.GetTime().AsTime()))
}

// decideDelete decides C7, C7b or C7d for a copy of the source content held. It returns false if there is no evidence
// that the source was deleted.
func (s Observation) decideDelete(from *pb.Record, held storage.Original) (Decision, bool) {
	deleted, reported := s.reportedDelete()
	if !reported && !isTombstone(from) {
		return Decision{}, false
	}
	// Rows are merged in the order of the log, so a tombstone that is as old as the content came after it. The order of
	// the command's own delete and the content is unknown.
	// A delete of the very version is later than it, also if that was dated ahead: then its time is not known.
	of := func(version string) bool { return version != "" && version == held.Version }
	newer := reported && (deleted.After(held.Modified) || of(s.Command.GetChangeVersion()))
	// A sweep or a check dates its tombstone at its look, so it may hide an older delete that a client reported.
	fact := newer && reportsDelete(s.Command)
	// The tombstone on record proves the delete, and did not come from a sweep or a check.
	confirmed, bound := false, false
	if isTombstone(from) {
		at := from.GetTime().AsTime()
		proven := !at.Before(held.Modified) || of(from.GetVersion())
		newer = newer || proven
		bound = !newer && s.isBound(held, from)
		newer, confirmed = newer || bound, (proven || bound) && !unreported(from)
		if !reported || at.After(deleted) && !(fact && unreported(from)) || confirmed && s.Command.GetIfAbsent() {
			deleted = at
		}
	}
	if !newer {
		return Decision{Row: RowDestinationNewer, Result: "kept-newer"}, true
	}
	rule := s.Rules.DeletesOf(pairOf(s.Command), deleted)
	if rule == policy.KeepCopy {
		return Decision{Row: RowDeleteHeld, Result: resultKept}, true
	}
	if s.Hold != nil {
		return s.held(Decision{Row: RowDeleteHeld}), true
	}
	d := Decision{Row: RowSourceDeleted, action: actDelete, Result: "deletion-ordered", Deleted: deleted}
	if rule != policy.Propagate || !fact && !confirmed && s.unconfirmed(from) || s.isDoubtful(from, bound) {
		d.Row, d.NeedsApproval = RowDeleteHeld, true
	}
	return d, true
}

// isBound reports whether the time of held is only the latest that the content can have: it was dated ahead, and the
// record of its copy has Kafka's time of that record. A copy that is not on record has the time that its source's clock
// showed, so it is older than the source's delete if the reported time of that is later.
func (s Observation) isBound(held storage.Original, from *pb.Record) bool {
	to, _ := s.destinationRow()
	if held == s.Destination.Object.Original && !(isLive(to) && contentOf(to).matches(s.Destination)) {
		return !schemas.Reported(from).AsTime().Before(held.Modified)
	}
	return to.GetSourceEffective() != nil && held.Modified.Equal(to.GetSourceEffective().AsTime())
}

// isDoubtful reports whether the clock of the source or of the destination alone says that the source's delete is newer
// than what the destination holds: the delete is disputed, or the destination holds what is not known to be a copy and
// the source did not have last. So it is if the time of that content is only a bound, and the reported times do not say
// that the delete is newer.
func (s Observation) isDoubtful(from *pb.Record, bound bool) bool {
	to, _ := s.destinationRow()
	bound = bound && schemas.Reported(from).AsTime().Before(to.GetSourceTime().AsTime())
	holds, known := s.Destination.digests(), isLive(to) && contentOf(to).matches(s.Destination)
	if known {
		holds = holds.Union(to.GetDigests())
	}
	other := (s.written(to) || !(known && isCopy(to)) && s.original() == (storage.Original{})) &&
		s.Destination.Presence == Present && digest.Set(from.GetDigests()).Compare(holds) != digest.Agree
	return approvedDelete(s.Command) == "" && (from.GetDisputed() || other || bound)
}

// sourceHeld returns time and version of the source content that the destination holds. If neither the manifest nor the
// store nor the command has it for this object, the content is taken to be as new as the object itself. So is one that
// was restored after its delete.
func (s Observation) sourceHeld(to *pb.Record) storage.Original {
	known := isLive(to) && contentOf(to).matches(s.Destination)
	at, o := schemas.SourceTime(to), s.original()
	switch {
	case known && at != nil:
		return storage.Original{Modified: at.AsTime(), Version: to.GetSourceVersion()}
	case o != (storage.Original{}) && !(known && to.GetOrigin() == pb.Origin_ORIGIN_REPAIR):
		return o
	case known && to.GetReported() != nil: // the object is dated ahead
		return storage.Original{Modified: to.GetTime().AsTime()}
	}
	return storage.Original{Modified: s.Destination.modified()}
}

// unrecorded reports whether the manifest lacks the destination's object: it has no row, or the tombstone of an earlier
// object.
func (s Observation) unrecorded(to *pb.Record) bool {
	return to.GetState() == pb.RecordState_RECORD_STATE_NONE ||
		isTombstone(to) && to.GetTime().AsTime().Before(s.Destination.modified())
}

// unconfirmed reports whether only a sweep or a check noticed the delete. The loss of an item looks the same, so an
// operator must approve it.
func (s Observation) unconfirmed(from *pb.Record) bool {
	return approvedDelete(s.Command) == "" && (s.Command.GetIfAbsent() || unreported(from))
}

// approvedDelete returns who approved the delete that a command is about. The approval of a correction of content, or
// of a rewrite, does not count.
func approvedDelete(c *pb.DuplicationCommand) string {
	if held.KindOf(c.GetList()).Act() == held.Rewrite {
		return ""
	}
	switch c.GetCauseOp() {
	case pb.Op_OP_DELETE, pb.Op_OP_UNSPECIFIED:
		return c.GetApproved()
	}
	return ""
}

// bothAbsent decides if neither side is present: C8, C8x. A lost destination looks like one that was deleted: its
// delete is announced only if it would have been deleted without approval.
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
	held := cmp.Or(schemas.SourceTime(to), to.GetTime())
	d, ok := s.decideDelete(from, storage.Original{Modified: held.AsTime(), Version: to.GetSourceVersion()})
	if !ok || d.action != actDelete || d.NeedsApproval {
		return Decision{Row: RowBothAbsent, Result: "gone-unexplained"}
	}
	return Decision{Row: RowBothAbsent, Result: "gone", Announce: true, Deleted: d.Deleted}
}
