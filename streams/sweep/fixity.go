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

// Due reads which copies are due for a check.
type Due interface {
	// Due returns up to q.Limit live copies in the order of Position, with manifest and
	// audit log. Fewer than q.Limit means that there are no more.
	Due(ctx context.Context, q DueQuery) ([]schemas.KnownCopy, error)
}

// A DueQuery asks for the copies of one store, or of one space of it, whose last pass on
// their current content is older than PassedBefore, or that never passed.
type DueQuery struct {
	Account, Store string
	// Space is empty for all spaces.
	Space        string
	PassedBefore time.Time
	// After is the last copy that was returned before; nil at first.
	After *Position
	Limit int
}

// A Position is where a copy stands in the order of checks: by the last pass, never
// checked first, then by the bytes of space and item.
type Position struct {
	// LastPass is zero for copies that never passed.
	LastPass    time.Time
	Space, Item string
}

// FixityConfig is what one fixity sweep goes over.
type FixityConfig struct {
	Account, Store string
	// Space is empty for all spaces of the store.
	Space string
	// Period is how old a pass may be, at the start of the round, before its copy is due.
	Period time.Duration
	// Demand: a person asks. Each copy is read, also one that passed a moment ago or is not in the sample.
	Demand bool
	// Large is the size in bytes from which on items have topic and workers of their own;
	// 0: none.
	Large int64
	// Page is how many copies are asked for at a time.
	Page int
}

// Morsel is the name of what the sweep goes over.
func (c FixityConfig) Morsel() string {
	if c.Space == "" {
		return schemas.Key(c.Account, c.Store)
	}
	return schemas.Key(c.Account, c.Store, c.Space)
}

// Fixity returns the sweep that emits a task for every copy that was due at the start
// of the round, each once: a copy whose check passes meanwhile is no longer due, and the
// cursor never goes back. It counts tasks by Key(store, space).
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
		q := DueQuery{
			Account: c.Account, Store: c.Store, Space: c.Space,
			PassedBefore: round.Started.Add(-c.Period), Limit: c.Page,
		}
		if cursor != nil {
			q.After = new(Position)
			if err := json.Unmarshal(cursor, q.After); err != nil {
				return Page{}, fmt.Errorf("read the cursor: %w", err)
			}
		}
		copies, err := due.Due(ctx, q)
		if err != nil {
			return Page{}, fmt.Errorf("ask what is due: %w", err)
		}
		return c.page(round, copies)
	}, nil
}

func (c FixityConfig) page(round Round, copies []schemas.KnownCopy) (Page, error) {
	page := Page{
		Messages: make([]schemas.Message, len(copies)), Counts: map[string]int64{}, Last: len(copies) < c.Page,
	}
	for n, k := range copies {
		page.Messages[n] = c.task(round, k)
		page.Counts[schemas.Key(k.Store, k.Space)]++
	}
	if page.Last {
		return page, nil
	}
	last := copies[len(copies)-1]
	at := Position{Space: last.Space, Item: last.Item}
	if t := last.Record.GetLastPass(); t != nil {
		at.LastPass = t.AsTime()
	}
	var err error
	if page.Next, err = json.Marshal(at); err != nil {
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
