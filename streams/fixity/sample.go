package fixity

import (
	"strconv"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// isRead reports whether sampling allows a reading of the bytes. Only the checks of fixity rounds are sampled: other
// sweeps ask for checks of what they have found. A re-check reads if its first check did.
func (k *check) isRead() bool {
	percent := k.settings.SamplePercent
	if percent <= 0 || percent >= 100 || k.task.GetReason() != pb.FixityReason_FIXITY_REASON_SWEEP ||
		k.task.GetRound() == "" {
		return true
	}
	began := k.started
	if first := k.task.GetFirst(); first != nil {
		began = first.AsTime()
	}
	return isInSample(k.copy, began, k.config.Period(k.copy), percent)
}

// isInSample reports whether a copy is in the sample at a time. The periods of copies begin at different times, so that
// the readings are spread.
func isInSample(c schemas.Copy, at time.Time, period time.Duration, percent int) bool {
	id := schemas.ID("sample", c.String())
	slot, begins := fraction(id[:8]), fraction(id[8:16])
	var number int64
	if period > 0 {
		number = (at.UnixMilli() + int64(begins*float64(period.Milliseconds()))) / max(period.Milliseconds(), 1)
	}
	return (int64(slot*100)+number*int64(percent))%100 < int64(percent)
}

// fraction returns a hexadecimal number of 32 bits as a fraction of 1.
func fraction(hex string) float64 {
	n, _ := strconv.ParseUint(hex, 16, 32) // the caller passes hexadecimal digits
	return float64(n) / (1 << 32)
}
