package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

const (
	// FixitySweep is the name of the periodic fixity sweep.
	FixitySweep = "fixity"
	// demandSweep is the name of fixity rounds that an operator requests.
	demandSweep = "fixity.demand"
	// fixityPage is the default number of copies per page.
	fixityPage = 1000
)

// A Request selects the copies of a fixity round.
type Request struct {
	Account, Store string
	Space          string // empty: all
	// Begun identifies the round. A round with the same time resumes where it stopped.
	Begun time.Time
	// All checks every copy regardless of its last pass. Such rounds have a checkpoint of their own, beside the periodic
	// ones, and resume only with the same Begun.
	All bool
	// Period is the minimum age, at Begun, of the last pass of a copy that is due; 0: any age.
	Period time.Duration
	// OnRequested is called with the number of checks after each publication; nil: not called.
	OnRequested func(n int64)
}

// FixityRounds makes the splits of the fixity sweep.
type FixityRounds struct {
	Due Due
	// Checked reports whether a round has checked copies of a store, or of one space of it.
	Checked func(ctx context.Context, account, store, space string) (bool, error)
	// Lag returns the number of unread records in the topics of fixity tasks.
	Lag func(context.Context) (int64, error)
	// Large is the smallest size in bytes of items of class large; 0 means that none are.
	Large int64
	// Page is the number of copies per page; 0: 1000.
	Page int
}

// Split returns the split of a request.
func (f FixityRounds) Split(r Request) (Split, error) {
	c := FixityConfig{Account: r.Account, Store: r.Store, Space: r.Space, Period: r.Period, Demand: r.All,
		Large: f.Large, Page: f.Page}
	if c.Page == 0 {
		c.Page = fixityPage
	}
	m := Split{Sweep: FixitySweep, Name: c.Split(), Account: r.Account, Lag: f.Lag, Start: r.Begun, Anew: r.All,
		OnEmitted: r.OnRequested}
	other := demandSweep
	if r.All {
		m.Sweep, other, c.Period = demandSweep, FixitySweep, 0
	}
	var err error
	if m.Pages, err = Fixity(f.Due, c); err != nil {
		return Split{}, err
	}
	// It is the first round if none has checked these copies before: neither kind of rounds has a checkpoint, except an
	// empty one, and no check of a round is recorded. So the loss of a checkpoint does not cause a second baseline.
	m.FirstRound = func(ctx context.Context, checkpoint func(sweep, split string) *pb.Checkpoint) (bool, error) {
		if !empty(checkpoint(m.Sweep, m.Name)) || !empty(checkpoint(other, m.Name)) {
			return false, nil
		}
		checked, err := f.Checked(ctx, c.Account, c.Store, c.Space)
		return !checked, err
	}
	return m, nil
}

// empty reports whether a checkpoint is nil or of a finished round without tasks. Such a round does not count as the
// first one.
func empty(c *pb.Checkpoint) bool {
	return c == nil || c.GetFinished() != nil && total(c.GetCounts()) == 0
}

// Due returns the copies that are due for a check.
type Due interface {
	// Due returns up to q.Limit copies with their records in manifest and audit log, and the cursor of the page. If it
	// returns fewer than q.Limit, there are no more.
	Due(ctx context.Context, q schemas.DueQuery) ([]schemas.KnownCopy, schemas.DueCursor, error)
}

// FixityConfig holds the settings of one fixity sweep.
type FixityConfig struct {
	Account, Store string
	// Space is empty for all spaces of the store.
	Space string
	// Period is the age of the last pass, at the start of the round, after which a copy is due.
	Period time.Duration
	// Demand reports that an operator requested the sweep. All copies are read, even those outside of the sample or with
	// a recent pass.
	Demand bool
	// Large is the smallest size in bytes of items of class large; 0 means that none are.
	Large int64
	// Page is the number of copies per query.
	Page int
}

// Split returns the name of the split.
func (c FixityConfig) Split() string {
	if c.Space == "" {
		return schemas.Key(c.Account, c.Store)
	}
	return schemas.Key(c.Account, c.Store, c.Space)
}

// Fixity returns a sweep that emits one task for every copy that was due at the start of the round. A copy with a check
// that passes during the round is no longer due, and the cursor never moves back, so no copy gets two tasks. The sweep
// counts tasks by Key(store, space).
func Fixity(due Due, c FixityConfig) (Sweep, error) {
	switch {
	case due == nil:
		return nil, errors.New("fixity sweep: due is missing")
	case c.Account == "" || c.Store == "":
		return nil, errors.New("fixity sweep: account or store is missing")
	case c.Page < 1:
		return nil, errors.New("fixity sweep: page is not positive")
	case c.Period < 0:
		return nil, errors.New("fixity sweep: period is negative")
	}
	return func(ctx context.Context, round Round, cursor []byte) (Page, error) {
		q := schemas.DueQuery{
			Account: c.Account, Store: c.Store, Space: c.Space,
			PassedBefore: round.Started.Add(-c.Period), Limit: c.Page,
		}
		if cursor != nil {
			if err := json.Unmarshal(cursor, &q.After); err != nil {
				return Page{}, fmt.Errorf("read the cursor: %w", err)
			}
		}
		copies, end, err := due.Due(ctx, q)
		if err != nil {
			return Page{}, fmt.Errorf("read due copies: %w", err)
		}
		return c.page(round, copies, end)
	}, nil
}

func (c FixityConfig) page(round Round, copies []schemas.KnownCopy, end schemas.DueCursor) (Page, error) {
	page := Page{
		Messages: make([]schemas.Message, len(copies)), Counts: map[string]int64{}, Last: len(copies) < c.Page,
	}
	for n, k := range copies {
		page.Messages[n] = c.task(round, k)
		page.Counts[schemas.Key(k.Store, k.Space)]++
	}
	page.Emitted = int64(len(copies))
	if page.Last {
		return page, nil
	}
	var err error
	if page.Next, err = json.Marshal(end); err != nil {
		return Page{}, fmt.Errorf("write the cursor: %w", err)
	}
	return page, nil
}

func (c FixityConfig) task(round Round, k schemas.KnownCopy) schemas.Message {
	reason := pb.FixityReason_FIXITY_REASON_SWEEP
	if c.Demand {
		reason = pb.FixityReason_FIXITY_REASON_DEMAND
	}
	topic, priority := schemas.FixityLow, pb.Priority_PRIORITY_LOW
	if c.Large > 0 && k.Record.GetManifest().GetSize() >= c.Large {
		topic, priority = schemas.FixityLarge, pb.Priority_PRIORITY_LARGE
	}
	return schemas.Message{Topic: topic, Body: &pb.FixityTask{
		Id:      schemas.ID("sweep", round.ID, k.Copy.String()),
		Account: k.Account, Store: k.Store, Space: k.Space, Item: k.Item,
		Reason: reason, Priority: priority,
		Cause: round.ID, Round: round.ID, Baseline: round.Baseline, Time: timestamppb.New(round.Started),
		Known: schemas.WithoutProperties(k.Record),
	}}
}
