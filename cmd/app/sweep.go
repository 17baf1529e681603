package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
)

const (
	fixitySweep = "fixity"
	// demandSweep is the name of fixity rounds that a person requests.
	demandSweep = "fixity.demand"
	// sweepEvery is the time between two rounds over a store, and sweepLook the interval at which the
	// sweeper checks whether a round is due.
	sweepEvery = time.Hour
	sweepLook  = 5 * time.Minute
	// sweepPage is the number of copies per page.
	sweepPage = 1000
)

// A SweepRequest selects the copies of a fixity sweep.
type SweepRequest struct {
	Account, Store string
	Space          string // empty: all
	// Begun identifies the round. A round with the same time resumes where it stopped.
	Begun time.Time
	// All checks every copy regardless of its last pass. Such rounds have a checkpoint of their
	// own, beside the periodic ones, and resume only with the same Begun.
	All bool
	// Period is the minimum age, at Begun, of the last pass of a copy that is due; 0: any age.
	Period time.Duration
	// OnRequested is called with the number of checks after each publication; nil: not called.
	OnRequested func(n int64)
}

// countingPublisher is a publisher that reports the number of tasks it has published.
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

// A Round is the result of a sweep.
type Round struct {
	ID      string
	Emitted int64
}

// SweepFixity runs one round of the fixity sweep to its end: it publishes a task for every copy
// that is due.
func (a *App) SweepFixity(ctx context.Context, o SweepRequest) (Round, error) {
	if _, ok := a.stores.Store(o.Account, o.Store); !ok {
		return Round{}, fmt.Errorf("%w: the configuration has no store %s/%s", precondition.Err, o.Account, o.Store)
	}
	c := sweep.FixityConfig{Account: o.Account, Store: o.Store, Space: o.Space, Period: o.Period, Demand: o.All,
		Large: int64(a.cfg.Duplication.LargeThreshold), Page: sweepPage}
	name, beside := fixitySweep, demandSweep
	if o.All {
		name, beside, c.Period = demandSweep, fixitySweep, 0
	}
	last, err := a.checkpoint(ctx, name, c.Split())
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
	if o.All && !same {
		last = nil
	}
	pages, err := sweep.Fixity(dueCopies{a}, c)
	if err != nil {
		return Round{}, err
	}
	runner, err := sweep.New(sweep.Defaults(), sweep.Deps{
		Publisher: countingPublisher{a.producer, o.OnRequested}, Log: a.log,
		Lag: func(ctx context.Context) (int64, error) {
			lag, err := a.admin.Lag(ctx, schemas.RoleChecker)
			return lag[schemas.RoleChecker], err
		},
	})
	if err != nil {
		return Round{}, err
	}
	s, err := a.runRound(ctx, o, runner, sweep.Split{Sweep: name, Name: c.Split(), Pages: pages, Start: o.Begun,
		Baseline: first, Checkpoint: last})
	if err != nil {
		return Round{}, err
	}
	return Round{ID: s.ID, Emitted: s.Emitted}, nil
}

// emptyRound reports whether a checkpoint is nil or of a finished round without tasks. Such a round
// does not count as the first one.
func emptyRound(c *pb.Checkpoint) bool {
	return c == nil || c.GetFinished() != nil && emitted(c.GetCounts()) == 0
}

// isFirstRound reports whether no round has checked these copies before: there is no checkpoint of
// the other kind of rounds, except an empty one, and no check of a round in ClickHouse. So the loss
// of a checkpoint does not cause a second first round.
func (a *App) isFirstRound(ctx context.Context, beside string, c sweep.FixityConfig) (bool, error) {
	other, err := a.checkpoint(ctx, beside, c.Split())
	if err != nil || !emptyRound(other) {
		return false, err
	}
	swept, err := read.HasFinalCheck(ctx, a.db, c.Account, c.Store, c.Space)
	return !swept, err
}

// errPaused reports that a round stopped because of a pause. It resumes later.
var errPaused = fmt.Errorf("%w: the sweep is paused: see 'millrace pause list'", precondition.Err)

// runRound runs m. If the sweep, its store or its account is paused, it starts no further page and
// returns errPaused.
func (a *App) runRound(
	ctx context.Context, o SweepRequest, runner *sweep.Runner, m sweep.Split,
) (s sweep.Result, err error) {
	run := func(ctx context.Context, k *kafka.Controls) error {
		ctx, stop := context.WithCancelCause(ctx) // distinguishes a pause from a failure
		defer stop(nil)
		checkPause := func() error {
			if k.Sweep(fixitySweep) || k.Paused(schemas.RoleSweeper, o.Account, o.Store) {
				stop(errPaused)
			}
			return context.Cause(ctx)
		}
		if err := checkPause(); err != nil {
			return err
		}
		pages := m.Pages
		m.Pages = func(ctx context.Context, round sweep.Round, cursor []byte) (sweep.Page, error) {
			if err := checkPause(); err != nil {
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

// checkpoint returns the checkpoint of a split of a sweep; nil if it never ran.
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

// dueCopies reads the due copies from the state tables.
type dueCopies struct{ a *App }

// Due implements sweep.Due. If tables lack records, the due copies are unknown, and the round waits
// for a rebuild. The gaps are checked before and after the read, since a table may be filled or
// emptied meanwhile.
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
		err = clickhouse.CheckGaps(gaps)
	}
	return retry.Unavailable(err)
}

func (d dueCopies) read(ctx context.Context, q sweep.DueQuery) ([]schemas.KnownCopy, error) {
	c := read.DueQuery{
		Account: q.Account, Store: q.Store, Space: q.Space, PassedBefore: q.PassedBefore, Limit: q.Limit,
	}
	if q.After != nil {
		c.After = read.DueCursor{Passed: q.After.LastPass, Space: q.After.Space, Item: q.After.Item}
	}
	copies, _, err := read.FixityDue(ctx, d.a.db, c)
	return copies, err
}

// sweeper requests checks of the copies that have become due, every hour. It also does the
// upkeep of topics, stores and groups.
func (a *App) sweeper() ([]part, error) {
	run := func(ctx context.Context) error {
		changed, cancel := a.controls.Watch()
		defer cancel()
		look := time.NewTicker(sweepLook)
		defer look.Stop()
		for ctx.Err() == nil {
			for _, acc := range a.cfg.Accounts {
				for _, st := range acc.Stores {
					switch err := a.sweepDue(ctx, acc.ID, st.ID); { // the next iteration resumes where this one stopped
					case err == nil || ctx.Err() != nil:
					case errors.Is(err, errPaused):
						a.log.Info("pause sweep", "account", acc.ID, "store", st.ID)
					default:
						a.log.Error("run sweep", "account", acc.ID, "store", st.ID, "err", err)
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-look.C:
			case <-changed: // a pause may have ended
			}
		}
		return nil
	}
	return append(a.upkeep(), afterTables("sweeper", run, a.policies)), nil
}

// sweepDue runs a round over a store if the last one started long enough ago or did not finish.
func (a *App) sweepDue(ctx context.Context, account, store string) error {
	last, err := a.checkpoint(ctx, fixitySweep, sweep.FixityConfig{Account: account, Store: store}.Split())
	if err != nil {
		return err
	}
	begun := time.Now().UTC().Truncate(time.Millisecond)
	if last.GetFinished() != nil && begun.Sub(last.GetStarted().AsTime()) < sweepEvery {
		return nil
	}
	_, err = a.SweepFixity(ctx, SweepRequest{Account: account, Store: store, Begun: begun, Period: a.cfg.Fixity.Period})
	return err
}
