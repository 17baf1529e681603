package sweep

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A fixityCursor is the cursor of a fixity round.
type fixityCursor struct {
	schemas.DueCursor
	// Selection is that of the first page, since the settings may change while the round goes on.
	Selection selection `json:"Selection,omitzero"`
	// Requested counts the checks that the round has requested.
	Requested int64 `json:"Requested,omitempty"`
	// Waiting is when the last check was requested; zero: not all are.
	Waiting time.Time `json:"Waiting,omitzero"`
	// Queued is the end of the topics of tasks after that; nil: it is unknown.
	Queued Offsets `json:"Queued,omitempty"`
	// Spent is what the rounds of the split have requested in the last day, if the store has a budget.
	Spent Spending `json:"Spent,omitempty"`
}

// A selection says which copies are due in a round, with the fields of schemas.DueQuery.
type selection struct {
	PassedBefore    time.Time     `json:"PassedBefore,omitzero"`
	AttemptedBefore time.Time     `json:"AttemptedBefore,omitzero"`
	Period          time.Duration `json:"Period,omitempty"` // in nanoseconds
	Asserted        bool          `json:"Asserted,omitempty"`
}

func cursorOf(b []byte) (c fixityCursor, err error) {
	if b == nil {
		return c, nil
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read the cursor: %w", err)
	}
	return c, nil
}

// isWaiting is Split.Quiet: a round that waits for results publishes nothing.
func isWaiting(cursor []byte) bool {
	at, err := cursorOf(cursor)
	return err == nil && !at.Waiting.IsZero()
}

// OnlyWaits reports whether a checkpoint is that of a fixity round that has requested all its checks and has not ended.
func OnlyWaits(c *pb.Checkpoint) bool { return c.GetFinished() == nil && isWaiting(c.GetCursor()) }

// interval returns the time from a round to the next one; 0: there is none.
func (s *fixitySweep) interval(r Round) time.Duration {
	if s.Next == nil {
		return 0
	}
	next := s.Next(s.space, r.Started)
	if next.IsZero() {
		return 0
	}
	return max(0, next.Sub(r.Started))
}

// selection returns the selection of a round that begins. A copy is due if it has not passed for a period, or would not
// have before the next round.
func (s *fixitySweep) selection(r Round) selection {
	age := s.Period
	if s.All {
		age = 0
	}
	q := selection{Asserted: s.Asserts, PassedBefore: r.Started.Add(min(s.interval(r), age) - age)}
	if age > 0 {
		q.AttemptedBefore, q.Period = r.Started.Add(-age/retries), age
	}
	return q
}

// query returns the query of a page.
func (s *fixitySweep) query(r Round, at fixityCursor) schemas.DueQuery {
	return schemas.DueQuery{Account: s.Account, Store: s.Store, Space: s.Space, Prefix: s.Prefix, Limit: s.Page,
		After: at.DueCursor, PassedBefore: at.Selection.PassedBefore, AttemptedBefore: at.Selection.AttemptedBefore,
		Begun: r.Started, Period: at.Selection.Period, Asserted: at.Selection.Asserted}
}

func (s *fixitySweep) sweep(ctx context.Context, round Round, cursor []byte) (page Page, err error) {
	at, err := cursorOf(cursor)
	if err != nil {
		return Page{}, err
	}
	if !at.Waiting.IsZero() {
		return s.wait(ctx, round, at)
	}
	if at.Selection == (selection{}) {
		at.Selection = s.selection(round)
	}
	if !s.Budget.acquire() {
		return Page{Wait: time.Second}, nil
	}
	defer s.Budget.release()
	now := s.Now()
	left := s.Budget.left(now)
	if left.all.isUsedBy(Amount{}) {
		if none, err := s.noneDue(ctx, round, at); !none || err != nil {
			return Page{Wait: untilMore(now)}, err
		}
		return s.requested(Page{}, at, now, Spent{})
	}
	copies, end, all, err := s.due(ctx, round, at, left)
	if err != nil {
		return Page{}, fmt.Errorf("read due copies: %w", err)
	}
	page, spent := s.request(round, copies, left)
	if at.DueCursor = end; all {
		return s.requested(page, at, now, spent)
	}
	return s.next(page, at, now, spent)
}

// next returns a page after which the round goes on.
func (s *fixitySweep) next(page Page, at fixityCursor, now time.Time, spent Spent) (_ Page, err error) {
	at.Spent = s.Budget.spend(schemas.Key(s.sweepName(), s.splitName()), at.Spent, now, spent)
	at.Requested += page.Emitted
	if page.Next, err = json.Marshal(at); err != nil {
		return Page{}, fmt.Errorf("write the cursor: %w", err)
	}
	return page, nil
}

