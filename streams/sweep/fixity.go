package sweep

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

const (
	// FixitySweep is the name of the periodic fixity sweep, and the kind of its reports.
	FixitySweep = "fixity"
	// PrefixReport is the kind of the reports of fixity rounds over the items with a prefix, so that none of them counts
	// as the newest round of its space.
	PrefixReport = "fixity.prefix"
	// DemandSweep is the name of fixity rounds that an operator requests.
	DemandSweep = "fixity.demand"
	// fixityPage is the default number of copies per page.
	fixityPage = 1000
)

// Counts of a fixity round, beside those of FixityRounds.Results.
const (
	// Requested counts the checks that the round has requested. After an interruption it may be too low by those of a
	// page that were done before the page was published again.
	Requested = "requested"
	// RequestedBytes is their size as it is on record; those of unknown size are left out.
	RequestedBytes = "requested_bytes"
	// ReadPercent is the percentage of the copies whose bytes are read in a period; absent if those of all are.
	ReadPercent = "read_percent"
	// Outstanding counts the requested checks that have no final result at the end of the round.
	Outstanding = "outstanding"
)

// A Request selects the copies of a fixity round.
type Request struct {
	Account, Store, Space string
	// Begun identifies the round. A round with the same time resumes where it stopped.
	Begun time.Time
	// All checks every copy regardless of its last pass, ahead of the periodic rounds. Such rounds have a checkpoint of
	// their own, beside those, and resume only with the same Begun.
	All bool
	// Prefix selects the items that begin with it; empty: all. Only a round with All has one.
	Prefix string
	// Some: the round is over some items only, by Prefix or Items. It runs by Sweeper.Once, its report is of kind
	// PrefixReport, and it does not count as the first one of the space.
	Some bool
	// Period is the minimum age, at Begun, of the last pass of a copy that is due; 0: any age.
	Period time.Duration
	// Detach lets Sweeper.Rounds return when all checks are requested. A later call, or the sweeper of another process,
	// ends the round.
	Detach bool
	// Only is Split.Only.
	Only string
	// Items reports whether an item is checked; nil: all are.
	Items func(item string) bool
	// Budget bounds and counts what the rounds over the store request; nil: nothing does.
	Budget *Budget
	// Requests returns how many requests the check of a copy of a size makes to the store; nil: they are not counted.
	Requests func(size int64) int64
	// Asserts says that a pass counts that rests on what the store asserts: it does not always read.
	Asserts bool
	// ReadPercent is, with Asserts, the percentage of the copies whose bytes periodic rounds read in a period.
	ReadPercent int
	// OnRequested is called with the number of checks after each publication; nil: not called.
	OnRequested func(n int64)
}

// FixityRounds makes the splits of the fixity sweep. All fields without a default are required.
type FixityRounds struct {
	Due Due
	// Checked reports whether a round has checked copies of a space.
	Checked func(ctx context.Context, space schemas.Copy) (bool, error)
	Results Results
	Queue   Queue
	// Lag returns the number of unread records in the topics of fixity tasks, and LagHigh those of class high.
	Lag, LagHigh func(context.Context) (int64, error)
	// Large is the smallest size in bytes of items of class large; 0 means that none are.
	Large int64
	// Page is the number of copies per page [1000].
	Page int
	// Next returns when the round over a space after one is due that began at started; the zero time: never. A copy that
	// would become due before the next round is due now. nil: there are no scheduled rounds.
	Next func(space schemas.Copy, started time.Time) time.Time
	// Now is Config.Now.
	Now func() time.Time
	// MaxWait is how long a round waits for results after its last request [7 days]. Then it ends without them.
	MaxWait time.Duration
}

// Results tells what has become of the checks of a round.
type Results interface {
	Progress(context.Context, RoundQuery) (Progress, error)
	// Counts counts the copies with a final result by what it is, and the copies of the space. It returns false while the
	// records of the copies lack checks that the log of checks has.
	Counts(context.Context, RoundQuery) (RoundCounts, bool, error)
}

// A RoundQuery selects the results of a round.
type RoundQuery struct {
	Round
	Since time.Time        // its checks began at this time, or later
	First schemas.DueQuery // of its first page
	// VerifiedSince is the time since which a copy must have passed to count as verified.
	VerifiedSince time.Time
}

// Progress counts the distinct copies with a final result of a round, and those that have only others.
type Progress struct {
	Final, Pending int64
	Last           time.Time // when a copy got its first result at last; zero: none has one
}

// RoundCounts are the results of a round.
type RoundCounts struct {
	Progress
	Live   int64            // copies of the space
	Counts map[string]int64 // those of the report
}

