package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/deletion"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/policy"
)

const (
	// countInterval is the time between two counts of the deletes of a list that grows, or is being worked off.
	countInterval = 5 * time.Second
	// recountInterval is the time between two counts of a list that seems not to change.
	recountInterval = 5 * time.Minute
	// growingFor is how long a list counts as growing after a delete was put on it. Its result is in ClickHouse by then.
	growingFor = 30 * time.Second
	// reminderInterval is the time between two reminders of a list.
	reminderInterval = 24 * time.Hour
	// orderedAtOnce is the number of deletes of a list that are ordered at once.
	orderedAtOnce = 1000
)

// deleteLists connects the brakes on deletes and on rewrites, and their lists, with the topics, the tables and the
// incidents. The copier uses the brake on rewrites, and the deleter orders the lists of both.
type deleteLists struct {
	app         *App
	brake       *brake.Brake
	rewrites    *brake.Brake
	checkpoints *kafka.Table
	clockRead   atomic.Pointer[time.Time] // Kafka's time of the newest checkpoint kafkaClockSweep
	results     *admin.Watermark          // of duplication.results

	mu    sync.Mutex
	lists map[incident.Subject]*listTimes // guarded by mu
}

// listTimes are the times that decide when the items of a list are counted.
type listTimes struct {
	grew, counted time.Time
	items         uint64 // at the last count
}

var _ deletion.Lists = (*deleteLists)(nil)

// heldLists returns the lists of this process, and at the first call their parts.
func (a *App) heldLists() (*deleteLists, []part, error) {
	if a.deleteLists != nil {
		return a.deleteLists, nil, nil
	}
	l, err := a.newDeleteLists()
	if err != nil {
		return nil, nil, err
	}
	a.deleteLists = l
	return l, []part{{"brake", l.checkpoints.Run}}, nil
}

func (a *App) newDeleteLists() (*deleteLists, error) {
	l := &deleteLists{app: a, lists: map[incident.Subject]*listTimes{}}
	deletes, rewrites := brake.NewLedger(brake.Deletes), brake.NewLedger(brake.Rewrites)
	var err error
	l.checkpoints, err = kafka.NewTable(a.kafka, schemas.Checkpoints, func(key []byte, d *schemas.Delivery) error {
		c, _ := d.Body.(*pb.Checkpoint) // nil for a tombstone
		if c.GetSweep() == kafkaClockSweep {
			l.clockRead.Store(&d.Timestamp)
		}
		return errors.Join(deletes.Apply(key, c, d.Timestamp), rewrites.Apply(key, c, d.Timestamp))
	})
	if err != nil {
		return nil, fmt.Errorf("make the table of checkpoints: %w", err)
	}
	l.checkpoints.OnUnreadable(func(key []byte, _ time.Time, _ error) {
		deletes.Unreadable(key)
		rewrites.Unreadable(key)
	})
	l.results = a.admin.NewWatermark(schemas.DuplicationResults, map[schemas.Role][]schemas.Topic{
		schemas.RoleSink: {schemas.DuplicationResults}})
	deps := brake.Deps{
		Ledger: deletes, CatchUp: l.catchUpCounts, Publisher: a.producer, Now: a.kafka.Clock.Now, Live: l.live,
		History: l.history(read.DeletesSince), Limits: a.limitsFor(brake.Deletes),
		Closed:  func(space schemas.Copy, list string) bool { return a.incidentBoard.WasClosed(listSubject(space, list)) },
		Refused: l.refused, OnHeld: l.held, Park: kafka.Park,
	}
	if l.brake, err = brake.New(deps); err != nil {
		return nil, err
	}
	deps.Ledger, deps.History, deps.Limits = rewrites, l.history(read.RewritesSince), a.limitsFor(brake.Rewrites)
	l.rewrites, err = brake.New(deps)
	return l, err
}

// catchUp returns when this process knows what the owner of its partitions before it has counted, and which lists it
// has opened and closed.
func (l *deleteLists) catchUp(ctx context.Context) error {
	return errors.Join(l.app.incidents.CatchUp(ctx), l.catchUpCounts(ctx))
}

// catchUpCounts reads the checkpoints to the end, and Kafka's clock if the process has not read it.
func (l *deleteLists) catchUpCounts(ctx context.Context) error {
	if l.app.kafka.Clock.IsSure() {
		return l.checkpoints.CatchUp(ctx)
	}
	return l.app.readClock(ctx, l.checkpoints, func() time.Time { return *l.clockRead.Load() })
}

