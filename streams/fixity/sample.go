package fixity

import (
	"strconv"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// sampled says whether the bytes are to be read as far as sampling goes. A re-check reads if its check did.
func (k *check) isRead() bool {
	percent := k.settings.SamplePercent
	if percent <= 0 || percent >= 100 || k.task.GetReason() != pb.FixityReason_FIXITY_REASON_SWEEP {
		return true
	}
	began := k.started
	if first := k.task.GetFirst(); first != nil {
		began = first.AsTime()
	}
	return isInSample(k.copy, began, k.config.Period, percent)
}

// inTurn says whether it is a copy's turn to be read at a time. The periods of copies begin at
// different times, so that what is in turn is not read all at once.
func isInSample(c schemas.Copy, at time.Time, period time.Duration, percent int) bool {
	id := schemas.ID("sample", c.String())
	slot, begins := fraction(id[:8]), fraction(id[8:16])
	var number int64
	if period > 0 {
		number = (at.UnixMilli() + int64(begins*float64(period.Milliseconds()))) / max(period.Milliseconds(), 1)
	}
	return (int64(slot*100)+number*int64(percent))%100 < int64(percent)
}

// part is a hexadecimal number of 32 bits as a part of 1.
func fraction(hex string) float64 {
	n, _ := strconv.ParseUint(hex, 16, 32) // hexadecimal always
	return float64(n) / (1 << 32)
}
