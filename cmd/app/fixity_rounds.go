package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/filter"
)

func (a *App) fixityRounds() sweep.FixityRounds {
	return sweep.FixityRounds{
		Due: a.due(), Lag: a.lagOf(schemas.RoleChecker), Large: int64(a.cfg.Duplication.LargeThreshold),
		Results: roundResults{a}, Queue: taskQueue{a}, Now: a.kafka.Clock.Now,
		Checked: func(ctx context.Context, space schemas.Copy) (bool, error) {
			return read.HasFinalCheck(ctx, a.db, space)
		},
		LagHigh: a.lagHigh,
		Next: func(space schemas.Copy, started time.Time) time.Time {
			return a.scheduleOf(sweep.FixitySweep, space).Next(started, started)
		},
	}
}

// fixityRequest returns the request of a round over a space, as the settings say.
func (a *App) fixityRequest(n StoreName, space string) sweep.Request {
	return sweep.Request{Account: n.Account, Store: n.Store, Space: space,
		Period: a.cfg.Fixity.PeriodOf(n.Account, n.Store, space), Asserts: a.asserts(n),
		ReadPercent: sampleOf(a.stores.of(n).cfg), Requests: checkRequests(a.stores.of(n).cfg)}
}

// asserts reports whether a store is not always read, so that what it asserts counts as a check.
func (a *App) asserts(n StoreName) bool {
	read := a.stores.of(n).cfg.Read
	return read != "" && read != "always"
}

// fixitySweep returns the periodic fixity sweep over the spaces of all stores that have copies on record.
func (a *App) fixitySweep(w sweeping, lists *spaceLists) spaceSweep {
	rounds := a.fixityRounds()
	open := func(n StoreName) bool {
		b, ok := a.cfg.Fixity.BudgetOf(n.Account, n.Store)
		return !ok || b.Open(a.kafka.Clock.Now())
	}
	return spaceSweep{sweep.FixitySweep, a.recordedSpaces(lists), open,
		func(space schemas.Copy, items func(string) bool) (sweep.Split, error) {
			n := StoreName{space.Account, space.Store}
			r := a.fixityRequest(n, space.Space)
			r.Items, r.Budget = items, w.budgets.of(n, true)
			return rounds.Split(r)
		}}
}

// recordedSpaces returns what returns the spaces of a store that have copies on record.
func (a *App) recordedSpaces(lists *spaceLists) func(context.Context, StoreName) ([]string, error) {
	return func(ctx context.Context, n StoreName) ([]string, error) {
		return lists.of(n, func() ([]string, error) { return a.spacesOnRecord(ctx, n) })
	}
}

// abandonedAge is the age of the newest checkpoint of a round after which it counts as abandoned.
const abandonedAge = 24 * time.Hour

// otherRounds returns the splits of the rounds that go on, or are ended, whatever the schedule says: those that an
// operator has skipped are ended, and so are those of the fixity sweep that were abandoned and are not scheduled, as
// their command was interrupted or their space is not selected any more. Fixity rounds that only wait for results go
// on.
func (a *App) otherRounds(points []*pb.Checkpoint, now time.Time) (all []sweep.Split, err error) {
	for _, c := range points {
		if _, ok := splitOf(c); !ok || c.GetFinished() != nil {
			continue
		}
		m, waits := sweep.Split{Sweep: c.GetSweep(), Name: c.GetSplit()}, false
		if name, byHand := strings.CutSuffix(c.GetSweep(), demand); name == sweep.FixitySweep {
			parts := schemas.SplitKey(c.GetSplit())
			r := a.fixityRequest(StoreName{parts[0], parts[1]}, parts[2])
			r.All = byHand
			var e error
			if m, e = a.fixityRounds().Split(r); e != nil {
				err = errors.Join(err, e)
				continue
			}
			waits = sweep.OnlyWaits(c)
			if !waits && (byHand || !a.isScheduled(StoreName{r.Account, r.Store}, r.Space)) &&
				now.Sub(c.GetTime().AsTime()) > abandonedAge {
				m.Skip = "the round was interrupted, and is not scheduled"
			}
		}
		if reason := a.skippedRounds.reason(c.GetRound()); reason != "" {
			m.Skip = reason
		}
		if !waits && m.Skip == "" {
			continue
		}
		m.Only = c.GetRound()
		m.Due = func(*pb.Checkpoint, time.Time) bool { return false } // it goes on, and no other begins
		if m.Pages == nil {
			m.Pages = func(context.Context, sweep.Round, []byte) (sweep.Page, error) { return sweep.Page{}, errSkipped }
			m.Lag = func(context.Context) (int64, error) { return 0, errSkipped }
		}
		all = append(all, m)
	}
	return all, err
}

