package fixity

import (
	"testing"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestConclude(t *testing.T) {
	s := Settings{Recheck: []time.Duration{5 * time.Minute, 30 * time.Minute, 2 * time.Hour}, Settle: 24 * time.Hour}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	old, young := now.Add(-25*time.Hour), now.Add(-time.Hour)
	in := now.Add
	const undecided, unknown = pb.Verdict_VERDICT_UNDECIDED, pb.Verdict_VERDICT_UNKNOWN
	final := func(o pb.Verdict) Conclusion { return Conclusion{Outcome: o, Final: true} }
	tests := map[string]struct {
		row     Row
		recheck int
		event   time.Time
		atOnce  bool
		want    Conclusion
	}{
		"a pass stands":                       {1, 0, young, false, final(pb.Verdict_VERDICT_PASS)},
		"corruption stands, however young":    {2, 0, young, false, final(pb.Verdict_VERDICT_FAIL)},
		"the store's digest too":              {3, 0, young, false, final(pb.Verdict_VERDICT_FAIL)},
		"moot stands":                         {11, 0, young, false, final(pb.Verdict_VERDICT_MOOT)},
		"unverified stands":                   {15, 0, young, false, final(pb.Verdict_VERDICT_UNVERIFIED)},
		"missing at first":                    {8, 0, old, false, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"missing at the last but one":         {8, 2, old, false, Conclusion{undecided, false, in(2 * time.Hour), 3}},
		"missing at last":                     {8, 3, old, false, final(pb.Verdict_VERDICT_MISSING)},
		"missing at last, an event young":     {8, 3, young, false, Conclusion{undecided, false, in(23 * time.Hour), 4}},
		"missing and settled":                 {8, 4, old, false, final(pb.Verdict_VERDICT_MISSING)},
		"missing, no event on record":         {8, 3, time.Time{}, false, final(pb.Verdict_VERDICT_MISSING)},
		"first check waits for settle":        {13, 0, young, false, Conclusion{undecided, false, in(23 * time.Hour), 1}},
		"replaced at first":                   {13, 0, old, false, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"replaced at last":                    {13, 3, old, false, final(pb.Verdict_VERDICT_FAIL)},
		"not captured at last":                {9, 3, old, false, final(pb.Verdict_VERDICT_NOT_CAPTURED)},
		"not captured, taken in":              {9, 0, young, true, final(pb.Verdict_VERDICT_NOT_CAPTURED)},
		"a baseline hurries nothing else":     {13, 0, old, true, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"update not captured at last":         {10, 3, old, false, final(pb.Verdict_VERDICT_NOT_CAPTURED)},
		"resurrected at first":                {16, 0, old, false, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"resurrected, in a baseline":          {16, 0, old, true, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"resurrected at last":                 {16, 3, old, false, final(pb.Verdict_VERDICT_FAIL)},
		"resurrected at last, a delete young": {16, 3, young, false, final(pb.Verdict_VERDICT_FAIL)},
		"unread and wrong, young":             {4, 0, young, false, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"unread and wrong at last":            {4, 3, young, false, final(pb.Verdict_VERDICT_FAIL)},
		"manifest wrong, settled":             {5, 0, old, false, final(pb.Verdict_VERDICT_FAIL)},
		"manifest wrong, young":               {5, 0, young, false, Conclusion{undecided, false, in(23 * time.Hour), 1}},
		"audit mismatch, young":               {6, 1, young, false, Conclusion{undecided, false, in(23 * time.Hour), 2}},
		"audit missing, young":                {7, 0, young, false, Conclusion{undecided, false, in(23 * time.Hour), 1}},
		"no quorum at first":                  {14, 0, old, false, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"no quorum at last":                   {14, 3, old, false, final(pb.Verdict_VERDICT_FAIL)},
		"no quorum, young":                    {14, 0, young, false, Conclusion{undecided, false, in(23 * time.Hour), 1}},
		"ahead by the settle time":            {5, 0, in(s.Settle), false, Conclusion{undecided, false, in(2 * s.Settle), 1}},
		"an event of 2099":                    {5, 0, now.AddDate(73, 0, 0), false, final(pb.Verdict_VERDICT_FAIL)},
		"replaced at last, an event of 2099":  {13, 3, now.AddDate(73, 0, 0), false, final(pb.Verdict_VERDICT_FAIL)},
		"settled exactly":                     {6, 0, now.Add(-24 * time.Hour), false, final(pb.Verdict_VERDICT_FAIL)},
		"unknown at first":                    {12, 0, young, false, Conclusion{unknown, false, in(5 * time.Minute), 1}},
		"unknown for long":                    {12, 2, young, false, Conclusion{unknown, false, in(2 * time.Hour), 2}},
		"unknown after the last":              {12, 7, young, true, Conclusion{unknown, false, in(2 * time.Hour), 2}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := Progress{Recheck: tt.recheck, Now: now, LastEvent: tt.event, AtOnce: tt.atOnce}
			if got := Conclude(verdict(tt.row, ""), p, s); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
	for name, tt := range map[string]struct {
		row     Row
		recheck int
		since   time.Time
		want    Conclusion
	}{
		"replaced at last":             {13, 3, young, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"missing at last":              {8, 3, young, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"replaced again and again":     {13, 3, now.Add(-24 * time.Hour), final(pb.Verdict_VERDICT_FAIL)},
		"corruption stands":            {2, 3, young, final(pb.Verdict_VERDICT_FAIL)},
		"a pass stands":                {1, 3, young, final(pb.Verdict_VERDICT_PASS)},
		"a wrong manifest is no event": {5, 3, young, final(pb.Verdict_VERDICT_FAIL)},
	} {
		t.Run("found for the first time: "+name, func(t *testing.T) {
			p := Progress{Recheck: tt.recheck, Now: now, LastEvent: old, Changed: true, Since: tt.since}
			if got := Conclude(verdict(tt.row, ""), p, s); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
	for name, tt := range map[string]struct {
		row     Row
		recheck int
		event   time.Time
		want    Conclusion
	}{
		"a pass at first":                {1, 0, old, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"a pass at last":                 {1, 3, old, final(pb.Verdict_VERDICT_PASS)},
		"a pass, an event young":         {1, 0, young, Conclusion{undecided, false, in(23 * time.Hour), 1}},
		"a pass at last, an event young": {1, 3, young, Conclusion{undecided, false, in(23 * time.Hour), 4}},
		"a pass, no event on record":     {1, 3, time.Time{}, final(pb.Verdict_VERDICT_PASS)},
		"audit mismatch at first":        {6, 0, old, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"audit mismatch at last":         {6, 3, old, final(pb.Verdict_VERDICT_FAIL)},
		"unverified at first":            {15, 0, old, Conclusion{undecided, false, in(5 * time.Minute), 1}},
		"unverified at last":             {15, 3, old, final(pb.Verdict_VERDICT_UNVERIFIED)},
		"corruption is not delayed":      {2, 0, young, final(pb.Verdict_VERDICT_FAIL)},
		"unknown":                        {12, 0, old, Conclusion{unknown, false, in(5 * time.Minute), 1}},
	} {
		t.Run("properties altered: "+name, func(t *testing.T) {
			p := Progress{Recheck: tt.recheck, Now: now, LastEvent: tt.event, Altered: true}
			if got := Conclude(verdict(tt.row, ""), p, s); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// Unknown is never concluded, and never uses up the re-check that would conclude.
func TestUnknownIsNeverConcluded(t *testing.T) {
	for rungs := range 4 {
		s := Settings{Recheck: []time.Duration{time.Minute, time.Minute, time.Minute}[:rungs]}
		var p Progress
		for range 10 {
			c := Conclude(verdict(12, ""), p, s)
			if c.Final || !c.Next.After(p.Now) {
				t.Fatalf("%d intervals, re-check %d: %+v", rungs, p.Recheck, c)
			}
			p.Recheck, p.Now = c.Recheck, c.Next
		}
		if c := Conclude(verdict(8, ""), p, s); rungs > 0 && c.Final {
			t.Errorf("%d intervals: an absence after unknowns is concluded without a re-check", rungs)
		}
	}
}
