package app

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
)

// sweeper requests checks of the copies that have become due, every hour. It also does the
// upkeep of topics, stores and groups.
func (a *App) sweeper() ([]part, error) {
	var stores []sweep.Request
	for _, acc := range a.cfg.Accounts {
		for _, st := range acc.Stores {
			stores = append(stores, sweep.Request{Account: acc.ID, Store: st.ID, Period: a.cfg.Fixity.Period})
		}
	}
	state := a.kafka.Metrics.Role(schemas.RoleSweeper, schemas.High)
	run := func(ctx context.Context) error {
		changed, cancel := a.controls.Watch()
		defer cancel()
		if len(stores) == 0 {
			state.SetMember() // there is nothing to read the checkpoints for
		}
		return a.newSweeper(a.controls, state).Run(retry.Watched(ctx, state.MarkProgress), stores, changed)
	}
	return append(a.upkeep(), afterTables("sweeper", run, a.policies)), nil
}

// newSweeper makes the sweeper of fixity rounds. k are controls that have been read. state is nil if the process does
// not run the role.
func (a *App) newSweeper(k *client.Controls, state *metrics.Role) *sweep.Sweeper {
	return sweep.NewSweeper(sweep.SweeperConfig{Large: int64(a.cfg.Duplication.LargeThreshold)}, sweep.SweeperDeps{
		Due: dueCopies{a}, Publisher: a.producer, Looking: state.AddBusy,
		Checkpoints: func(ctx context.Context) (sweep.Checkpoints, error) {
			known, err := a.checkpoints(ctx)
			if err == nil {
				state.SetMember()
			}
			return known, err
		},
		Checked: func(ctx context.Context, account, store, space string) (bool, error) {
			return read.HasFinalCheck(ctx, a.db, account, store, space)
		},
		Paused: pausesSweep(k), Log: a.log,
		Lag: func(ctx context.Context) (int64, error) {
			lag, err := a.admin.Lag(ctx, schemas.RoleChecker)
			return lag[schemas.RoleChecker], err
		},
	})
}

// pausesSweep returns a function that reports whether fixity rounds over a store are paused. k are
// controls that have been read.
func pausesSweep(k *client.Controls) func(account, store string) bool {
	return func(account, store string) bool {
		return k.Sweep(sweep.FixitySweep) || k.Paused(schemas.RoleSweeper, account, store)
	}
}

// SweepFixity runs one round of the fixity sweep to its end: it publishes a task for every copy
// that is due.
func (a *App) SweepFixity(ctx context.Context, r sweep.Request) (result sweep.Result, err error) {
	if _, err := a.stores.configured(StoreName{r.Account, r.Store}); err != nil {
		return result, err
	}
	err = a.withControls(ctx, func(ctx context.Context, k *client.Controls) error {
		result, err = a.newSweeper(k, nil).Sweep(ctx, r)
		return err
	})
	if errors.Is(err, sweep.ErrPaused) {
		err = fmt.Errorf("%w: %w", precondition.Err, err)
	}
	return result, err
}

// checkpoints reads the checkpoints of all sweeps.
func (a *App) checkpoints(ctx context.Context) (sweep.Checkpoints, error) {
	var mu sync.Mutex // guards all
	all := sweep.Checkpoints{}
	err := a.readTable(ctx, schemas.Checkpoints, func(key []byte, d *schemas.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		all[string(key)], _ = d.Body.(*pb.Checkpoint) // nil for a tombstone
		return nil
	}, func(context.Context) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("read the checkpoints: %w", err)
	}
	return all, nil
}

// dueCopies reads the due copies from the state tables.
type dueCopies struct{ a *App }

// Due implements sweep.Due. If tables lack records, the due copies are unknown, and the round waits
// for a rebuild. The gaps are checked before and after the read, since a table may be filled or
// emptied meanwhile.
func (d dueCopies) Due(
	ctx context.Context, q schemas.DueQuery,
) (copies []schemas.KnownCopy, end schemas.DueCursor, err error) {
	if err := d.requireNoGaps(ctx); err != nil {
		return nil, end, err
	}
	if copies, end, err = read.FixityDue(ctx, d.a.db, q); err != nil {
		return nil, end, err
	}
	return copies, end, d.requireNoGaps(ctx)
}

func (d dueCopies) requireNoGaps(ctx context.Context) error {
	gaps, err := d.a.findGaps(ctx)
	if err == nil {
		err = clickhouse.CheckGaps(gaps)
	}
	return retry.Unavailable(err)
}
