package sweep

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Spending is what rounds have requested by the hour, counted from 1970. The cursor of a round has that of its split
// in the last day, so that it survives restarts, and all processes know it.
type Spending map[int64]Spent

// Spent are checks that were requested.
type Spent struct {
	Items    int64 `json:"i"`
	Bytes    int64 `json:"b,omitempty"`
	Requests int64 `json:"q,omitempty"`
	// These are those of copies whose newest check did not pass.
	Retried         int64 `json:"r,omitempty"`
	RetriedBytes    int64 `json:"rb,omitempty"`
	RetriedRequests int64 `json:"rq,omitempty"`
}

func (s *Spent) add(more Spent) {
	s.Items += more.Items
	s.Bytes += more.Bytes
	s.Requests += more.Requests
	s.Retried += more.Retried
	s.RetriedBytes += more.RetriedBytes
	s.RetriedRequests += more.RetriedRequests
}

// or returns the larger numbers.
func (s Spent) or(other Spent) Spent {
	return Spent{max(s.Items, other.Items), max(s.Bytes, other.Bytes), max(s.Requests, other.Requests),
		max(s.Retried, other.Retried), max(s.RetriedBytes, other.RetriedBytes),
		max(s.RetriedRequests, other.RetriedRequests)}
}

func (s Spent) all() Amount     { return Amount{s.Items, s.Bytes, s.Requests} }
func (s Spent) retried() Amount { return Amount{s.Retried, s.RetriedBytes, s.RetriedRequests} }

// An Amount is a number of checks, the bytes of their copies, and the requests that they make to the store.
type Amount struct{ Items, Bytes, Requests int64 }

// isUsedBy reports whether s is as much as a, or more, in one of the numbers. A negative number of a is no limit.
func (a Amount) isUsedBy(s Amount) bool {
	return a.Items >= 0 && s.Items >= a.Items || a.Bytes >= 0 && s.Bytes >= a.Bytes ||
		a.Requests >= 0 && s.Requests >= a.Requests
}

const hoursOfBudget = 24

func hourOf(t time.Time) int64 { return t.Unix() / 3600 }

// with returns s and more of this hour, without what is older than a day, or was noted by a clock that was ahead. It
// leaves s as it is.
func (s Spending) with(now time.Time, more Spent) Spending {
	all := Spending{}
	for h, n := range s {
		if h >= hourOf(now)-hoursOfBudget && h <= hourOf(now)+1 {
			all[h] = n
		}
	}
	if more != (Spent{}) {
		n := all[hourOf(now)]
		n.add(more)
		all[hourOf(now)] = n
	}
	return all
}

// or returns the larger numbers of two records of the same spending.
func (s Spending) or(other Spending) Spending {
	all := maps.Clone(s)
	for h, n := range other {
		if all == nil {
			all = Spending{}
		}
		all[h] = all[h].or(n)
	}
	return all
}

// spentOf returns what the cursors of a checkpoint have. While a round has no page, it is in that of the round before.
func spentOf(c *pb.Checkpoint) Spending {
	at, _ := cursorOf(c.GetCursor()) // the round of one that cannot be read fails, and says so
	before, _ := cursorOf(c.GetPrevious())
	return at.Spent.or(before.Spent)
}

// A Budget bounds the checks that the rounds over the spaces of a store request in a day. It is safe for concurrent
// use. Several processes together may exceed it by a page each.
type Budget struct {
	limit       Amount // 0: any number
	checkpoints func() []*pb.Checkpoint
	turn        chan struct{} // is held by the round that requests checks
	// taken has what the rounds of this process have requested, by the name of the split: their checkpoints may not be
	// read yet. turn guards it.
	taken map[string]Spending
}

// NewBudget returns a budget; what is 0 in limit is only counted. The last item may exceed the bytes and the requests.
// checkpoints returns the newest checkpoints of the fixity rounds over the spaces of the store.
func NewBudget(limit Amount, checkpoints func() []*pb.Checkpoint) *Budget {
	return &Budget{limit, checkpoints, make(chan struct{}, 1), map[string]Spending{}}
}

// acquire returns false if another round of this process requests checks of the store now.
func (b *Budget) acquire() bool {
	if b == nil {
		return true
	}
	select {
	case b.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (b *Budget) release() {
	if b != nil {
		<-b.turn
	}
}

// An allowance is what a page may request now, in all, and of copies whose newest check did not pass. A negative number
// is no limit.
type allowance struct{ all, retried Amount }

var unlimited = allowance{Amount{-1, -1, -1}, Amount{-1, -1, -1}}

// left returns what a page may request now: at most the share of an hour, so that the spaces of a store take turns.
// Copies whose newest check did not pass take a quarter of each number of a day at most.
func (b *Budget) left(now time.Time) allowance {
	if b == nil || b.limit == (Amount{}) {
		return unlimited
	}
	var spent Spent
	for _, s := range b.spending() {
		for _, n := range s.with(now, Spent{}) {
			spent.add(n)
		}
	}
	page := func(budget, spent int64) int64 {
		if budget == 0 {
			return -1
		}
		return max(0, min(budget-spent, max(1, budget/hoursOfBudget)))
	}
	quarter := func(budget, spent int64) int64 {
		if budget == 0 {
			return -1
		}
		return max(0, (budget+3)/4-spent)
	}
	each := func(left func(budget, spent int64) int64, spent Amount) Amount {
		return Amount{left(b.limit.Items, spent.Items), left(b.limit.Bytes, spent.Bytes),
			left(b.limit.Requests, spent.Requests)}
	}
	return allowance{each(page, spent.all()), each(quarter, spent.retried())}
}

// spending returns what the rounds over the store have requested, in all processes, by split.
func (b *Budget) spending() map[string]Spending {
	bySplit := maps.Clone(b.taken)
	for _, c := range b.checkpoints() {
		key := schemas.Key(c.GetSweep(), c.GetSplit())
		bySplit[key] = bySplit[key].or(spentOf(c))
	}
	return bySplit
}

// spend notes what a split has requested with its next page, and returns what the cursor has. before is what the cursor
// had; nil: it is the first page of the round.
func (b *Budget) spend(split string, before Spending, now time.Time, more Spent) Spending {
	if b == nil {
		return nil
	}
	if before == nil { // not what is taken: this page may be repeated, after it was not published
		for _, c := range b.checkpoints() {
			if schemas.Key(c.GetSweep(), c.GetSplit()) == split {
				before = spentOf(c)
			}
		}
	}
	b.taken[split] = before.with(now, more)
	return b.taken[split]
}

// untilMore returns how long it takes until the budget has more again, at the soonest.
func untilMore(now time.Time) time.Duration {
	return now.Truncate(time.Hour).Add(time.Hour + time.Second).Sub(now)
}

// spentCursor returns the cursor with which a round ends: only what the next one needs.
func spentCursor(s Spending) ([]byte, error) {
	if len(s) == 0 {
		return nil, nil
	}
	return json.Marshal(fixityCursor{Spent: s})
}