// limitsFor returns the limits of a brake: those of the rules of a space, or else the configured ones.
func (a *App) limitsFor(k brake.Kind) func(account, space string) brake.Limits {
	return func(account, space string) brake.Limits {
		rules, _ := a.policyRegistry.Rules(account, space)
		return brakeLimits(k, a.cfg, rules)
	}
}

func brakeLimits(k brake.Kind, cfg *config.Config, rules policy.Rules) brake.Limits {
	own, share, count := rules.Brake.Deletes, cfg.Deletes.MaxShare, cfg.Deletes.MaxCount
	if k == brake.Rewrites {
		own, share, count = rules.Brake.Rewrites, cfg.Replaced.MaxShare, cfg.Replaced.MaxCount
	}
	return brake.Limits{MaxShare: cmp.Or(own.MaxShare, float64(share)), MaxCount: cmp.Or(own.MaxCount, int64(count))}
}

// listSubject returns the subject of the incident of a list.
func listSubject(space schemas.Copy, list string) incident.Subject {
	s := incident.Subject{
		Account: space.Account, Store: space.Store, Space: space.Space, Kind: incident.DeletesHeld, Name: list}
	if brake.ReasonOf(list) == brake.ReasonRewrites {
		s.Kind = incident.RewritesHeld
	}
	return s
}

// HasList reports whether incidents of a kind have a list of deletes or rewrites that wait for approval.
func HasList(kind string) bool { return kind == incident.DeletesHeld || kind == incident.RewritesHeld }

// heldKind returns the brake of a list.
func heldKind(list string) brake.Kind {
	if brake.ReasonOf(list) == brake.ReasonRewrites {
		return brake.Rewrites
	}
	return brake.Deletes
}

// listOf returns the space and the name of the list that an incident is about.
func listOf(s incident.Subject) (schemas.Copy, string) {
	return schemas.Copy{Account: s.Account, Store: s.Store, Space: s.Space}, s.Name
}

// refused returns the lists of a space whose refusal is being carried out.
func (l *deleteLists) refused(space schemas.Copy) (lists []string) {
	for _, s := range l.app.incidentBoard.RefusedIn(space.Account, space.Store, space.Space) {
		if HasList(s.Kind) {
			_, list := listOf(s)
			lists = append(lists, list)
		}
	}
	return lists
}

// held opens the incident of a list, if it is not open.
func (l *deleteLists) held(ctx context.Context, space schemas.Copy, list, cause string) error {
	about := listSubject(space, list)
	l.mu.Lock()
	t := l.lists[about]
	if t == nil {
		t = new(listTimes)
		l.lists[about] = t
	}
	t.grew = time.Now()
	l.mu.Unlock()
	if l.app.incidentBoard.IsOpen(about) {
		return nil
	}
	return l.app.incidentBoard.Open(ctx, about,
		fmt.Sprintf("%s wait for approval, and the copies are kept: %s", heldKind(list), cause))
}

// fresh calls do for tables that have everything that was published before the call, of the topics of marks. The task
// needs no worker meanwhile.
func (l *deleteLists) fresh(ctx context.Context, do func(context.Context) error, marks ...*admin.Watermark) error {
	return kafka.Park(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, l.app.cfg.Fixity.FreshWait,
			fmt.Errorf("the tables did not answer within %s", l.app.cfg.Fixity.FreshWait))
		defer cancel()
		committed := map[schemas.Role][]schemas.Progress{}
		for _, m := range marks {
			more, err := m.Wait(ctx)
			if err != nil {
				return err
			}
			for role, progress := range more {
				committed[role] = append(committed[role], progress...)
			}
		}
		// Before and after, as fresh reads of records do: a table may be filled or emptied meanwhile.
		return between(func() error {
			return checkGaps(ctx, l.app.db, committed)
		}, func() error { return do(ctx) })
	})
}

func (l *deleteLists) live(ctx context.Context, space schemas.Copy) (n int64, err error) {
	err = l.fresh(ctx, func(ctx context.Context) error {
		n, err = read.LiveCopies(ctx, l.app.db, space)
		return err
	}, l.app.watermark)
	return n, err
}

// history returns brake.Deps.History of what a query counts.
func (l *deleteLists) history(
	count func(context.Context, *clickhouse.DB, schemas.Copy, time.Time) ([]read.DeleteCount, error),
) func(context.Context, schemas.Copy, time.Time) (brake.History, error) {
	return func(ctx context.Context, space schemas.Copy, since time.Time) (h brake.History, err error) {
		err = l.fresh(ctx, func(ctx context.Context) (err error) {
			if h.Live, err = read.LiveCopies(ctx, l.app.db, space); err != nil {
				return err
			}
			counts, err := count(ctx, l.app.db, space, since)
			h.Executed = nil
			for _, c := range counts {
				h.Executed = append(h.Executed, brake.Executed{At: c.At, Count: int64(c.Count)})
			}
			return err
		}, l.app.watermark, l.results)
		return h, err
	}
}

