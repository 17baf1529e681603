package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
)

const (
	fixitySweep = "fixity"
	// demandSweep are the rounds of the fixity sweep that a person asks for.
	demandSweep = "fixity.demand"
	// sweepEvery is how often copies that have become due are asked for, and sweepLook how
	// often the sweeper looks whether it is time.
	sweepEvery = time.Hour
	sweepLook  = 5 * time.Minute
	// sweepPage is how many copies are asked for at a time.
	sweepPage = 1000
)

// A SweepOrder says which copies a fixity sweep asks checks for.
type SweepOrder struct {
	Account, Store string
	Space          string // empty: every one
	// Begun names the round: the same time is the same round, which goes on where it stopped.
	Begun time.Time
	// Demand has every copy be read, whenever it last passed. The round is one of its own, beside those that are
	// due, and goes on with no other one.
	Demand bool
	// Period is how old a copy's last pass must be, at Begun, for the copy to be due; 0: any age.
	Period time.Duration
	// Asked, where it is set, is told how many more checks have been asked for.
	Asked func(n int64)
}

// telling is a publisher that tells how many tasks it has published.
type countingPublisher struct {
	sweep.Publisher
	onAsked func(n int64)
}

// Publish implements sweep.Publisher.
func (t countingPublisher) Publish(ctx context.Context, messages ...schemas.Message) error {
	if err := t.Publisher.Publish(ctx, messages...); err != nil {
		return err
	}
	var n int64
	for _, m := range messages {
		if m.Topic == schemas.FixityLow || m.Topic == schemas.FixityLarge {
			n++
		}
	}
	if n > 0 && t.onAsked != nil {
		t.onAsked(n)
	}
	return nil
}

// A Round is what a sweep asked for.
type Round struct {
	ID      string
	Emitted int64
}

// SweepFixity runs one round of the fixity sweep to its end: every copy that is due has a task.
func (a *App) SweepFixity(ctx context.Context, o SweepOrder) (Round, error) {
	if _, ok := a.stores.Store(o.Account, o.Store); !ok {
		return Round{}, fmt.Errorf("%w: the configuration has no store %s/%s", ErrPrecondition, o.Account, o.Store)
	}
	c := sweep.FixityConfig{Account: o.Account, Store: o.Store, Space: o.Space, Period: o.Period, Demand: o.Demand,
		Large: int64(a.cfg.Duplication.LargeThreshold), Page: sweepPage}
	name, beside := fixitySweep, demandSweep
	if o.Demand {
		name, beside, c.Period = demandSweep, fixitySweep, 0
	}
	last, err := a.checkpoint(ctx, name, c.Morsel())
	if err != nil {
		return Round{}, err
	}
	same := last.GetStarted().AsTime().Equal(o.Begun)
	if last.GetFinished() != nil && same {
		return Round{ID: last.GetRound(), Emitted: emitted(last.GetCounts())}, nil
	}
	first := emptyRound(last)
	if first {
		if first, err = a.isFirstRound(ctx, beside, c); err != nil {
			return Round{}, err
		}
	}
	if o.Demand && !same {
		last = nil
	}
	pages, err := sweep.Fixity(dueCopies{a}, c)
	if err != nil {
		return Round{}, err
	}
	runner, err := sweep.New(sweep.Defaults(), sweep.Deps{Publisher: countingPublisher{a.producer, o.Asked}, Log: a.log,
		Lag: func(ctx context.Context) (int64, error) {
			lag, err := a.admin.Lag(ctx, schemas.RoleChecker)
			return lag[schemas.RoleChecker], err
		}})
	if err != nil {
		return Round{}, err
	}
	s, err := a.runRound(ctx, o, runner, sweep.Morsel{Sweep: name, Name: c.Morsel(), Pages: pages, Start: o.Begun,
		Baseline: first, Checkpoint: last})
	if err != nil {
		return Round{}, err
	}
	return Round{ID: s.ID, Emitted: s.Emitted}, nil
}

// emptyRound reports whether a checkpoint, nil if there is none, is of a round that found nothing: it is no first round.
func emptyRound(c *pb.Checkpoint) bool {
	return c == nil || c.GetFinished() != nil && emitted(c.GetCounts()) == 0
}

// neverSwept reports whether no round went over what c does: there is neither a checkpoint of the other rounds, but for an
// empty one, nor a check of any round on record. So a checkpoint that is lost makes no second first round.
func (a *App) isFirstRound(ctx context.Context, beside string, c sweep.FixityConfig) (bool, error) {
	other, err := a.checkpoint(ctx, beside, c.Morsel())
	if err != nil || !emptyRound(other) {
		return false, err
	}
	swept, err := a.db.Swept(ctx, c.Account, c.Store, c.Space)
	return !swept, err
}

// errPaused says that a round is left where it is, to go on when it is let.
var errPaused = fmt.Errorf("%w: it is paused: see 'millrace pause list'", ErrPrecondition)

