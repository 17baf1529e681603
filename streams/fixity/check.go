package fixity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// errOvertaken says that the object changed while it was looked at.
var errOvertaken = errors.New("object changed during the check")

// Details of row 12 that a check gives.
const (
	detailChanging  = "object changed during each attempt"
	detailTransport = "transport"
	detailNoSpace   = "space is expected and not there"
)

// A check is one execution of one task. One goroutine owns it.
type check struct {
	*Checker
	task     *pb.FixityTask
	copy     schemas.Copy
	store    storage.Store
	settings StoreSettings
	attempt  int

	// What follows is of the attempt that began at started; reset clears it.
	started      time.Time
	evidence     EvidenceSet
	object       storage.Object // the second S, where the store has it
	statTime     time.Time      // when that was, by the store's clock
	noSpace      bool           // the last S said that the space is not there
	spaceMissing bool           // and the space is expected
	fresh        *pb.CopyRecord // as read afresh, else nil
	second       Evidence       // the second reading of the bytes
	cause        string         // what did not answer, and how
	verdict      Verdict
	conclusion   Conclusion

	bytesRead int64 // that were read, in all attempts
	overtaken bool
}

// run looks at the copy until it holds still for as long as a look takes, and concludes.
func (k *check) run(ctx context.Context) error {
	for range k.config.Restarts + 1 {
		k.started = time.Now()
		k.evidence, k.object, k.fresh, k.second, k.cause = EvidenceSet{}, storage.Object{}, nil, Evidence{}, ""
		k.statTime, k.noSpace, k.spaceMissing = time.Time{}, false, false
		if err := k.attemptOnce(ctx); !errors.Is(err, errOvertaken) {
			return err
		}
	}
	k.overtaken = true
	unknown := Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN}
	k.evidence.Content, k.evidence.Stored = unknown, unknown
	k.cause = detailChanging
	k.conclude(verdict(RowUnknown, ""))
	return nil
}

// look gathers the evidence once and concludes from it. errOvertaken means that it has
// to be gathered again.
func (k *check) attemptOnce(ctx context.Context) error {
	if err := k.gatherEvidence(ctx); err != nil {
		return err
	}
	k.setRecords(k.task.GetKnown())
	v := Judge(k.evidence, k.settings)
	if k.needsFreshRecords(v) {
		if err := k.readRecords(ctx); err != nil {
			return err
		}
		v = Judge(k.evidence, k.settings)
	} else if k.object.PropertiesUnknown && (v.Row == RowPass || v.Detail == detailUnreadable) {
		var err error
		if v, err = k.metadata(ctx, v); err != nil {
			return err
		}
	}
	k.conclude(v)
	if k.fresh != nil && (v.Row != RowPass || k.object.PropertiesUnknown) && v.Row != RowUnknown {
		if err := k.confirmUnchanged(ctx); err != nil {
			return err
		}
	}
	if !k.needsSecondRead() {
		return nil
	}
	return k.readAgain(ctx)
}

// metadata reads the records of a copy whose properties the store cannot tell, though v does not need them: tasks carry no
// properties. If they do not answer, v stands.
func (k *check) metadata(ctx context.Context, v Verdict) (Verdict, error) {
	carried := k.evidence
	switch err := k.readRecords(ctx); {
	case err != nil:
		return v, err
	case k.fresh == nil:
		k.evidence, k.cause = carried, ""
		return v, nil
	}
	return Judge(k.evidence, k.settings), nil
}

// conclude takes v for the check's verdict.
func (k *check) conclude(v Verdict) {
	if v.Row == RowUnknown && k.cause != "" {
		v.Detail = k.cause
	}
	k.verdict = v
	k.conclusion = Conclude(v, Progress{
		Recheck: int(k.task.GetRecheck()), Now: time.Now(), LastEvent: lastEvent(k.fresh),
		AtOnce: k.task.GetBaseline() || k.evidence.withoutDigests(),
	}, k.config.Settings)
}

// stale says that v may not rest on the records that the task carried. A pass may, and
// so may a verdict for which they do not matter.
func (k *check) needsFreshRecords(v Verdict) bool {
	switch {
	case k.evidence.unansweredByStore() != "", v.Detail == detailPresence, v.Detail == detailUnreadable:
		return false
	}
	return v.Row != RowPass
}

