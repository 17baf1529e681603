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
	place    schemas.Copy
	store    storage.Store
	settings StoreSettings
	attempt  int

	// What follows is of the attempt that began at started; reset clears it.
	started    time.Time
	evidence   Evidence
	object     storage.Object // the second S, where the store has it
	seen       time.Time      // when that was, by the store's clock
	noSpace    bool           // the last S said that the space is not there
	missing    bool           // and the space is expected
	known      *pb.CopyRecord // as read afresh, else nil
	confirmed  Piece          // the second reading of the bytes
	trouble    string         // what did not answer, and how
	verdict    Verdict
	conclusion Conclusion

	bytes     int64 // that were read, in all attempts
	overtaken bool
}

// run looks at the copy until it holds still for as long as a look takes, and concludes.
func (k *check) run(ctx context.Context) error {
	for range k.config.Restarts + 1 {
		k.started = time.Now()
		k.evidence, k.object, k.known, k.confirmed, k.trouble = Evidence{}, storage.Object{}, nil, Piece{}, ""
		k.seen, k.noSpace, k.missing = time.Time{}, false, false
		if err := k.look(ctx); !errors.Is(err, errOvertaken) {
			return err
		}
	}
	k.overtaken = true
	unknown := Piece{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN}
	k.evidence.Content, k.evidence.Stored = unknown, unknown
	k.trouble = detailChanging
	k.conclude(verdict(12, ""))
	return nil
}

// look gathers the evidence once and concludes from it. errOvertaken means that it has
// to be gathered again.
func (k *check) look(ctx context.Context) error {
	if err := k.gather(ctx); err != nil {
		return err
	}
	k.onRecord(k.task.GetKnown())
	v := Judge(k.evidence, k.settings)
	if k.stale(v) {
		if err := k.refresh(ctx); err != nil {
			return err
		}
		v = Judge(k.evidence, k.settings)
	} else if k.object.PropertiesUnknown && (v.Row == 1 || v.Detail == detailUnreadable) {
		var err error
		if v, err = k.metadata(ctx, v); err != nil {
			return err
		}
	}
	k.conclude(v)
	if k.known != nil && (v.Row != 1 || k.object.PropertiesUnknown) && v.Row != 12 {
		if err := k.unchanged(ctx); err != nil {
			return err
		}
	}
	if !k.doubtful() {
		return nil
	}
	return k.confirm(ctx)
}

// metadata reads the records of a copy whose properties the store cannot tell, though v does not need them: tasks carry no
// properties. If they do not answer, v stands.
func (k *check) metadata(ctx context.Context, v Verdict) (Verdict, error) {
	carried := k.evidence
	switch err := k.refresh(ctx); {
	case err != nil:
		return v, err
	case k.known == nil:
		k.evidence, k.trouble = carried, ""
		return v, nil
	}
	return Judge(k.evidence, k.settings), nil
}

// conclude takes v for the check's verdict.
func (k *check) conclude(v Verdict) {
	if v.Row == 12 && k.trouble != "" {
		v.Detail = k.trouble
	}
	k.verdict = v
	k.conclusion = Conclude(v, Progress{
		Recheck: int(k.task.GetRecheck()), Now: time.Now(), LastEvent: lastEvent(k.known),
		AtOnce: k.task.GetBaseline() || k.evidence.bare(),
	}, k.config.Settings)
}

// stale says that v may not rest on the records that the task carried. A pass may, and
// so may a verdict for which they do not matter.
func (k *check) stale(v Verdict) bool {
	switch {
	case k.evidence.unseen() != "", v.Detail == detailPresence, v.Detail == detailUnreadable:
		return false
	}
	return v.Row != 1
}

// onRecord takes r for what manifest and audit log say.
func (k *check) onRecord(r *pb.CopyRecord) {
	k.evidence.Manifest, k.evidence.Audit = manifestPiece(r.GetManifest()), auditPiece(r.GetAudit())
	k.evidence.Newer = newer(k.object, r.GetManifest())
}

