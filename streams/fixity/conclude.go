package fixity

import (
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Settings bound how soon a verdict is concluded.
type Settings struct {
	// Recheck are the intervals before each re-check. After the last one an undecided row is concluded; an unknown one is
	// re-checked at the last interval for ever.
	Recheck []time.Duration
	// Settle is the least age of an item's newest event before rows are concluded that an event in flight would explain.
	Settle time.Duration
}

// Progress is the history of a copy's checks, as far as Conclude needs it.
type Progress struct {
	// Recheck is the number of this re-check; 0 is the first check.
	Recheck int
	Now     time.Time
	// Changed: the last check found another row, or another object. Since is when the chain began to find anything.
	Changed bool
	Since   time.Time
	// LastEvent is the time of the newest event on record; zero if there is none. One that is further ahead of Now than
	// the settle time says nothing about what is in flight: the clock of the store or of this process is wrong.
	LastEvent time.Time
	// AtOnce: RowNotCaptured is concluded without re-checks, in a baseline round or if a row without digests exists.
	AtOnce bool
	// Altered: media type and properties differ from those on record, which an event in flight would explain. Verdicts
	// that do not speak against the bytes are concluded only on the last re-check.
	Altered bool
}

// A Conclusion says whether a verdict is final.
type Conclusion struct {
	// Outcome is undecided until the row is concluded.
	Outcome pb.Verdict
	Final   bool
	// Next is when the re-check is due, and Recheck its number, if the conclusion is not final.
	Next    time.Time
	Recheck int
}

// Conclude returns whether v is final, or when the copy is checked again. It is pure.
//
// Checks that ended unknown never use up the last re-check: an absence after them is re-checked at least once. What a
// re-check finds for the first time is re-checked from the first interval on, since an event in flight would explain
// it. That ends after Settle: a copy that changes again and again is concluded, too.
func Conclude(v Verdict, p Progress, s Settings) Conclusion {
	if p.Changed && p.Now.Before(p.Since.Add(s.Settle)) {
		p.Recheck = 0
	}
	settled := p.LastEvent.Add(s.Settle)
	altered := p.Altered && v.concludesMetadata()
	unsettled := (altered || v.waitsForSettle()) && !p.LastEvent.IsZero() && p.Now.Before(settled) &&
		!p.LastEvent.After(p.Now.Add(s.Settle))
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
	case (altered || v.waitsForRechecks()) && p.Recheck < rungs:
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

// waitsForRechecks reports whether the row is concluded only on the last re-check.
func (v Verdict) waitsForRechecks() bool {
	switch v.Row {
	case RowStoreDigestWrongUnread, RowContentMissing, RowNotCaptured, RowUpdateNotCaptured, RowReplaced, RowNoQuorum,
		RowResurrected:
		return true
	}
	return false
}

// concludesMetadata reports whether a check with this row finds altered properties: nothing speaks against the bytes.
func (v Verdict) concludesMetadata() bool {
	switch v.Row {
	case RowPass, RowUnverified, RowManifestWrong, RowAuditMismatch, RowAuditMissing:
		return true
	}
	return false
}

// waitsForSettle reports whether an event in flight would explain the row.
func (v Verdict) waitsForSettle() bool {
	switch v.Row {
	case RowManifestWrong, RowAuditMismatch, RowAuditMissing, RowContentMissing, RowNotCaptured, RowUpdateNotCaptured,
		RowReplaced, RowNoQuorum:
		return true
	}
	return false
}

// interval returns the wait after the nth check that ended unknown; 1 h without Recheck.
func (s Settings) interval(n int) time.Duration {
	if len(s.Recheck) == 0 {
		return time.Hour
	}
	return s.Recheck[min(max(n, 0), len(s.Recheck)-1)]
}