// onRecord takes r for what manifest and audit log say.
func (k *check) setRecords(r *pb.CopyRecord) {
	k.evidence.Manifest, k.evidence.Audit = manifestEvidence(r.GetManifest()), auditEvidence(r.GetAudit())
	k.evidence.Newer = isNewer(k.object, r.GetManifest())
}

// refresh reads manifest and audit log afresh, and the bytes once more where these know
// an algorithm that the first reading did not.
func (k *check) readRecords(ctx context.Context) error {
	copies := []schemas.Copy{k.copy}
	if k.noSpace {
		copies = append(copies, k.spaceCopy())
	}
	records, err := k.records.Fresh(ctx, copies)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil && len(records) != len(copies):
		err = fmt.Errorf("%d records of %d copies", len(records), len(copies))
	}
	if err != nil {
		k.cause = fmt.Sprintf("records did not answer (%v): %v", retry.ClassOf(err), err)
		k.setRecords(nil)
		return nil
	}
	k.fresh = records[0]
	k.setRecords(k.fresh)
	if k.noSpace {
		if state := records[1].GetManifest().GetState(); state != pb.RecordState_RECORD_STATE_NONE {
			k.spaceMissing, k.cause = state == pb.RecordState_RECORD_STATE_LIVE, detailNoSpace
			k.dropAbsence()
			return nil
		}
	}
	if !k.lacksAlgorithm() {
		return nil
	}
	again, err := k.readObject(ctx)
	if err != nil {
		return err
	}
	if again.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS && again.Digests.Compare(k.evidence.Content.Digests) != digest.Agree {
		k.second, k.cause = again, detailTransport
		again = Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN}
	}
	k.evidence.Content = again
	return nil
}

// lacking says that an algorithm on record is missing from the bytes' digests.
func (k *check) lacksAlgorithm() bool {
	c := k.evidence.Content
	if c.State != pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
		return false
	}
	for _, p := range [...]Evidence{k.evidence.Manifest, k.evidence.Audit} {
		for alg := range p.Digests {
			if c.Digests[alg] == "" && digest.Known(alg) {
				return true
			}
		}
	}
	return false
}

// unchanged is one more S after the records were read: an event that they tell of may
// be younger than the bytes that were read.
func (k *check) confirmUnchanged(ctx context.Context) error {
	noSpace := k.noSpace
	o, there, err := k.stat(ctx)
	switch {
	case err != nil:
		return err
	case there == pb.EvidenceState_EVIDENCE_STATE_UNKNOWN:
		k.evidence.Stored = Evidence{State: there}
		k.conclude(verdict(RowUnknown, ""))
	case there != k.evidence.Stored.State || k.noSpace != noSpace || !sameObject(o, k.object) || o.PropertiesUnknown != k.object.PropertiesUnknown:
		return errOvertaken
	}
	return nil
}

// doubtful says that the bytes have to be read a second time before the row may stand.
func (k *check) needsSecondRead() bool {
	if k.evidence.Content.State != pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
		return false
	}
	switch k.verdict.Row {
	case RowContentCorrupt, RowStoreDigestWrong, RowReplaced, RowNoQuorum:
		return true
	case RowNotCaptured:
		return k.conclusion.Final
	}
	return false
}

// confirm reads the bytes a second time; what they say then must be what they said first.
func (k *check) readAgain(ctx context.Context) error {
	again, err := k.readObject(ctx)
	if err != nil {
		return err
	}
	k.second = again
	if again.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
		if again.Digests.Compare(k.evidence.Content.Digests) == digest.Agree {
			return nil
		}
		k.cause = detailTransport
	}
	k.conclude(verdict(RowUnknown, ""))
	return nil
}

// reread is another C of an object that the store has.
func (k *check) readObject(ctx context.Context) (Evidence, error) {
	p, err := k.read(ctx, k.object)
	if err == nil && p.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT {
		err = errOvertaken
	}
	return p, err
}