// errSkipped is the error of a page of a round that is skipped. It is never read.
var errSkipped = errors.New("the round is skipped")

// isScheduled reports whether the fixity sweep has rounds over a space in a store. While an operator has set the
// schedule that counts it has, also if that is off: the rounds under way wait for the next schedule.
func (a *App) isScheduled(n StoreName, space string) bool {
	_, err := a.stores.configured(n)
	is, set := a.schedules.of(sweep.FixitySweep, []schemas.Copy{{Account: n.Account, Store: n.Store, Space: space}},
		a.cfg.Sweep.Fixity)
	return err == nil && (set != "" || !is.Off()) && a.selects(sweep.FixitySweep, n, space)
}

// A FixityRound is the result of a fixity round over one space in a store.
type FixityRound struct {
	SweptSpace
	Prefix string     // of the items; empty: all of the space
	once   sweep.Once // of a round over some items: how far it is
}

// Results returns what selects the results of the round.
func (r FixityRound) Results() read.SpaceRound {
	return read.SpaceRound{Space: r.Copy, Prefix: r.Prefix, Round: r.ID, Since: r.Started}
}

// A FixityRequest selects the copies of fixity rounds over a space of a store, or over each of its spaces.
type FixityRequest struct {
	Account, Store, Space string
	// Prefix selects the items of Space that begin with it, in a round with All; empty: all.
	Prefix string
	// Filter selects spaces, and items in them. A round over some items has no checkpoint, and its report is not of the
	// space.
	Filter filter.Filter
	// Begun, All, Detach, DryRun and OnRequested are those of sweep.Request.
	Begun               time.Time
	All, Detach, DryRun bool
	OnRequested         func(n int64)
	// AnyAge requests checks of copies whatever the age of their last pass, if that is before Begun. Without it the
	// periods of the spaces count.
	AnyAge bool
}

// SweepFixity runs one round of the fixity sweep over the requested space of a store, or over each space that has
// copies on record: it publishes a task for every copy that is due. Unless the request is detached it waits for the
// results, too.
func (a *App) SweepFixity(ctx context.Context, r FixityRequest) (all []FixityRound, err error) {
	of := StoreName{r.Account, r.Store}
	if _, err := a.stores.configured(of); err != nil {
		return nil, err
	}
	spaces := []string{r.Space}
	if r.Space == "" {
		if spaces, err = a.spacesOnRecord(ctx, of); err != nil {
			return nil, err
		}
	}
	var requests []handRound
	for _, space := range spaces {
		if !r.Filter.Selects(r.Account, r.Store, space) {
			continue
		}
		one := handRound{Request: a.fixityRequest(of, space)}
		one.Prefix, one.Items = r.Prefix, r.Filter.Items(r.Account, r.Store, space)
		one.Begun, one.All, one.Detach, one.OnRequested = r.Begun, r.All, r.Detach, r.OnRequested
		if r.AnyAge {
			one.Period = 0
		}
		one.Some = one.Prefix != "" || one.Items != nil
		requests = append(requests, one)
	}
	return a.fixityByHand(ctx, r.DryRun, requests, new(atomic.Bool))
}

// EndFixity ends rounds that SweepFixity has returned, when their results are there. Rounds that another process has
// ended, or replaced, are left alone.
func (a *App) EndFixity(ctx context.Context, rounds []FixityRound, all bool) error {
	var requests []handRound
	begun := new(atomic.Bool)
	begun.Store(true)
	for _, r := range rounds {
		one := handRound{a.fixityRequest(StoreName{r.Account, r.Store}, r.Space), r.once}
		if one.Begun, one.All = r.Started, all; r.once.ID == "" {
			one.Only = r.ID
		} else {
			one.Prefix, one.Some = r.Prefix, true
		}
		requests = append(requests, one)
	}
	_, err := a.fixityByHand(ctx, false, requests, begun)
	return err
}

