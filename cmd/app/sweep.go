package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/space"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// Sweeps returns the names of the sweeps.
func Sweeps() []string { return []string{sweep.FixitySweep, reconcile.Name, DuplicationSweep} }

// demand is what the names of rounds by hand have after that of the sweep.
const demand = ".demand"

// sweeping is what the splits of sweeps need of the process or the command that runs them.
type sweeping struct {
	*sweep.Sweeper
	controls *client.Controls
	board    *incident.Board
	rules    *policy.Registry
	gone     *space.Gone
}

// checkpoints holds the newest checkpoint of every split of every sweep, and of the brakes.
type checkpoints struct {
	*kafka.Table
	mu    sync.Mutex // guards byKey
	byKey map[string]*pb.Checkpoint
}

func (a *App) newCheckpoints() (*checkpoints, error) {
	c := &checkpoints{byKey: map[string]*pb.Checkpoint{}}
	var err error
	c.Table, err = kafka.NewTable(a.kafka, schemas.Checkpoints, func(key []byte, d *schemas.Delivery) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.byKey[string(key)], _ = d.Body.(*pb.Checkpoint) // nil for a tombstone
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make the table of checkpoints: %w", err)
	}
	return c, nil
}

// of returns the newest checkpoint of a split; nil if there is none.
func (c *checkpoints) of(sweep, split string) *pb.Checkpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byKey[schemas.Key(sweep, split)]
}

// sweeper runs the rounds of the sweeps as they become due. The processes with the role divide the
// splits. It also does the upkeep of topics, stores and groups.
func (a *App) sweeper() ([]part, error) {
	known, err := a.newCheckpoints()
	if err != nil {
		return nil, err
	}
	changed := make(chan struct{}, 1)
	changedNow := func() {
		select {
		case changed <- struct{}{}:
		default: // a look follows anyway
		}
	}
	owner, err := kafka.NewOwnership(a.kafka, schemas.RoleSweeper, schemas.Checkpoints, changedNow)
	if err != nil {
		return nil, err
	}
	state := a.kafka.Metrics.Role(schemas.RoleSweeper, schemas.High)
	s, err := a.newSweeper(known, state, func(sweep, split string) bool { return owner.Owns(schemas.Key(sweep, split)) })
	if err != nil {
		return nil, err
	}
	w, spaces := sweeping{s, a.controls, a.incidentBoard, a.policyRegistry, &a.goneSpaces}, newSpaceLists()
	kinds := []sweep.Kind{
		newTimetable(a.cfg.Sweep.Fixity, a.log).of(func(context.Context) ([]sweep.Split, error) {
			return a.fixitySplits(w)
		}),
		newTimetable(a.cfg.Sweep.Reconcile, a.log).of(func(ctx context.Context) ([]sweep.Split, error) {
			all, err := a.reconcileSplits(ctx, w, spaces)
			return all, unlessAway(err)
		}),
		newTimetable(a.cfg.Sweep.Duplication, a.log).of(func(ctx context.Context) ([]sweep.Split, error) {
			all, err := a.pairSplits(ctx, w, spaces)
			return all, unlessAway(err)
		}),
	}
	a.onPolicy = append(a.onPolicy, changedNow) // a new pair is compared at once
	run := func(ctx context.Context) error {
		ended, cancel := a.controls.Watch()
		defer cancel()
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-ended:
				case <-a.stores.change():
				}
				changedNow()
			}
		}()
		return s.Run(retry.Watched(ctx, state.MarkProgress), kinds, changed)
	}
	parts := append(a.upkeep(), part{"checkpoints", known.Run}, part{"owner of splits", owner.Run},
		afterTables("sweeper", run, a.policies, a.actions, a.incidents, known.Table))
	if a.registry != nil { // the metrics are read
		m := newPairMetrics()
		a.registry.MustRegister(m)
		parts = append(parts, afterTables("policy pairs",
			func(ctx context.Context) error { return a.watchPairs(ctx, m) }, a.policies))
	}
	return parts, nil
}