// requested returns the page with which the round has requested all checks. It ends if there are none.
func (s *fixitySweep) requested(page Page, at fixityCursor, now time.Time, spent Spent) (Page, error) {
	if at.Requested+page.Emitted > 0 {
		at.Waiting = now.UTC()
		return s.next(page, at, now, spent)
	}
	at.Spent = s.Budget.spend(schemas.Key(s.sweepName(), s.splitName()), at.Spent, now, spent)
	return s.last(page, at)
}

// noneDue reports whether a round has nothing more to request.
func (s *fixitySweep) noneDue(ctx context.Context, round Round, at fixityCursor) (bool, error) {
	q := s.query(round, at)
	q.Limit = 1
	copies, _, err := s.Due.Due(ctx, q)
	if err != nil {
		return false, fmt.Errorf("read due copies: %w", err)
	}
	return len(copies) == 0, nil
}

// due returns the copies of the next page, its cursor, and whether there are no more. The page ends with the copy with
// which the allowance is used up.
func (s *fixitySweep) due(
	ctx context.Context, round Round, at fixityCursor, left allowance,
) (copies []schemas.DueCopy, end schemas.DueCursor, all bool, err error) {
	q := s.query(round, at)
	if left.all.Items > 0 && s.Items == nil {
		q.Limit = int(min(int64(q.Limit), left.all.Items))
	}
	if copies, end, err = s.Due.Due(ctx, q); err != nil {
		return nil, end, false, err
	}
	var taken Spent
	for n, k := range copies {
		if !s.selects(k) {
			continue
		}
		if taken.add(s.spent(k)); left.all.isUsedBy(taken.all()) && n+1 < len(copies) {
			q.Limit = n + 1
			copies, end, err = s.Due.Due(ctx, q) // for the cursor
			break
		}
	}
	return copies, end, len(copies) < q.Limit, err
}

func (s *fixitySweep) selects(k schemas.DueCopy) bool { return s.Items == nil || s.Items(k.Item) }

// spent returns what a check of a copy takes of a budget.
func (s *fixitySweep) spent(k schemas.DueCopy) Spent {
	n := Spent{Items: 1, Bytes: max(0, k.Record.GetManifest().GetSize())}
	if s.Requests != nil {
		n.Requests = s.Requests(n.Bytes)
	}
	if k.Retried {
		n.Retried, n.RetriedBytes, n.RetriedRequests = n.Items, n.Bytes, n.Requests
	}
	return n
}

// request returns the page of the tasks of copies.
func (s *fixitySweep) request(round Round, copies []schemas.DueCopy, left allowance) (page Page, spent Spent) {
	for _, k := range copies {
		more := s.spent(k)
		if !s.selects(k) || more.Retried > 0 && left.retried.isUsedBy(spent.retried()) { // a later round requests the others
			continue
		}
		page.Messages = append(page.Messages, s.task(round, k))
		spent.add(more)
	}
	page.Emitted, page.Counts = spent.Items, map[string]int64{Requested: spent.Items, RequestedBytes: spent.Bytes}
	return page, spent
}

// last makes page the last one of a round. The next round knows what this one has spent.
func (s *fixitySweep) last(page Page, at fixityCursor) (_ Page, err error) {
	page.Last = true
	if page.Next, err = spentCursor(at.Spent); err != nil {
		return Page{}, fmt.Errorf("write the cursor: %w", err)
	}
	return page, nil
}

func (s *fixitySweep) task(round Round, k schemas.DueCopy) schemas.Message {
	reason := pb.FixityReason_FIXITY_REASON_SWEEP
	if s.All {
		reason = pb.FixityReason_FIXITY_REASON_DEMAND
	}
	topic, priority := taskClass(k.Record.GetManifest().GetSize(), s.Large)
	if s.All && topic == schemas.FixityLow {
		topic, priority = schemas.FixityHigh, pb.Priority_PRIORITY_HIGH
	}
	return schemas.Message{Topic: topic, Body: &pb.FixityTask{
		Id:      schemas.ID("sweep", round.ID, k.Copy.String()),
		Account: k.Account, Store: k.Store, Space: k.Space, Item: k.Item,
		Reason: reason, Priority: priority,
		Cause: s.cause(round), Round: round.ID, Baseline: round.Baseline, Time: timestamppb.New(round.Started),
		Known: schemas.WithoutProperties(k.Record),
	}}
}
