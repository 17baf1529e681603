package sweep

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Waits of a round for its results.
const (
	firstPoll = time.Second
	lastPoll  = 10 * time.Minute
	// quietTime is how long a round waits for results of checks that were handled and have none.
	quietTime = time.Hour
)

// wait returns the last page when the round ends.
func (s *fixitySweep) wait(ctx context.Context, round Round, at fixityCursor) (page Page, err error) {
	now := s.Now().UTC()
	clockSetBack := at.Waiting.After(now)
	if clockSetBack {
		at.Waiting = now
	}
	if at.Queued == nil {
		if at.Queued, err = s.Queue.End(ctx); err != nil {
			return Page{}, fmt.Errorf("read the ends of the topics of tasks: %w", err)
		}
	} else if !clockSetBack {
		return s.poll(ctx, round, at, now)
	}
	if page.Next, err = json.Marshal(at); err != nil {
		return Page{}, fmt.Errorf("write the cursor: %w", err)
	}
	return page, nil
}

// poll returns the last page when the round ends, and otherwise when to ask again.
func (s *fixitySweep) poll(ctx context.Context, round Round, at fixityCursor, now time.Time) (Page, error) {
	q := RoundQuery{Round: round, Since: round.Started, VerifiedSince: round.Started.Add(-s.Period)}
	if at.Waiting.Before(q.Since) {
		q.Since = at.Waiting
	}
	at.DueCursor = schemas.DueCursor{}
	q.First = s.query(round, at)
	waited := now.Sub(at.Waiting)
	again := Page{Wait: min(max(waited/20, firstPoll), lastPoll)}
	if waited < s.MaxWait {
		handled, err := s.Queue.Handled(ctx, at.Queued)
		if err != nil {
			return Page{}, fmt.Errorf("read how far the checkers are: %w", err)
		}
		p, err := s.Results.Progress(ctx, q)
		if err != nil {
			return Page{}, fmt.Errorf("count the results: %w", err)
		}
		if !handled || !ends(p, at.Requested, s.isLate(round, now), now.Sub(later(p.Last, at.Waiting))) {
			return again, nil
		}
	}
	counted, ok, err := s.Results.Counts(ctx, q)
	if err != nil {
		return Page{}, fmt.Errorf("count the results: %w", err)
	}
	if !ok {
		return again, nil
	}
	counts := maps.Clone(counted.Counts)
	counts[Outstanding] = Unanswered(counted, at.Requested, at.Selection.AttemptedBefore.IsZero())
	return s.last(Page{Counts: counts}, at)
}

// ends reports whether a round ends whose tasks were all handled. When the next round is about to be due, it does not
// wait for checks that are only repeated (fixity.recheck). Those that have no result may be about to be repeated, or
// lost: it waits for a while.
func ends(p Progress, requested int64, late bool, quiet time.Duration) bool {
	switch {
	case late:
		return true
	case p.Pending > 0:
		return false
	}
	return p.Final >= requested || quiet >= quietTime
}

// Unanswered returns the number of requested checks of a round without a final result. In a round over copies of any
// age some may have two tasks; those that were deleted since are moot.
func Unanswered(c RoundCounts, requested int64, anyAge bool) int64 {
	if anyAge {
		requested = min(requested, max(c.Live+c.Counts["moot"], c.Final))
	}
	return max(c.Pending, requested-c.Final)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// isLate reports whether the next round is about to be due. A round by hand does not wait for one.
func (s *fixitySweep) isLate(r Round, now time.Time) bool {
	interval := s.interval(r)
	return !s.All && interval > 0 && now.Sub(r.Started) >= interval/10*9
}

// report returns the report of a round that has ended; nil if nothing was due.
func (s *fixitySweep) report(r Result) *pb.Report {
	missing := r.Counts[Outstanding]
	if r.Counts[Requested] == 0 {
		return nil
	}
	report := &pb.Report{
		Id: schemas.ID("report", FixitySweep, r.ID), Kind: FixitySweep, Account: s.Account, Store: s.Store, Space: s.Space,
		Round: r.ID, Started: timestamppb.New(r.Started), Finished: timestamppb.New(r.Finished),
		Counts: maps.Clone(r.Counts), Complete: missing == 0,
	}
	if s.Asserts && (!s.All || s.ReadPercent == 0) { // with All a sample is not enough
		report.Counts[ReadPercent] = int64(s.ReadPercent)
	}
	var details []string
	if s.Some {
		report.Kind = PrefixReport
		which := "only items that the filters select; live copies are those of the space"
		if s.Prefix != "" {
			which = fmt.Sprintf("only items that begin with %q, to which all counts refer", s.Prefix)
		}
		details = append(details, which)
	}
	if !report.Complete {
		details = append(details, fmt.Sprintf("%d checks have no final result", missing))
	}
	report.Detail = strings.Join(details, "; ")
	return report
}
