package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/space"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/filter"
	"github.com/millrace/millrace/streams/sweep/groups"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// Sweeps returns the names of the sweeps.
func Sweeps() []string {
	return []string{sweep.FixitySweep, reconcile.Name, DuplicationSweep, StatsSweep, groups.Name}
}

// demand is what the names of rounds by hand have after that of the sweep.
const demand = ".demand"

// sweeping is what the splits of sweeps need of the process or the command that runs them.
type sweeping struct {
	*sweep.Sweeper
	controls *client.Controls
	board    *incident.Board
	rules    *policy.Registry
	gone     *space.Gone
	skipped  *skippedRounds
	known    *checkpoints
	budgets  *fixityBudgets
	dry      bool // it publishes nothing
}

// checkpoints holds the newest checkpoint of every split of every sweep, and of the brakes.
type checkpoints struct {
	*kafka.Table
	app       *App
	mu        sync.Mutex // guards the fields below
	byKey     map[string]*pb.Checkpoint
	times     map[string]sweepTimes // by sweep
	clockRead time.Time             // Kafka's time of the newest checkpoint kafkaClockSweep
	// onRequest is called after a request of rounds of reconcile; nil: not called. It is set before Run.
	onRequest func()
}

func (a *App) newCheckpoints() (*checkpoints, error) {
	c := &checkpoints{app: a, byKey: map[string]*pb.Checkpoint{}, times: map[string]sweepTimes{}}
	var err error
	c.Table, err = kafka.NewTable(a.kafka, schemas.Checkpoints, func(key []byte, d *schemas.Delivery) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		at, _ := d.Body.(*pb.Checkpoint) // nil for a tombstone
		c.byKey[string(key)] = at
		if at != nil {
			c.times[at.GetSweep()] = c.times[at.GetSweep()].with(at)
		}
		if at.GetSweep() == kafkaClockSweep {
			c.clockRead = d.Timestamp
		}
		if at.GetSweep() == reconcile.Requests && c.onRequest != nil {
			c.onRequest()
		}
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

// newSweeper makes a sweeper. It is of a command if owns is nil.
func (a *App) newSweeper(
	known *checkpoints, skipped *skippedRounds, owns func(sweep, split string) bool, workers int,
) (*sweep.Sweeper, error) {
	d := sweep.SweeperDeps{Publisher: a.producer, Owns: owns, Skipped: skipped.reason, Log: a.log,
		Checkpoint: known.of, CatchUp: known.CatchUp, LastEnd: a.lastEnd}
	if owns != nil {
		d.Looking, d.Metrics = a.sweeperState().AddBusy, a.sweepMetrics
	}
	return sweep.NewSweeper(sweep.SweeperConfig{Workers: workers,
		Config: sweep.Config{MaxBacklog: int64(a.cfg.Sweep.MaxBacklog), Now: a.kafka.Clock.Now}}, d)
}

// lastEnd returns when a round of a split ended last, by the log of jobs. Jobs that are no sweeps work without
// ClickHouse: of these it is not asked.
func (a *App) lastEnd(ctx context.Context, name, split string) (time.Time, error) {
	if a.db == nil || !slices.Contains(Sweeps(), strings.TrimSuffix(name, demand)) {
		return time.Time{}, nil
	}
	return read.LastEnd(ctx, a.db, name+"/"+split)
}

func (a *App) sweeperState() *metrics.Role {
	return a.kafka.Metrics.Role(schemas.RoleSweeper, schemas.High)
}

// inCommand runs do with a sweeper for a command, when the topics that it needs have been read. With dry it is for a
// dry run.
func (a *App) inCommand(ctx context.Context, dry bool, do func(context.Context, sweeping) error) error {
	known, err := a.newCheckpoints()
	if err != nil {
		return err
	}
	w := sweeping{board: incident.NewBoard(a.producer, a.log), rules: policy.NewRegistry(a.stores.IDs),
		gone: new(space.Gone), skipped: new(skippedRounds), dry: dry, known: known, budgets: a.newBudgets(known)}
	if w.Sweeper, err = a.newSweeper(known, w.skipped, nil, a.cfg.Sweep.Workers); err != nil {
		return err
	}
	err = a.withControls(ctx, func(ctx context.Context, k *client.Controls) error {
		w.controls = k
		return a.readTable(ctx, schemas.Policies, applyTo(w.rules), func(ctx context.Context) error {
			return a.readTable(ctx, schemas.Incidents, incidentsTo(w.board.Apply), func(ctx context.Context) error {
				return a.readTable(ctx, schemas.Admin, a.actionsTo(w.gone, w.skipped), func(ctx context.Context) error {
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

// byHand runs one round of the split of each part, beside the scheduled rounds, and calls ended with the results. split
// also reports whether the round is over some items only. Such a round has no checkpoint and no report: another round
// must not continue it, and it says nothing about the space.
func byHand[T any](
	ctx context.Context, w sweeping, parts []T, split func(T) (m sweep.Split, some bool, err error),
	ended func(T, sweep.Result),
) error {
	var splits, partial []sweep.Split
	byName := map[string]T{}
	for _, p := range parts {
		m, some, err := split(p)
		if err != nil {
			return err
		}
		m.Sweep += demand
		if byName[m.Name] = p; some && !w.dry {
			m.Report = nil // it would be taken for one of the space
			partial = append(partial, m)
		} else {
			splits = append(splits, m)
		}
	}
	results, err := w.rounds(ctx, splits)
	for i := 0; i < len(partial) && err == nil; i++ {
		var o sweep.Once
		if o, err = w.Once(ctx, partial[i], o); o.ID != "" {
			results = append(results, o.Result)
		}
	}
	for _, r := range results {
		ended(byName[r.Split], r)
	}
	return err
}

// selects reports whether the scheduled rounds of a sweep cover a space in a store.
func (a *App) selects(name string, n StoreName, space string) bool {
	return a.filter(name).Selects(n.Account, n.Store, space)
}

// filter returns what the scheduled rounds of a sweep cover. The settings have been checked.
func (a *App) filter(name string) filter.Filter {
	of := map[string]config.SpaceFilter{
		sweep.FixitySweep: a.cfg.Sweep.Spaces.Fixity, reconcile.Name: a.cfg.Sweep.Spaces.Reconcile,
		DuplicationSweep: a.cfg.Sweep.Spaces.Duplication, groups.Name: a.cfg.Sweep.Spaces.Groups,
	}[name]
	f, err := filter.New(of.Include, of.Exclude) // of the stats sweep there is none
	if err != nil {
		panic("the settings were not checked: " + err.Error())
	}
	return f
}

// rounds runs the rounds of splits, or only reads their pages.
func (w sweeping) rounds(ctx context.Context, splits []sweep.Split) (results []sweep.Result, err error) {
	if !w.dry {
		return w.Rounds(ctx, splits)
	}
	if err := w.known.Table.CatchUp(ctx); err != nil { // it publishes nothing
		return nil, err
	}
	for _, m := range splits {
		r, err := sweep.DryRun(ctx, m, w.known.of(m.Sweep, m.Name))
		if err != nil {
			return results, err
		}
		results = append(results, r)
	}
	return results, nil
}

// report returns what opens or closes an incident of a subject; a dry run does neither.
func (w sweeping) report(
	do func(context.Context, incident.Subject, string) error, about incident.Subject,
) func(ctx context.Context, detail string) error {
	return func(ctx context.Context, detail string) error {
		if w.dry {
			return nil
		}
		return do(ctx, about, detail)
	}
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

// markerAge is how long the answer of a store about its marker counts for all splits of the store.
const markerAge = 5 * time.Second

// answers remembers whether stores have answered.
type answers struct {
	mu      sync.Mutex // guards byStore
	byStore map[StoreName]answer
}

type answer struct {
	at  time.Time
	err error
}

// of returns the error of the marker of a store. Concurrent callers may ask more than once.
func (l *answers) of(ctx context.Context, n StoreName, st markerReader) error {
	l.mu.Lock()
	last, ok := l.byStore[n]
	l.mu.Unlock()
	if ok && time.Since(last.at) < markerAge {
		return last.err
	}
	err := st.Marker(ctx)
	if ctx.Err() != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byStore == nil {
		l.byStore = map[StoreName]answer{}
	}
	l.byStore[n] = answer{time.Now(), err}
	return err
}

type markerReader interface {
	Marker(ctx context.Context) error
}

// storeBlocked returns a function that returns why a sweep may not work on a store now, or that the store does not
// answer.
func (a *App) storeBlocked(k *client.Controls, name string, of StoreName) func(context.Context) error {
	return a.whileAnswering(of, a.sweepBlocked(k, name, of))
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
			err = a.answers.of(ctx, of, st)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", sweep.ErrNotNow, err)
		}
		return nil
	}
}

// lagHigh returns the number of records of the topics of checks before those of rounds that the checker has not
// handled.
func (a *App) lagHigh(ctx context.Context) (int64, error) {
	return a.unhandled(ctx, schemas.RoleChecker, schemas.FixityHigh, schemas.FixityLarge)
}

// unhandled returns the number of records of topics that a role has not handled.
func (a *App) unhandled(ctx context.Context, role schemas.Role, topics ...schemas.Topic) (n int64, err error) {
	for _, topic := range topics {
		done, err := a.admin.Committed(ctx, role, topic) // first: a commit made in between would hide lag
		if err != nil {
			return 0, err
		}
		log, err := a.admin.Extent(ctx, topic)
		if err != nil {
			return 0, err
		}
		for partition, end := range log.Ends {
			n += max(0, end-max(done[partition], log.Starts[partition]))
		}
	}
	return n, nil
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