// newSweeper makes a sweeper. state is nil if the process does not run the role, and owns then, too.
func (a *App) newSweeper(
	known *checkpoints, state *metrics.Role, owns func(sweep, split string) bool,
) (*sweep.Sweeper, error) {
	c := sweep.SweeperConfig{Config: sweep.Config{MaxBacklog: int64(a.cfg.Sweep.MaxBacklog)},
		Workers: a.cfg.Sweep.Workers}
	return sweep.NewSweeper(c, sweep.SweeperDeps{
		Publisher: a.producer, Looking: state.AddBusy, Owns: owns, Log: a.log,
		Checkpoint: known.of, CatchUp: known.CatchUp,
	})
}

// inCommand runs do with a sweeper for a command, when the topics that it needs have been read.
func (a *App) inCommand(ctx context.Context, do func(context.Context, sweeping) error) error {
	known, err := a.newCheckpoints()
	if err != nil {
		return err
	}
	w := sweeping{board: incident.NewBoard(a.producer, a.log), rules: policy.NewRegistry(a.stores.IDs),
		gone: new(space.Gone)}
	if w.Sweeper, err = a.newSweeper(known, nil, nil); err != nil {
		return err
	}
	err = a.withControls(ctx, func(ctx context.Context, k *client.Controls) error {
		w.controls = k
		return a.readTable(ctx, schemas.Policies, applyTo(w.rules), func(ctx context.Context) error {
			return a.readTable(ctx, schemas.Incidents, incidentsTo(w.board.Apply), func(ctx context.Context) error {
				return a.readTable(ctx, schemas.Admin, actionsTo(w.gone), func(ctx context.Context) error {
					return runDuring(ctx, known.Run, func(ctx context.Context) error { return do(ctx, w) })
				})
			})
		})
	})
	if errors.Is(err, sweep.ErrPaused) {
		err = fmt.Errorf("%w: %w", precondition.Err, err)
	}
	return err
}

// byHand runs one round of the split of each part, beside the scheduled rounds, and calls ended with the results.
func byHand[T any](
	ctx context.Context, w sweeping, parts []T, split func(T) (sweep.Split, error), ended func(T, sweep.Result),
) error {
	var splits []sweep.Split
	byName := map[string]T{}
	for _, p := range parts {
		m, err := split(p)
		if err != nil {
			return err
		}
		m.Sweep += demand
		splits = append(splits, m)
		byName[m.Name] = p
	}
	results, err := w.Rounds(ctx, splits)
	for _, r := range results {
		ended(byName[r.Split], r)
	}
	return err
}

// unlessAway returns err unless stores, or ClickHouse, are unavailable, which is reported elsewhere: a later look finds
// the rest.
func unlessAway(err error) error {
	if retry.ClassOf(err) == retry.ClassUnavailable {
		return nil
	}
	return err
}

// sweepBlocked returns a function that returns why a sweep may not work on a store now.
func (a *App) sweepBlocked(k *client.Controls, name string, of StoreName) func(context.Context) error {
	begun, _ := a.stores.configured(of)
	return func(context.Context) error {
		now, err := a.stores.configured(of)
		switch {
		case k.Sweep(name) || k.Paused(schemas.RoleSweeper, of.Account, of.Store):
			return sweep.ErrPaused
		case err == nil && now.cfg.Place() != begun.cfg.Place():
			err = errors.New("the store was moved to another place")
		}
		if err != nil { // a round ends with its store
			return fmt.Errorf("%w: %w", sweep.ErrNotNow, err)
		}
		return nil
	}
}

// whileAnswering returns blocked, or that a store does not answer: its work would wait in delay lanes, where no lag
// counts it.
func (a *App) whileAnswering(of StoreName, blocked func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := blocked(ctx); err != nil {
			return err
		}
		st, err := a.stores.configured(of)
		if err == nil {
			err = st.Marker(ctx)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", sweep.ErrNotNow, err)
		}
		return nil
	}
}

// lagOf returns a function that returns the number of records that roles have not handled.
func (a *App) lagOf(roles ...schemas.Role) func(context.Context) (int64, error) {
	return func(ctx context.Context) (n int64, err error) {
		lag, err := a.admin.Lag(ctx, roles...)
		for _, role := range roles {
			n += lag[role]
		}
		return n, err
	}
}

