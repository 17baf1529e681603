package fixity

import (
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Settings are how long a check takes its time before it concludes.
type Settings struct {
	// Recheck is how long to wait before each re-check; after the last one an
	// undecided row is concluded. Unknown goes on at the last interval.
	Recheck []time.Duration
	// Settle is how old the newest event of an item must be before rows that an event
	// on its way would explain are concluded.
	Settle time.Duration
}

// Progress is how far the checks of one copy have come.
type Progress struct {
	// Recheck is which re-check this is; 0 is the first look.
	Recheck int
	Now     time.Time
	// LastEvent is the newest event of the copy on record; zero where there is none.
	LastEvent time.Time
	// AtOnce: what is not on record is taken in without waiting (a baseline round, or a row
	// without digests).
	AtOnce bool
}

// A Conclusion says whether a verdict stands.
type Conclusion struct {
	// Outcome is undecided where the row is not concluded yet.
	Outcome pb.Verdict
	Final   bool
	// Next is when the re-check is due, and Recheck its number, where it is not final.
	Next    time.Time
	Recheck int
}

// Conclude says whether v stands now or is to be looked at again, and when.
//
// Looks that ended unknown never use up the last re-check: an absence that follows them
// is still looked at twice.
func Conclude(v Verdict, p Progress, s Settings) Conclusion {
	settled := p.LastEvent.Add(s.Settle)
	unsettled := v.waitsForSettle() && !p.LastEvent.IsZero() && p.Now.Before(settled)
	rungs := len(s.Recheck)
	c := Conclusion{Outcome: pb.Verdict_VERDICT_UNDECIDED, Recheck: p.Recheck + 1}
	switch {
	case v.Row == RowUnknown:
		c.Outcome = pb.Verdict_VERDICT_UNKNOWN
		c.Recheck = min(p.Recheck+1, max(rungs-1, 0))
		c.Next = p.Now.Add(s.interval(p.Recheck))
		return c
	case v.Row == RowNotCaptured && p.AtOnce:
		return Conclusion{Outcome: v.Outcome, Final: true}
	case v.waitsForRechecks() && p.Recheck < rungs:
		c.Next = p.Now.Add(s.Recheck[max(p.Recheck, 0)])
		if unsettled && settled.After(c.Next) {
			c.Next = settled
		}
		return c
	case unsettled:
		c.Next = settled
		return c
	}
	return Conclusion{Outcome: v.Outcome, Final: true}
}

// waits says that the row is concluded only on the last re-check.
func (v Verdict) waitsForRechecks() bool {
	switch v.Row {
	case RowStoreDigestWrongUnread, RowContentMissing, RowNotCaptured, RowUpdateNotCaptured, RowReplaced, RowResurrected:
		return true
	}
	return false
}

// settles says that an event on its way might explain the row.
func (v Verdict) waitsForSettle() bool {
	switch v.Row {
	case RowManifestWrong, RowAuditMismatch, RowAuditMissing, RowContentMissing, RowNotCaptured, RowUpdateNotCaptured,
		RowReplaced, RowNoQuorum:
		return true
	}
	return false
}

// interval is the wait after the nth look that ended unknown.
func (s Settings) interval(n int) time.Duration {
	if len(s.Recheck) == 0 {
		return time.Hour
	}
	return s.Recheck[min(max(n, 0), len(s.Recheck)-1)]
}