// refresh reads manifest and audit log afresh, and the bytes once more where these know
// an algorithm that the first reading did not.
func (k *check) refresh(ctx context.Context) error {
	copies := []schemas.Copy{k.place}
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
		k.trouble = fmt.Sprintf("records did not answer (%v): %v", retry.ClassOf(err), err)
		k.onRecord(nil)
		return nil
	}
	k.known = records[0]
	k.onRecord(k.known)
	if k.noSpace {
		if state := records[1].GetManifest().GetState(); state != pb.RecordState_RECORD_STATE_NONE {
			k.missing, k.trouble = state == pb.RecordState_RECORD_STATE_LIVE, detailNoSpace
			k.unbelieve()
			return nil
		}
	}
	if !k.lacking() {
		return nil
	}
	again, err := k.reread(ctx)
	if err != nil {
		return err
	}
	if again.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS && again.Digests.Compare(k.evidence.Content.Digests) != digest.Agree {
		k.confirmed, k.trouble = again, detailTransport
		again = Piece{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN}
	}
	k.evidence.Content = again
	return nil
}

// lacking says that an algorithm on record is missing from the bytes' digests.
func (k *check) lacking() bool {
	c := k.evidence.Content
	if c.State != pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
		return false
	}
	for _, p := range [...]Piece{k.evidence.Manifest, k.evidence.Audit} {
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
func (k *check) unchanged(ctx context.Context) error {
	noSpace := k.noSpace
	o, there, err := k.stat(ctx)
	switch {
	case err != nil:
		return err
	case there == pb.EvidenceState_EVIDENCE_STATE_UNKNOWN:
		k.evidence.Stored = Piece{State: there}
		k.conclude(verdict(12, ""))
	case there != k.evidence.Stored.State || k.noSpace != noSpace || !sameObject(o, k.object) || o.PropertiesUnknown != k.object.PropertiesUnknown:
		return errOvertaken
	}
	return nil
}

// doubtful says that the bytes have to be read a second time before the row may stand.
func (k *check) doubtful() bool {
	if k.evidence.Content.State != pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
		return false
	}
	switch k.verdict.Row {
	case 2, 3, 13, 14:
		return true
	case 9:
		return k.conclusion.Final
	}
	return false
}

// confirm reads the bytes a second time; what they say then must be what they said first.
func (k *check) confirm(ctx context.Context) error {
	again, err := k.reread(ctx)
	if err != nil {
		return err
	}
	k.confirmed = again
	if again.State == pb.EvidenceState_EVIDENCE_STATE_DIGESTS {
		if again.Digests.Compare(k.evidence.Content.Digests) == digest.Agree {
			return nil
		}
		k.trouble = detailTransport
	}
	k.conclude(verdict(12, ""))
	return nil
}

// reread is another C of an object that the store has.
func (k *check) reread(ctx context.Context) (Piece, error) {
	p, err := k.read(ctx, k.object)
	if err == nil && p.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT {
		err = errOvertaken
	}
	return p, err
}

// gather is S, C, and S again.
func (k *check) gather(ctx context.Context) error {
	first, there, err := k.stat(ctx)
	if err != nil {
		return err
	}
	if k.settings.Never || !k.sampled() {
		k.evidence.Content = Piece{State: pb.EvidenceState_EVIDENCE_STATE_UNREAD}
	} else if there == pb.EvidenceState_EVIDENCE_STATE_UNKNOWN {
		k.evidence.Content = Piece{State: there}
	} else if k.evidence.Content, err = k.read(ctx, first); err != nil {
		return err
	}
	if there == pb.EvidenceState_EVIDENCE_STATE_UNKNOWN {
		k.evidence.Stored = Piece{State: there}
		return nil
	}
	now, noSpace := time.Now(), k.noSpace
	second, still, err := k.stat(ctx)
	switch {
	case err != nil:
		return err
	case still == pb.EvidenceState_EVIDENCE_STATE_UNKNOWN:
		k.evidence.Stored = Piece{State: still}
		return nil
	case still != there || k.noSpace != noSpace || !sameObject(first, second):
		return errOvertaken
	}
	k.object, k.seen = second, second.Seen
	if k.seen.IsZero() {
		k.seen = now
	}
	k.evidence.Stored = Piece{State: still, Digests: second.Digests}
	return k.believe(ctx)
}

