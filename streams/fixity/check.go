package fixity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// errOvertaken says that the object changed during the check.
var errOvertaken = errors.New("object changed during the check")

// Details of RowUnknown that a check sets.
const (
	detailChanging = "object changed during each attempt"
	detailNoSpace  = "space is expected and absent"
	detailParted   = "clocks of the checker parted during each attempt"
)

// A check is one execution of one task. One goroutine owns it.
type check struct {
	*Checker
	task     *pb.FixityTask
	copy     schemas.Copy
	store    storage.Store
	settings StoreSettings
	attempt  int

	// The fields of the attempt. run resets them.
	started time.Time
	attemptState

	bytesRead  int64 // in all attempts
	overtaken  bool
	acceptance acceptance // about the order of the task, if it has one
}

// parted reports whether the wall clock and the monotonic clock disagree about a duration by more than a minute: one
// was set, or the machine was suspended. Then the age of what was seen is unknown.
func parted(mono, wall time.Duration) bool { return (wall - mono).Abs() > time.Minute }

// run repeats the check until the object does not change during it, at most Restarts times. A pass or an absence of
// unknown age could hide a fault that was found since, so it is repeated too.
func (k *check) run(ctx context.Context) error {
	cause := detailChanging
	for range k.config.Restarts + 1 {
		k.started, k.attemptState = time.Now(), attemptState{recheck: k.task.GetRecheck() > 0}
		err := k.attemptOnce(ctx)
		now := time.Now()
		if err == nil && (k.verdict.Outcome == pb.Verdict_VERDICT_PASS || k.evidence.reportsAbsence()) &&
			k.parted(now.Sub(k.started), now.Round(0).Sub(k.started.Round(0))) {
			err, cause = errOvertaken, detailParted
		}
		if !errors.Is(err, errOvertaken) {
			return err
		}
	}
	k.overtaken = true
	unknown := Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN}
	k.evidence.Content, k.evidence.Stored = unknown, unknown
	k.cause = cause
	k.judge()
	return nil
}

// attemptOnce collects evidence and judges it until the verdict needs no more. errOvertaken asks for another attempt. A
// verdict that needs the same twice would be judged for ever: that is an error.
func (k *check) attemptOnce(ctx context.Context) error {
	var answered [requirements]bool
	for next := k.needs(); next != needNothing; next = k.needs() {
		if answered[next] {
			e := k.evidence
			return retry.Permanent(fmt.Errorf("row %d still needs %s: content %s, store %s, manifest %s, audit log %s",
				k.verdict.Row, next, e.Content, e.Stored, e.Manifest, e.Audit))
		}
		answered[next] = true
		if err := k.collect(ctx, next); err != nil {
			return err
		}
		k.judge()
	}
	return nil
}

// collect makes the requests of a requirement and adds the answers to the evidence.
func (k *check) collect(ctx context.Context, next requirement) error {
	switch next {
	case needObservation:
		return k.observe(ctx)
	case needMarker:
		return k.confirmAbsence(ctx)
	case needRecords, needProperties:
		return k.readRecords(ctx)
	case needAlgorithms:
		return k.readAlgorithms(ctx)
	case needUnchanged:
		return k.confirmUnchanged(ctx)
	case needSecondRead:
		return k.readAgain(ctx)
	}
	return fmt.Errorf("requirement %s is unknown", next)
}

// judge makes the verdict on the evidence and concludes from it.
func (k *check) judge() {
	settings := k.settings
	settings.ExternalWrites = settings.ExpectsWrite(k.object.Modified)
	if k.evidence.Content.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
		k.evidence.Differs = k.differs()
	}
	v := Judge(k.evidence, settings)
	if v.Row == RowUnknown && k.cause != "" {
		v.Detail = k.cause
	}
	confirmed := k.unchanged && v == k.verdict
	k.verdict = v
	k.judgeMetadata()
	if confirmed { // the time of the next check stays
		return
	}
	now, last := time.Now(), lastEvent(k.fresh)
	if !last.IsZero() { // by the clock of the process, as the time of the next check
		last = last.Add(now.Sub(k.config.At(now)))
	}
	k.conclusion = Conclude(v, Progress{
		Recheck: int(k.task.GetRecheck()), Now: now, LastEvent: last,
		Changed: k.foundAnother(), Since: k.task.GetFound().GetSince().AsTime(),
		AtOnce:  k.isFirst(),
		Altered: k.altered(),
	}, k.config.Settings)
}

// judgeMetadata judges media type and properties, if the item is present.
func (k *check) judgeMetadata() {
	k.propertiesInDoubt, k.metadata, k.metadataDetail = false, pb.Metadata_METADATA_UNSPECIFIED, ""
	if !k.evidence.isPresent() {
		return
	}
	bytes := k.evidence.Stored.Digests
	if k.verdict.Row != RowUnknown && len(k.evidence.Content.Digests) > 0 {
		bytes = k.evidence.Content.Digests
	}
	e := metadataEvidence{
		object: k.object, digests: bytes, record: k.fresh.GetManifest(), carried: k.task.GetKnown().GetPropertiesHash(),
		foldCase: k.store.Capabilities().FoldsPropertyCase,
		external: k.settings.ExpectsWrite(k.object.Modified) && !record.IsAhead(k.object, k.statTime),
	}
	k.propertiesInDoubt = e.inDoubt()
	k.metadata, k.metadataDetail = judgeMetadata(e)
}