// gather is S, C, and S again.
func (k *check) gatherEvidence(ctx context.Context) error {
	first, there, err := k.stat(ctx)
	if err != nil {
		return err
	}
	if k.settings.Never || !k.isRead() {
		k.evidence.Content = Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNREAD}
	} else if there == pb.EvidenceState_EVIDENCE_STATE_UNKNOWN {
		k.evidence.Content = Evidence{State: there}
	} else if k.evidence.Content, err = k.read(ctx, first); err != nil {
		return err
	}
	if there == pb.EvidenceState_EVIDENCE_STATE_UNKNOWN {
		k.evidence.Stored = Evidence{State: there}
		return nil
	}
	now, noSpace := time.Now(), k.noSpace
	second, still, err := k.stat(ctx)
	switch {
	case err != nil:
		return err
	case still == pb.EvidenceState_EVIDENCE_STATE_UNKNOWN:
		k.evidence.Stored = Evidence{State: still}
		return nil
	case still != there || k.noSpace != noSpace || !sameObject(first, second):
		return errOvertaken
	}
	k.object, k.statTime = second, second.Seen
	if k.statTime.IsZero() {
		k.statTime = now
	}
	k.evidence.Stored = Evidence{State: still, Digests: second.Digests}
	return k.confirmAbsence(ctx)
}

// stat is one S. Absent is not believed yet.
func (k *check) stat(ctx context.Context) (storage.Object, pb.EvidenceState, error) {
	o, err := k.store.Stat(ctx, k.copy.Space, k.copy.Item)
	k.noSpace = errors.Is(err, storage.ErrNoSpace)
	if err != nil {
		state, err := k.classify(ctx, "store", err)
		return storage.Object{}, state, err
	}
	if len(o.Digests) == 0 {
		return o, pb.EvidenceState_EVIDENCE_STATE_NONE, nil
	}
	return o, pb.EvidenceState_EVIDENCE_STATE_DIGESTS, nil
}

// failed says what an error of the store means for a piece of evidence: absent, not
// believed yet, or unknown. What it returns as an error ends the look.
func (k *check) classify(ctx context.Context, place string, err error) (pb.EvidenceState, error) {
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrNoSpace):
		return pb.EvidenceState_EVIDENCE_STATE_ABSENT, nil
	case errors.Is(err, storage.ErrChanged):
		return 0, errOvertaken
	case errors.Is(err, storage.ErrName):
		return 0, retry.Permanent(err)
	}
	if retry.ClassOf(err) == retry.ClassWait { // such as an archive's: it says itself when to come again
		return 0, fmt.Errorf("read %s: %w", place, err)
	}
	k.cause = fmt.Sprintf("%s did not answer (%v): %v", place, retry.ClassOf(err), err)
	return pb.EvidenceState_EVIDENCE_STATE_UNKNOWN, nil
}

// believe takes absences for true only where the store's marker can be read after them.
func (k *check) confirmAbsence(ctx context.Context) error {
	const absent = pb.EvidenceState_EVIDENCE_STATE_ABSENT
	if k.evidence.Content.State != absent && k.evidence.Stored.State != absent {
		return nil
	}
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

// unbelieve makes what is absent unknown.
func (k *check) dropAbsence() {
	for _, p := range [...]*Evidence{&k.evidence.Content, &k.evidence.Stored} {
		if p.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT {
			p.State = pb.EvidenceState_EVIDENCE_STATE_UNKNOWN
		}
	}
}

// read is one C: the bytes of seen, hashed while they stream, by every algorithm that
// is on record or configured.
func (k *check) read(ctx context.Context, seen storage.Object) (Evidence, error) {
	r, o, err := k.store.Open(ctx, k.copy.Space, k.copy.Item, seen.Version)
	if err != nil {
		state, err := k.classify(ctx, "content", err)
		return Evidence{State: state}, err
	}
	defer r.Close() // only read from: nothing is lost with its error
	if !sameObject(seen, o) {
		return Evidence{}, errOvertaken
	}
	digests, n, err := k.hashers.sum(r, k.settings.Digests, k.algorithms(seen))
	k.bytesRead += n
	if err != nil {
		state, err := k.classify(ctx, "content", err)
		return Evidence{State: state}, err
	}
	if n != o.Size {
		k.cause = fmt.Sprintf("content ended after %d of %d bytes", n, o.Size)
		return Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN}, nil
	}
	return Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: digests}, nil
}

// algorithms are those that S, M and A hold, and that millrace computes.
func (k *check) algorithms(o storage.Object) []string {
	var algs []string
	carried := k.task.GetKnown()
	for _, set := range [...]digest.Set{
		o.Digests, carried.GetManifest().GetDigests(), carried.GetAudit().GetDigests(),
		k.fresh.GetManifest().GetDigests(), k.fresh.GetAudit().GetDigests(),
	} {
		for alg := range set {
			if digest.Known(alg) && !slices.Contains(algs, alg) {
				algs = append(algs, alg)
			}
		}
	}
	return algs
}