// Waiting implements deletion.Lists.
func (l *deleteLists) Waiting(ctx context.Context, p deletion.ListPage) (page []deletion.Listed, err error) {
	q := read.ListQuery{Space: p.Space, List: p.List, Until: p.Until, After: p.After, Waiting: true, Limit: orderedAtOnce}
	get := func(ctx context.Context) error {
		rows, err := read.ListedDeletes(ctx, l.app.db, q)
		page = nil
		for _, r := range rows {
			page = append(page, deletion.Listed{
				Item: r.Item, SourceStore: r.SourceStore, Deleted: r.Deleted, Approved: r.Approved, Reason: r.Reason,
				Changed: r.Deleted, Version: r.Version, Digests: r.Digests})
		}
		return err
	}
	if p.After == "" { // the list is closed: the rest of it cannot grow
		return page, l.fresh(ctx, get, l.results)
	}
	return page, get(ctx)
}

// Decide implements deletion.Lists.
func (l *deleteLists) Decide(
	ctx context.Context, space schemas.Copy, list string, by deletion.Decision,
) (bool, error) {
	return l.app.incidentBoard.Decide(ctx, listSubject(space, list),
		incident.Decision{By: by.Who, Ref: by.Action, Reason: by.Why, Refused: by.Refused})
}

// Ordered implements deletion.Lists.
func (l *deleteLists) Ordered(ctx context.Context, space schemas.Copy, list, detail string) error {
	return l.app.incidentBoard.Ordered(ctx, listSubject(space, list), detail)
}

// report counts the items of the open lists, publishes reminders, and closes the incident of a list when each item has
// a result, until ctx is done.
func (l *deleteLists) report(ctx context.Context) error {
	t := time.NewTicker(countInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		board := l.app.incidentBoard
		for _, about := range append(board.OpenOf(incident.DeletesHeld), board.OpenOf(incident.RewritesHeld)...) {
			if err := l.reportList(ctx, about); err != nil && ctx.Err() == nil {
				l.app.log.Warn("count what waits for approval on a list", "incident", about.Key(), "err", err)
			}
		}
	}
}

// due reports whether the items of a list are to be counted now.
func (l *deleteLists) due(about incident.Subject) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.lists[about]
	if t == nil {
		t = new(listTimes)
		l.lists[about] = t
	}
	now := time.Now()
	phase, _ := l.app.incidentBoard.PhaseOf(about)
	if phase == incident.Undecided && now.Sub(t.grew) > growingFor && now.Sub(t.counted) < recountInterval {
		return false
	}
	t.counted = now
	return true
}

func (l *deleteLists) reportList(ctx context.Context, about incident.Subject) error {
	board := l.app.incidentBoard
	if !l.due(about) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.app.cfg.Fixity.FreshWait)
	defer cancel()
	phase, refused := board.PhaseOf(about) // before the count
	space, list := listOf(about)
	p, err := read.ProgressOfList(ctx, l.app.db, space, list)
	if err != nil {
		return err
	}
	l.counted(about, p.Items)
	detail := describeList(heldKind(list), p, phase != incident.Undecided)
	if refused {
		detail = fmt.Sprintf("%d of %d restores have ended, %d items are back", p.Ended, p.Items, p.Restored)
	}
	switch {
	case phase == incident.Ordered && p.Ended >= p.Items: // all were in the table when they were ordered
		return board.Close(ctx, about, detail)
	case p.Items == 0: // not in the table yet
		return nil
	}
	if err := board.Update(ctx, about, detail); err != nil {
		return err
	}
	return board.Remind(ctx, about, reminderInterval, detail)
}

// counted records how much is on a list. One that has grown, by any process, is counted again soon.
func (l *deleteLists) counted(about incident.Subject, items uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.lists[about]; t.items != items {
		t.items, t.grew = items, time.Now()
	}
}

// describeList says how much is on a list.
func describeList(k brake.Kind, p read.ListProgress, approved bool) string {
	if approved {
		done := "deleted"
		if k == brake.Rewrites {
			done = "replaced"
		}
		return fmt.Sprintf("%d of %d %s have ended, %d copies were %s", p.Ended, p.Items, k, p.Done, done)
	}
	return fmt.Sprintf("%d %s wait for approval, the first since %s",
		p.Items-min(p.Items, p.Ended), k, p.First.UTC().Format(time.RFC3339))
}