// A Queue tells whether tasks were handled: they have a result, or are to be repeated, or are dead letters.
type Queue interface {
	// End returns the end of the topics of tasks.
	End(context.Context) (Offsets, error)
	// Handled reports whether all tasks before some offsets were handled.
	Handled(context.Context, Offsets) (bool, error)
}

// Offsets are offsets by topic and partition.
type Offsets map[schemas.Topic]map[int32]int64

// retries is the number of times in a period that a copy is due whose newest check did not pass, at most: the time
// between its checks grows from this share of the period to all of it.
const retries = 30

// Split returns the split of a request.
func (f FixityRounds) Split(r Request) (Split, error) {
	c, err := f.config(r)
	if err != nil {
		return Split{}, err
	}
	lag := f.Lag
	if r.All {
		lag = f.LagHigh
	}
	m := Split{Sweep: c.sweepName(), Name: c.splitName(), Account: r.Account, Lag: lag,
		Start: r.Begun, Anew: r.All, Detach: r.Detach, Only: r.Only, OnEmitted: r.OnRequested, Pages: c.sweep,
		Quiet: isWaiting,
		Carry: func(c *pb.Checkpoint) []byte {
			spent, _ := spentCursor(spentOf(c)) // numbers can be marshalled
			return spent
		},
		Report: func(result Result) *pb.Report { return c.report(result) }}
	other := DemandSweep
	if r.All {
		other = FixitySweep
	}
	if r.Some { // it is never the first round
		return m, nil
	}
	// It is the first round if none has checked these copies before: neither kind of rounds has a checkpoint, except an
	// empty one, and no check of a round is recorded. So the loss of a checkpoint does not cause a second baseline.
	m.FirstRound = func(ctx context.Context, checkpoint func(sweep, split string) *pb.Checkpoint) (bool, error) {
		if !empty(checkpoint(m.Sweep, m.Name)) || !empty(checkpoint(other, m.Name)) {
			return false, nil
		}
		checked, err := f.Checked(ctx, c.space)
		return !checked, err
	}
	return m, nil
}

// empty reports whether a checkpoint is nil or of a finished round without tasks. Such a round does not count as the
// first one.
func empty(c *pb.Checkpoint) bool {
	return c == nil || c.GetFinished() != nil && total(c.GetCounts()) == 0
}

func (f FixityRounds) config(r Request) (*fixitySweep, error) {
	switch {
	case f.Due == nil || f.Results == nil || f.Queue == nil || f.Checked == nil || f.Lag == nil || f.LagHigh == nil ||
		f.Now == nil:
		return nil, errors.New("fixity sweep: due, results, queue, checked, lag or now is missing")
	case r.Account == "" || r.Store == "" || r.Space == "":
		return nil, errors.New("fixity sweep: account, store or space is missing")
	case r.Prefix != "" && (!r.All || !r.Some):
		return nil, errors.New("fixity sweep: a round over a whole space, or a periodic one, has a prefix")
	case f.Page < 0 || f.MaxWait < 0 || r.Period < 0:
		return nil, errors.New("fixity sweep: page, max wait or period is negative")
	}
	if f.Page == 0 {
		f.Page = fixityPage
	}
	if f.MaxWait == 0 {
		f.MaxWait = 7 * 24 * time.Hour
	}
	return &fixitySweep{FixityRounds: f, Request: r,
		space: schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space}}, nil
}

// Due returns the copies that are due for a check.
type Due interface {
	// Due returns up to q.Limit copies with their records in manifest and audit log, and the cursor of the page. If it
	// returns fewer than q.Limit, there are no more.
	Due(ctx context.Context, q schemas.DueQuery) ([]schemas.DueCopy, schemas.DueCursor, error)
}

// A fixitySweep requests a check of every copy that is due when the round begins, and waits for the results. A copy
// with a check that passes during the round is no longer due, and the cursor never moves back. So no copy gets two
// tasks, except if a page is published again, or if copies are due whatever the age of their pass and a checker's
// clock is slow: both tasks have one id then.
type fixitySweep struct {
	FixityRounds
	Request
	space schemas.Copy
}

func (s *fixitySweep) splitName() string {
	if s.Prefix != "" {
		return schemas.Key(s.Account, s.Store, s.Space, s.Prefix)
	}
	return schemas.Key(s.Account, s.Store, s.Space)
}

// cause returns what the tasks of a round have as their cause: its id. That of a round over some items is another word,
// so that it does not count as the first round of the space.
func (s *fixitySweep) cause(r Round) string {
	if s.Some {
		return s.splitName()
	}
	return r.ID
}

func (s *fixitySweep) sweepName() string {
	if s.All {
		return DemandSweep
	}
	return FixitySweep
}