// altered reports whether the store reports other properties than the records, which an event in flight would explain.
func (k *check) altered() bool {
	return k.metadata == pb.Metadata_METADATA_DAMAGED && !k.object.PropertiesUnknown
}

// found returns what the chain of checks has found, with this one.
func (k *check) found() *pb.Found {
	last := k.task.GetFound()
	if k.verdict.Row == RowUnknown {
		return last
	}
	f := &pb.Found{Row: int32(k.verdict.Row), Object: k.identity(), Since: last.GetSince()}
	if last == nil {
		f.Since = timestamppb.New(k.started)
	}
	return f
}

// foundAnother reports whether the last check of the chain found another row, or another object.
func (k *check) foundAnother() bool {
	last, now := k.task.GetFound(), k.found()
	return last != nil && (last.GetRow() != now.GetRow() || !proto.Equal(last.GetObject(), now.GetObject()))
}

// identity returns the identity of the object, with the hash of its properties if they are altered; nil without one.
func (k *check) identity() *pb.Identity {
	if k.object.Item == "" && k.object.Version == "" {
		return nil
	}
	o := record.Identity(k.object)
	if k.altered() {
		o.PropertiesHash = schemas.PropertiesHash(k.object.Properties.MediaType, k.object.Properties.User)
	}
	return o
}

// setRecords takes the evidence of manifest and audit log from r.
func (k *check) setRecords(r *pb.CopyRecord) {
	k.evidence.Manifest, k.evidence.Audit = manifestEvidence(r.GetManifest()), auditEvidence(r.GetAudit())
	k.evidence.Newer = isNewer(k.object, r.GetManifest(), k.statTime)
}

// readRecords reads manifest and audit log afresh, and whether the space is expected if the store has none. If no
// digests are on record, it reads the records of the other copies too. If they do not answer they are unknown, and a
// verdict that does not rest on them stays.
func (k *check) readRecords(ctx context.Context) error {
	k.recordsRead = true
	copies := []schemas.Copy{k.copy}
	if k.noSpace {
		copies = append(copies, k.copy.WithoutItem())
	}
	var others []schemas.Copy
	bare := !k.evidence.Manifest.hasDigests()
	if bare {
		others = k.otherCopies()
	}
	own := len(copies)
	copies = append(copies, others...)
	records, err := k.records.Fresh(ctx, copies)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil && len(records) != len(copies):
		err = fmt.Errorf("%d records of %d copies", len(records), len(copies))
	}
	if err != nil {
		if k.restsOnRecords() {
			k.cause = fmt.Sprintf("records did not answer (%v): %v", retry.ClassOf(err), err)
			k.setRecords(nil)
		}
		return nil
	}
	k.fresh, k.othersRead = records[0], bare
	for i, c := range others {
		k.others = append(k.others, otherCopy{c.Store, records[own+i].GetManifest()})
	}
	k.setRecords(k.fresh)
	if k.noSpace {
		k.expectSpace(records[1].GetManifest().GetState())
	}
	return nil
}

// expectSpace makes absences unknown unless the space may be absent. state is that of its record.
func (k *check) expectSpace(state pb.RecordState) {
	if state == pb.RecordState_RECORD_STATE_NONE {
		return
	}
	k.spaceMissing, k.cause = state == pb.RecordState_RECORD_STATE_LIVE, detailNoSpace
	k.dropAbsence()
}

// readAlgorithms reads the bytes again to compute the algorithms that only the fresh records have. If the digests
// differ from the first reading the content is unknown.
func (k *check) readAlgorithms(ctx context.Context) error {
	again, err := k.readObject(ctx)
	if err != nil {
		return err
	}
	if again.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS &&
		again.Digests.Compare(k.evidence.Content.Digests) != digest.Agree {
		k.evidence.Second = again
		again = Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN}
	}
	k.evidence.Content = again
	return nil
}

// confirmUnchanged stats the object again after the records were read: they may include an event that is later than the
// bytes that were read.
func (k *check) confirmUnchanged(ctx context.Context) error {
	noSpace := k.noSpace
	o, there, err := k.stat(ctx)
	switch {
	case err != nil:
		return err
	case there == pb.EvidenceState_EVIDENCE_STATE_UNKNOWN:
		k.evidence.Stored = Evidence{State: there}
	case there != k.evidence.Stored.State || k.noSpace != noSpace || !sameObject(o, k.object) ||
		o.PropertiesUnknown != k.object.PropertiesUnknown || !o.Properties.Equal(k.object.Properties, false):
		return errOvertaken
	default:
		k.unchanged = true
	}
	return nil
}

// readAgain reads the bytes a second time. Judge compares the readings.
func (k *check) readAgain(ctx context.Context) (err error) {
	k.evidence.Second, err = k.readObject(ctx)
	return err
}

// confirmAbsence confirms absences by reading the store's marker after them. If that fails they become unknown.
func (k *check) confirmAbsence(ctx context.Context) error {
	k.markerRead = true
	err := k.markers.Confirm(ctx, schemas.Key(k.copy.Account, k.copy.Store), k.store, time.Now())
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	k.cause = fmt.Sprintf("store's marker did not answer (%v): %v", retry.ClassOf(err), err)
	k.dropAbsence()
	return nil
}

// dropAbsence turns absent evidence into unknown.
func (k *check) dropAbsence() {
	for _, p := range [...]*Evidence{&k.evidence.Content, &k.evidence.Stored} {
		if p.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT {
			p.State = pb.EvidenceState_EVIDENCE_STATE_UNKNOWN
		}
	}
}