// stat is one S. Absent is not believed yet.
func (k *check) stat(ctx context.Context) (storage.Object, pb.EvidenceState, error) {
	o, err := k.store.Stat(ctx, k.place.Space, k.place.Item)
	k.noSpace = errors.Is(err, storage.ErrNoSpace)
	if err != nil {
		state, err := k.failed(ctx, "store", err)
		return storage.Object{}, state, err
	}
	if len(o.Digests) == 0 {
		return o, pb.EvidenceState_EVIDENCE_STATE_NONE, nil
	}
	return o, pb.EvidenceState_EVIDENCE_STATE_DIGESTS, nil
}

// failed says what an error of the store means for a piece of evidence: absent, not
// believed yet, or unknown. What it returns as an error ends the look.
func (k *check) failed(ctx context.Context, place string, err error) (pb.EvidenceState, error) {
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
	k.trouble = fmt.Sprintf("%s did not answer (%v): %v", place, retry.ClassOf(err), err)
	return pb.EvidenceState_EVIDENCE_STATE_UNKNOWN, nil
}

// believe takes absences for true only where the store's marker can be read after them.
func (k *check) believe(ctx context.Context) error {
	const absent = pb.EvidenceState_EVIDENCE_STATE_ABSENT
	if k.evidence.Content.State != absent && k.evidence.Stored.State != absent {
		return nil
	}
	err := k.markers.Confirm(ctx, schemas.Key(k.place.Account, k.place.Store), k.store, time.Now())
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	k.trouble = fmt.Sprintf("store's marker did not answer (%v): %v", retry.ClassOf(err), err)
	k.unbelieve()
	return nil
}

// unbelieve makes what is absent unknown.
func (k *check) unbelieve() {
	for _, p := range [...]*Piece{&k.evidence.Content, &k.evidence.Stored} {
		if p.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT {
			p.State = pb.EvidenceState_EVIDENCE_STATE_UNKNOWN
		}
	}
}

// read is one C: the bytes of seen, hashed while they stream, by every algorithm that
// is on record or configured.
func (k *check) read(ctx context.Context, seen storage.Object) (Piece, error) {
	r, o, err := k.store.Open(ctx, k.place.Space, k.place.Item, seen.Version)
	if err != nil {
		state, err := k.failed(ctx, "content", err)
		return Piece{State: state}, err
	}
	defer r.Close() // only read from: nothing is lost with its error
	if !sameObject(seen, o) {
		return Piece{}, errOvertaken
	}
	digests, n, err := k.hashers.sum(r, k.settings.Digests, k.algorithms(seen))
	k.bytes += n
	if err != nil {
		state, err := k.failed(ctx, "content", err)
		return Piece{State: state}, err
	}
	if n != o.Size {
		k.trouble = fmt.Sprintf("content ended after %d of %d bytes", n, o.Size)
		return Piece{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN}, nil
	}
	return Piece{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: digests}, nil
}

// algorithms are those that S, M and A hold, and that millrace computes.
func (k *check) algorithms(o storage.Object) []string {
	var algs []string
	carried := k.task.GetKnown()
	for _, set := range [...]digest.Set{
		o.Digests, carried.GetManifest().GetDigests(), carried.GetAudit().GetDigests(),
		k.known.GetManifest().GetDigests(), k.known.GetAudit().GetDigests(),
	} {
		for alg := range set {
			if digest.Known(alg) && !slices.Contains(algs, alg) {
				algs = append(algs, alg)
			}
		}
	}
	return algs
}