// Unanswered returns the number of checks of rounds that SweepFixity has returned without a final result: those that
// are lost, or are still repeated.
func (a *App) Unanswered(ctx context.Context, rounds []FixityRound, all bool) (n int64, err error) {
	for _, r := range rounds {
		anyAge := all || a.fixityRequest(StoreName{r.Account, r.Store}, r.Space).Period == 0
		counted, err := read.SpaceRoundCounts(ctx, a.db, r.Results())
		if err != nil {
			return 0, err
		}
		c := sweep.RoundCounts{Progress: sweep.Progress(counted.RoundProgress), Live: counted.Live}
		n += sweep.Unanswered(c, r.Counts[sweep.Requested], anyAge)
	}
	return n, nil
}

// recheckAvailable is how often a command looks whether a store is available again.
const recheckAvailable = 5 * time.Second

// availableByHand returns a function that returns why a command may not request checks of a store now. The host of the
// command needs no access to the store, so that the incident says whether the store is available. When rounds with All
// or Some have begun, the function waits until it is: no other command would continue them.
func (a *App) availableByHand(w sweeping, r sweep.Request, begun *atomic.Bool) func(context.Context) error {
	n := StoreName{r.Account, r.Store}
	blocked := a.sweepBlocked(w.controls, sweep.FixitySweep, n)
	about := incident.Subject{Account: n.Account, Store: n.Store, Kind: incident.StoreUnavailable}
	return func(ctx context.Context) error {
		for logged := false; ; logged = true {
			if err := blocked(ctx); err != nil {
				return err
			}
			switch {
			case !w.board.IsOpen(about):
				begun.Store(true)
				return nil
			case !begun.Load(), !r.All && !r.Some:
				return fmt.Errorf("%w: the store does not answer: incident %s is open", sweep.ErrNotNow, about.Key())
			case !logged:
				a.log.Info("request the other checks when the store answers", "store", schemas.Key(n.Account, n.Store))
			}
			if err := retry.Sleep(ctx, recheckAvailable); err != nil {
				return err
			}
			retry.Alive(ctx)
		}
	}
}

// A handRound is a fixity round of a command. One over some items goes on from where it is.
type handRound struct {
	sweep.Request
	from sweep.Once
}

// fixityByHand runs rounds: first those of all items of a space, and then each of the others. begun is that of
// availableByHand.
func (a *App) fixityByHand(
	ctx context.Context, dry bool, requests []handRound, begun *atomic.Bool,
) (all []FixityRound, err error) {
	if len(requests) == 0 {
		return nil, nil
	}
	rounds := a.fixityRounds()
	err = a.inCommand(ctx, dry, func(ctx context.Context, w sweeping) error {
		var splits, partial []sweep.Split
		byName := map[string]handRound{}
		for _, r := range requests {
			r.Budget = w.budgets.of(StoreName{r.Account, r.Store}, false)
			m, err := rounds.Split(r.Request)
			if err != nil {
				return err
			}
			m.Blocked = a.availableByHand(w, r.Request, begun)
			if byName[m.Name] = r; r.Some && !dry {
				partial = append(partial, m)
			} else {
				splits = append(splits, m)
			}
		}
		ended := func(result sweep.Result, once sweep.Once) {
			r := byName[result.Split]
			at := schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space}
			all = append(all, FixityRound{SweptSpace{Copy: at, Result: result}, r.Prefix, once})
		}
		var results []sweep.Result
		var err error
		if len(splits) > 0 {
			results, err = w.rounds(ctx, splits)
		}
		for _, result := range results {
			ended(result, sweep.Once{})
		}
		for _, m := range partial {
			if err != nil {
				break
			}
			var once sweep.Once
			if once, err = w.Once(ctx, m, byName[m.Name].from); once.ID != "" {
				ended(once.Result, once)
			}
		}
		return err
	})
	return all, err
}