func (a *App) fixityRounds() sweep.FixityRounds {
	return sweep.FixityRounds{Due: dueCopies{a}, Lag: a.lagOf(schemas.RoleChecker),
		Large: int64(a.cfg.Duplication.LargeThreshold),
		Checked: func(ctx context.Context, account, store, space string) (bool, error) {
			return read.HasFinalCheck(ctx, a.db, account, store, space)
		}}
}

// fixitySplits returns the splits of the periodic fixity sweep: the stores.
func (a *App) fixitySplits(w sweeping) (all []sweep.Split, err error) {
	for _, n := range a.stores.storeNames() {
		m, err := a.fixityRounds().Split(sweep.Request{Account: n.Account, Store: n.Store, Period: a.cfg.Fixity.Period})
		if err != nil {
			return nil, err
		}
		m.Blocked = a.whileAnswering(n, a.sweepBlocked(w.controls, sweep.FixitySweep, n))
		all = append(all, m)
	}
	return all, nil
}

// SweepFixity runs one round of the fixity sweep to its end: it publishes a task for every copy
// that is due.
func (a *App) SweepFixity(ctx context.Context, r sweep.Request) (result sweep.Result, err error) {
	of := StoreName{r.Account, r.Store}
	if _, err := a.stores.configured(of); err != nil {
		return result, err
	}
	m, err := a.fixityRounds().Split(r)
	if err != nil {
		return result, err
	}
	err = a.inCommand(ctx, func(ctx context.Context, w sweeping) error {
		m.Blocked = a.sweepBlocked(w.controls, sweep.FixitySweep, of)
		results, err := w.Rounds(ctx, []sweep.Split{m})
		if len(results) > 0 {
			result = results[0]
		}
		return err
	})
	return result, err
}

// dueCopies reads the due copies from the state tables.
type dueCopies struct{ a *App }

// Due implements sweep.Due. If tables lack records, the due copies are unknown, and the round waits
// for a rebuild. The gaps are checked before and after the read, since a table may be filled or
// emptied meanwhile.
func (d dueCopies) Due(
	ctx context.Context, q schemas.DueQuery,
) (copies []schemas.KnownCopy, end schemas.DueCursor, err error) {
	if err := d.a.requireNoGaps(ctx); err != nil {
		return nil, end, err
	}
	if copies, end, err = read.FixityDue(ctx, d.a.db, q); err != nil {
		return nil, end, err
	}
	return copies, end, d.a.requireNoGaps(ctx)
}

func (a *App) requireNoGaps(ctx context.Context) error {
	gaps, err := a.findGaps(ctx)
	if err == nil {
		err = clickhouse.CheckGaps(gaps)
	}
	return retry.Unavailable(err)
}

// spaceLists remembers the spaces of stores for a while, since listing them may take long.
type spaceLists struct {
	mu      sync.Mutex // guards byStore
	byStore map[StoreName]spaceList
}

type spaceList struct {
	at     time.Time
	spaces []string
}

// spaceListTimeout bounds the listing of the spaces of a store.
const spaceListTimeout = time.Minute

// spaceListAge is how long the spaces of a store are remembered.
const spaceListAge = 5 * time.Minute

func newSpaceLists() *spaceLists { return &spaceLists{byStore: map[StoreName]spaceList{}} }

// spacesOf returns the spaces that a store has, and those that it has according to the records.
func (a *App) spacesOf(ctx context.Context, n StoreName, l *spaceLists) (spaces []string, err error) {
	l.mu.Lock()
	known, ok := l.byStore[n]
	l.mu.Unlock()
	if ok && time.Since(known.at) < spaceListAge {
		return known.spaces, nil
	}
	if spaces, err = read.SpacesOnRecord(ctx, a.db, n.Account, n.Store); err != nil {
		return nil, err
	}
	st, err := a.stores.configured(n)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, spaceListTimeout, fmt.Errorf("no answer within %s", spaceListTimeout))
	defer cancel()
	for space, err := range st.Spaces(ctx) {
		if err != nil {
			return nil, fmt.Errorf("list the spaces of store %s/%s: %w", n.Account, n.Store, err)
		}
		spaces = append(spaces, space)
		retry.Alive(ctx)
	}
	slices.Sort(spaces)
	spaces = slices.Compact(spaces)
	l.mu.Lock()
	l.byStore[n] = spaceList{time.Now(), spaces}
	l.mu.Unlock()
	return spaces, nil
}
