package fixity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// observe observes the store. The records are those that the task carried.
func (k *check) observe(ctx context.Context) error {
	if err := k.observeStore(ctx); err != nil {
		return err
	}
	k.setRecords(k.task.GetKnown())
	return nil
}

// neverRead reports whether the bytes are not to be read, whatever the reason of the check.
func (k *check) neverRead() bool {
	before := k.task.GetRecheck() > 0 && k.task.GetFirst().AsTime().Before(k.settings.NeverReadSince)
	return k.settings.NeverRead && !before
}

// observeStore stats the object, reads its bytes, and stats it again.
func (k *check) observeStore(ctx context.Context) error {
	first, there, err := k.stat(ctx)
	if err != nil {
		return err
	}
	if k.neverRead() || !k.isRead() {
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
	return nil
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

// readObject reads the bytes of the object that the store has.
func (k *check) readObject(ctx context.Context) (Evidence, error) {
	p, err := k.read(ctx, k.object)
	if err == nil && p.State == pb.EvidenceState_EVIDENCE_STATE_ABSENT {
		err = errOvertaken
	}
	return p, err
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
