package app

import (
	"context"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/groups"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// sweeper runs the rounds of the sweeps, and the jobs, as they become due. The processes with the role divide the
// splits.
func (a *App) sweeper() ([]part, error) {
	known, err := a.newCheckpoints()
	if err != nil {
		return nil, err
	}
	var all []*periodicRounds
	lookNow := func() {
		for _, p := range all {
			p.lookNow()
		}
	}
	if a.registry != nil {
		a.sweepMetrics = sweep.NewMetrics(a.registry, sweepLabels())
		a.registry.MustRegister(newSweepTimes(known))
	}
	owner, err := kafka.NewOwnership(a.kafka, schemas.RoleSweeper, schemas.Checkpoints, lookNow)
	if err != nil {
		return nil, err
	}
	owns := func(sweep, split string) bool { return owner.Owns(schemas.Key(sweep, split)) }
	sweeps, err := a.sweeps(known, owns)
	if err != nil {
		return nil, err
	}
	jobs, err := a.jobs(known, owns)
	if err != nil {
		return nil, err
	}
	all = append(jobs, sweeps)
	known.onRequest = sweeps.lookNow
	a.onPolicy = append(a.onPolicy, sweeps.lookNow) // a new pair is compared at once
	a.onJobRequest = lookNow
	monitor, stores := &sweepMonitor{a, nil, known.of}, newStoreMonitor(a)
	parts := []part{
		a.periodic("group offsets", groupOffsetInterval, a.publishGroupOffsets),
		{"checkpoints", known.Run},
		{"owner of splits", owner.Run},
		afterTables("monitor of sweeps", func(ctx context.Context) error { return monitor.run(ctx, owns) }, a.incidents,
			a.actions, known.Table),
		afterTables("monitor of stores", func(ctx context.Context) error { return stores.run(ctx, owns) }, a.incidents,
			a.accounts),
	}
	for _, p := range all {
		monitor.timetables = append(monitor.timetables, p.timetables...)
		parts = append(parts, afterTables(p.name, p.run, a.policies, a.actions, a.incidents, known.Table))
	}
	if a.registry != nil { // the metrics are read
		m := newPairMetrics()
		a.registry.MustRegister(m)
		parts = append(parts, afterTables("policy pairs",
			func(ctx context.Context) error { return a.watchPairs(ctx, m) }, a.policies))
		copies := newCopyMetrics()
		a.registry.MustRegister(copies)
		parts = append(parts, afterTables("copies",
			func(ctx context.Context) error { return a.watchCopies(ctx, copies, owns) }, a.policies))
	}
	return parts, nil
}

// sweeps returns what runs the sweeps.
func (a *App) sweeps(known *checkpoints, owns func(sweep, split string) bool) (*periodicRounds, error) {
	p, err := a.newPeriodic(known, owns, "sweeper", a.cfg.Sweep.Workers)
	if err != nil {
		return nil, err
	}
	w := sweeping{Sweeper: p.Sweeper, controls: a.controls, board: a.incidentBoard, rules: a.policyRegistry,
		gone: &a.goneSpaces, skipped: &a.skippedRounds, known: p.known, budgets: a.newBudgets(p.known)}
	recorded, spaces := newSpaceLists(), newSpaceLists()
	p.add(a.timetable(sweep.FixitySweep), a.spaceSplits(w, a.fixitySweep(w, recorded)))
	p.add(a.timetable(groups.Name), a.spaceSplits(w, a.groupSweep(w, recorded)))
	p.add(a.timetable(StatsSweep),
		func(context.Context) ([]sweep.Split, error) { return a.statsSplits(w), nil })
	reconciled := a.timetable(reconcile.Name)
	reconciled.requested = p.known.isReconcileRequested
	p.add(reconciled, a.spaceSplits(w, a.reconcileSweep(w, spaces)))
	p.add(a.timetable(DuplicationSweep),
		func(ctx context.Context) ([]sweep.Split, error) { return a.pairSplits(ctx, w, spaces) })
	p.kinds = append(p.kinds,
		func(context.Context) ([]sweep.Split, error) { return a.otherRounds(p.known.all(), a.kafka.Clock.Now()) })
	return p, nil
}

// A periodicRounds runs the rounds of splits as they become due.
type periodicRounds struct {
	*sweep.Sweeper
	app        *App
	name       string
	known      *checkpoints
	timetables []*timetable
	kinds      []sweep.Kind
	changed    chan struct{}
}

// newPeriodic returns a periodicRounds without splits, which works on as many pages at once as it has workers.
func (a *App) newPeriodic(
	known *checkpoints, owns func(sweep, split string) bool, name string, workers int,
) (*periodicRounds, error) {
	s, err := a.newSweeper(known, &a.skippedRounds, owns, workers)
	return &periodicRounds{Sweeper: s, app: a, name: name, known: known, changed: make(chan struct{}, 1)}, err
}

// add adds splits whose rounds begin by t.
func (p *periodicRounds) add(t *timetable, splits sweep.Kind) {
	p.timetables, p.kinds = append(p.timetables, t), append(p.kinds, t.of(splits))
}

// lookNow says that rounds may be due now.
func (p *periodicRounds) lookNow() {
	select {
	case p.changed <- struct{}{}:
	default: // a look follows anyway
	}
}

// run runs the rounds until ctx is done.
func (p *periodicRounds) run(ctx context.Context) error {
	ended, cancel := p.app.controls.Watch()
	defer cancel()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-ended:
			case <-p.app.stores.change():
			}
			p.lookNow()
		}
	}()
	return p.Run(retry.Watched(ctx, p.app.sweeperState().MarkProgress), p.kinds, p.changed)
}
