package fixity

import (
	"context"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// reportSpace opens or closes the incident of the copy's space. It does neither if it is unknown whether the space
// exists.
func (k *check) reportSpace(ctx context.Context) error {
	const absent = pb.EvidenceState_EVIDENCE_STATE_ABSENT
	switch stored := k.evidence.Stored.State; {
	case k.spaceMissing:
		return k.spaces.Open(ctx, k.copy.WithoutItem(), detailNoSpace)
	case !k.evidence.isPresent() && stored != absent:
		return nil
	case !k.noSpace:
		return k.spaces.Close(ctx, k.copy.WithoutItem(), "space is present")
	case k.fresh != nil:
		return k.spaces.Close(ctx, k.copy.WithoutItem(), "space is no longer expected")
	}
	return nil
}

// isPresent reports whether the store has the copy.
func (e EvidenceSet) isPresent() bool {
	const digests, none = pb.EvidenceState_EVIDENCE_STATE_DIGESTS, pb.EvidenceState_EVIDENCE_STATE_NONE
	return e.Stored.State == digests || e.Stored.State == none
}