// spacesOnRecord returns the spaces of a store that have copies on record, sorted.
func (a *App) spacesOnRecord(ctx context.Context, n StoreName) (spaces []string, err error) {
	err = a.withoutGaps(ctx, func() (err error) {
		spaces, err = read.SpacesOnRecord(ctx, a.db, n.Account, n.Store)
		return err
	})
	slices.Sort(spaces)
	return spaces, err
}

// A lazyDue makes a read.Due when it is needed.
type lazyDue struct {
	once sync.Once
	due  *read.Due
}

// due returns what selects the copies that are due, one for all rounds of the process. If tables lack records, the due
// copies are unknown, and the round waits for a rebuild.
func (a *App) due() *read.Due {
	a.dueReads.once.Do(func() {
		a.dueReads.due = read.NewDue(a.db)
		a.dueReads.due.Guard = a.withoutGaps
	})
	return a.dueReads.due
}

// roundResults reads the results of rounds. If tables lack records, the results are unknown.
type roundResults struct{ a *App }

// Progress implements sweep.Results.
func (r roundResults) Progress(ctx context.Context, q sweep.RoundQuery) (sweep.Progress, error) {
	p, err := read.SpaceRoundProgress(ctx, r.a.db, spaceRound(q))
	return sweep.Progress(p), err
}

// Counts implements sweep.Results.
func (r roundResults) Counts(ctx context.Context, q sweep.RoundQuery) (c sweep.RoundCounts, ok bool, err error) {
	if err := r.a.requireNoGaps(ctx); err != nil {
		return c, false, err
	}
	if lacks, err := r.stateLacksChecks(ctx); lacks || err != nil {
		return c, false, err
	}
	counts, err := read.SpaceRoundCounts(ctx, r.a.db, spaceRound(q))
	if err != nil {
		return c, false, err
	}
	c = sweep.RoundCounts{Progress: sweep.Progress(counts.RoundProgress), Live: counts.Live, Counts: counts.Counts}
	return c, true, r.a.requireNoGaps(ctx)
}

func spaceRound(q sweep.RoundQuery) read.SpaceRound {
	return read.SpaceRound{Space: schemas.Copy{Account: q.First.Account, Store: q.First.Store, Space: q.First.Space},
		Prefix: q.First.Prefix, Round: q.ID, Started: q.Started, Since: q.Since, PassedBefore: q.First.PassedBefore,
		AttemptedBefore: q.First.AttemptedBefore, Period: q.First.Period, Asserted: q.First.Asserted,
		VerifiedSince: q.VerifiedSince}
}

// stateLacksChecks reports whether copy_state lacks checks that bit_log has, of the topics that there are. Two groups
// write them.
func (r roundResults) stateLacksChecks(ctx context.Context) (bool, error) {
	committed, err := r.a.watermark.Committed(ctx)
	if err != nil {
		return false, err
	}
	at, err := clickhouse.ReadPositions(ctx, r.a.db, r.a.db.Reader(), []string{"bit_log", "copy_state"})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(committed[schemas.RoleSink], func(p schemas.Progress) bool {
		k := clickhouse.PositionKey{Table: "bit_log", Topic: p.Topic, Incarnation: p.Incarnation, Partition: p.Partition}
		checks := at[k]
		k.Table = "copy_state"
		return at[k] < checks
	}), nil
}

// A taskQueue is the topics of the tasks of fixity rounds.
type taskQueue struct{ a *App }

// End implements sweep.Queue.
func (q taskQueue) End(ctx context.Context) (sweep.Offsets, error) {
	end := sweep.Offsets{}
	for _, topic := range []schemas.Topic{schemas.FixityHigh, schemas.FixityLow, schemas.FixityLarge} {
		ends, err := q.a.admin.EndOffsets(ctx, topic)
		if err != nil {
			return nil, err
		}
		end[topic] = ends
	}
	return end, nil
}

// Handled implements sweep.Queue.
func (q taskQueue) Handled(ctx context.Context, end sweep.Offsets) (bool, error) {
	for topic, ends := range end {
		done, err := q.a.admin.Committed(ctx, schemas.RoleChecker, topic)
		if err != nil {
			return false, err
		}
		for partition, at := range ends {
			if done[partition] < at {
				return false, nil
			}
		}
	}
	return true, nil
}
