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

// errOvertaken says that the object changed during the check.
var errOvertaken = errors.New("object changed during the check")

// Details of RowUnknown that a check sets.
const (
	detailChanging  = "object changed during each attempt"
	detailTransport = "transport"
	detailNoSpace   = "space is expected and absent"
)

// A check is one execution of one task. One goroutine owns it.
type check struct {
	*Checker
	task     *pb.FixityTask
	copy     schemas.Copy
	store    storage.Store
	settings StoreSettings
	attempt  int

	// The fields below belong to the attempt that began at started. run resets them.
	started      time.Time
	evidence     EvidenceSet
	object       storage.Object // by the second stat, if the store has it
	statTime     time.Time      // the time of that stat, by the store's clock
	noSpace      bool           // the last stat found no space
	spaceMissing bool           // and the space is expected
	fresh        *pb.CopyRecord // nil if the records were not read afresh
	second       Evidence       // the second reading of the bytes
	cause        string         // the detail of RowUnknown, if a place did not answer
	verdict      Verdict
	conclusion   Conclusion

	bytesRead int64 // in all attempts
	overtaken bool
}

// run repeats the check until the object does not change during it, at most Restarts times.
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

// attemptOnce gathers the evidence and concludes from it. errOvertaken asks for another attempt.
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

// metadata reads the records of a copy if its store cannot report properties, although v does not need them, because
// tasks carry no properties. If the records are unknown it returns v.
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

// conclude makes v the verdict of the check.
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

// needsFreshRecords reports whether v must not rest on the records that the task carried. A pass may, and so may a
// verdict that does not depend on records.
func (k *check) needsFreshRecords(v Verdict) bool {
	switch {
	case k.evidence.unansweredByStore() != "", v.Detail == detailPresence, v.Detail == detailUnreadable:
		return false
	}
	return v.Row != RowPass
}

// setRecords takes the evidence of manifest and audit log from r.
func (k *check) setRecords(r *pb.CopyRecord) {
	k.evidence.Manifest, k.evidence.Audit = manifestEvidence(r.GetManifest()), auditEvidence(r.GetAudit())
	k.evidence.Newer = isNewer(k.object, r.GetManifest())
}

// readRecords reads manifest and audit log afresh. If they have an algorithm that the first reading did not compute,
// the bytes are read again.
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
	if again.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS &&
		again.Digests.Compare(k.evidence.Content.Digests) != digest.Agree {
		k.second, k.cause = again, detailTransport
		again = Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN}
	}
	k.evidence.Content = again
	return nil
}

// lacksAlgorithm reports whether the records have a supported algorithm that the digests of the bytes lack.
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
		k.conclude(verdict(RowUnknown, ""))
	case there != k.evidence.Stored.State || k.noSpace != noSpace || !sameObject(o, k.object) ||
		o.PropertiesUnknown != k.object.PropertiesUnknown:
		return errOvertaken
	}
	return nil
}

// needsSecondRead reports whether the row is concluded only after a second reading of the bytes.
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

// readAgain reads the bytes a second time. If the digests differ from the first reading the row is RowUnknown.
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

// readObject reads the bytes of the object that the store has.
func (k *check) readObject(ctx context.Context) (Evidence, error) {
	p, err := k.read(ctx, k.object)
	if err == nil && p.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT {
		err = errOvertaken
	}
	return p, err
}

// gatherEvidence stats the object, reads its bytes, and stats it again.
func (k *check) gatherEvidence(ctx context.Context) error {
	first, there, err := k.stat(ctx)
	if err != nil {
		return err
	}
	if k.settings.NeverRead || !k.isRead() {
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
	k.object, k.statTime = second, second.ObservedAt
	if k.statTime.IsZero() {
		k.statTime = now
	}
	k.evidence.Stored = Evidence{State: still, Digests: second.Digests}
	return k.confirmAbsence(ctx)
}

// stat stats the object once. An absence is not confirmed yet.
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

// classify returns the state of evidence for an error of the store: absent, not confirmed yet, or unknown. An error
// that it returns ends the attempt.
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
	if retry.ClassOf(err) == retry.ClassWait { // an archive's error has the time of the next try
		return 0, fmt.Errorf("read %s: %w", place, err)
	}
	k.cause = fmt.Sprintf("%s did not answer (%v): %v", place, retry.ClassOf(err), err)
	return pb.EvidenceState_EVIDENCE_STATE_UNKNOWN, nil
}

// confirmAbsence confirms absences by reading the store's marker after them. If that fails they become unknown.
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

// dropAbsence turns absent evidence into unknown.
func (k *check) dropAbsence() {
	for _, p := range [...]*Evidence{&k.evidence.Content, &k.evidence.Stored} {
		if p.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT {
			p.State = pb.EvidenceState_EVIDENCE_STATE_UNKNOWN
		}
	}
}

// read reads and hashes the bytes of the object seen, by every algorithm that is on record or configured.
func (k *check) read(ctx context.Context, seen storage.Object) (Evidence, error) {
	r, o, err := k.store.Open(ctx, k.copy.Space, k.copy.Item, seen.Version)
	if err != nil {
		state, err := k.classify(ctx, "content", err)
		return Evidence{State: state}, err
	}
	defer r.Close() // only read from
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

// algorithms returns the supported algorithms of all digests on record and of the store's.
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