// round runs m for as long as neither the sweep nor what it goes over is paused: then it begins no
// other page, and its error is errPaused.
func (a *App) runRound(ctx context.Context, o SweepOrder, runner *sweep.Runner, m sweep.Morsel) (s sweep.Summary, err error) {
	run := func(ctx context.Context, k *kafka.Controls) error {
		ctx, stop := context.WithCancelCause(ctx) // so that the end of the run is not taken for its failure
		defer stop(nil)
		going := func() error {
			if k.Sweep(fixitySweep) || k.Paused(schemas.RoleSweeper, o.Account, o.Store) {
				stop(errPaused)
			}
			return context.Cause(ctx)
		}
		if err := going(); err != nil {
			return err
		}
		pages := m.Pages
		m.Pages = func(ctx context.Context, round sweep.Round, cursor []byte) (sweep.Page, error) {
			if err := going(); err != nil {
				return sweep.Page{}, err
			}
			return pages(ctx, round, cursor)
		}
		var err error
		s, err = runner.Run(ctx, m)
		return err
	}
	err = a.withControls(ctx, run)
	return s, err
}

func emitted(counts map[string]int64) (n int64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// checkpoint returns how far a sweep's morsel has come, nil if it never began.
func (a *App) checkpoint(ctx context.Context, name, morsel string) (*pb.Checkpoint, error) {
	var (
		mu    sync.Mutex // guards found
		found *pb.Checkpoint
	)
	key := schemas.Key(name, morsel)
	err := a.readTable(ctx, schemas.Checkpoints, func(k []byte, d *schemas.Delivery) error {
		if string(k) == key {
			mu.Lock()
			defer mu.Unlock()
			found, _ = d.Body.(*pb.Checkpoint) // nil for a tombstone
		}
		return nil
	}, func(context.Context) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("read the checkpoints: %w", err)
	}
	mu.Lock()
	defer mu.Unlock()
	return found, nil
}

// due reads what is due out of the state tables.
type dueCopies struct{ a *App }

// Due implements sweep.Due. What tables that lack records do not have is not known to be none: the round waits for rebuild.
// The tables are looked at before and after they are read, since they may be filled, or emptied, meanwhile.
func (d dueCopies) Due(ctx context.Context, q sweep.DueQuery) ([]schemas.KnownCopy, error) {
	if err := d.requireNoGaps(ctx); err != nil {
		return nil, err
	}
	copies, err := d.read(ctx, q)
	if err != nil {
		return nil, err
	}
	return copies, d.requireNoGaps(ctx)
}

func (d dueCopies) requireNoGaps(ctx context.Context) error {
	gaps, err := d.a.findGaps(ctx)
	if err == nil {
		err = clickhouse.Known(gaps)
	}
	return retry.Unavailable(err)
}

func (d dueCopies) read(ctx context.Context, q sweep.DueQuery) ([]schemas.KnownCopy, error) {
	c := clickhouse.DueQuery{Account: q.Account, Store: q.Store, Space: q.Space, PassedBefore: q.PassedBefore, Limit: q.Limit}
	if q.After != nil {
		c.After = clickhouse.DueCursor{Passed: q.After.LastPass, Space: q.After.Space, Item: q.After.Item}
	}
	copies, _, err := d.a.db.FixityDue(ctx, c)
	return copies, err
}

// sweeper asks, every hour, for checks of the copies that have become due. Topics are trimmed
// and stores are tidied beside it.
func (a *App) sweeper() ([]part, error) {
	run := func(ctx context.Context) error {
		changed, cancel := a.controls.Watch()
		defer cancel()
		look := time.NewTicker(sweepLook)
		defer look.Stop()
		for ctx.Err() == nil {
			for _, acc := range a.cfg.Accounts {
				for _, st := range acc.Stores {
					switch err := a.sweepDue(ctx, acc.ID, st.ID); { // the next look goes on where this one stopped
					case err == nil || ctx.Err() != nil:
					case errors.Is(err, errPaused):
						a.log.Info("sweep paused", "account", acc.ID, "store", st.ID)
					default:
						a.log.Error("sweep stopped", "account", acc.ID, "store", st.ID, "err", err)
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-look.C:
			case <-changed: // what was paused may go on
			}
		}
		return nil
	}
	return slices.Concat([]part{afterTables("sweeper", run, a.policies)}, a.trimmer(a.gapStarts), a.tidier(), a.positionPublisher()), nil
}

// sweepDue runs a round over a store where the last one began long enough ago, or stopped on its way.
func (a *App) sweepDue(ctx context.Context, account, store string) error {
	last, err := a.checkpoint(ctx, fixitySweep, sweep.FixityConfig{Account: account, Store: store}.Morsel())
	if err != nil {
		return err
	}
	begun := time.Now().UTC().Truncate(time.Millisecond)
	if last.GetFinished() != nil && begun.Sub(last.GetStarted().AsTime()) < sweepEvery {
		return nil
	}
	_, err = a.SweepFixity(ctx, SweepOrder{Account: account, Store: store, Begun: begun, Period: a.cfg.Fixity.Period})
	return err
}
