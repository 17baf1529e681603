package fixity

import (
	"strconv"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// sampled says whether the bytes are to be read as far as sampling goes: a re-check reads where its check did, and the next round
// has another sample.
func (k *check) sampled() bool {
	percent := k.settings.SamplePercent
	if percent <= 0 || percent >= 100 || k.task.GetReason() != pb.FixityReason_FIXITY_REASON_SWEEP {
		return true
	}
	n, err := strconv.ParseUint(schemas.ID("sample", k.task.GetRound(), k.place.String())[:8], 16, 32)
	return err != nil || n%100 < uint64(percent)
}
