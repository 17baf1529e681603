package app

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
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

// deleteLists connects the brake on deletes and its lists with the topics, the tables and the incidents.
type deleteLists struct {
	app         *App
	brake       *deletion.Brake
	checkpoints *kafka.Table
	results     *admin.Watermark // of duplication.results

	mu    sync.Mutex
	lists map[incident.Subject]*listTimes // guarded by mu
}

// listTimes says when the deletes of a list are to be counted.
type listTimes struct {
	grew, counted time.Time
}

var _ deletion.Lists = (*deleteLists)(nil)

func (a *App) newDeleteLists() (*deleteLists, error) {
	l := &deleteLists{app: a, lists: map[incident.Subject]*listTimes{}}
	ledger := deletion.NewLedger()
	var err error
	l.checkpoints, err = kafka.NewTable(a.kafka, schemas.Checkpoints, func(key []byte, d *schemas.Delivery) error {
		c, _ := d.Body.(*pb.Checkpoint) // nil for a tombstone
		return ledger.Apply(key, c)
	})
	if err != nil {
		return nil, fmt.Errorf("make the table of checkpoints: %w", err)
	}
	l.checkpoints.OnUnreadable(func(key []byte, _ time.Time, _ error) { ledger.Unreadable(key) })
	l.results = a.admin.NewWatermark(schemas.DuplicationResults, map[schemas.Role][]schemas.Topic{
		schemas.RoleSink: {schemas.DuplicationResults}})
	l.brake, err = deletion.NewBrake(deletion.BrakeDeps{
		Ledger: ledger, CatchUp: l.checkpoints.CatchUp, Publisher: a.producer, Live: l.live, History: l.history,
		Limits: func(account, space string) deletion.Limits {
			rules, _ := a.policyRegistry.Rules(account, space)
			return a.limitsFor(rules)
		},
		Closed: func(space schemas.Copy, list string) bool { return a.incidentBoard.WasClosed(listSubject(space, list)) },
		OnHeld: l.held, Park: kafka.Park,
	})
	return l, err
}

// limitsFor returns the limits of the brake for a space with the given rules: those of the rules, or else the
// configured ones.
func (a *App) limitsFor(rules policy.Rules) deletion.Limits {
	own := rules.Brake.Deletes
	return deletion.Limits{
		MaxShare: cmp.Or(own.MaxShare, float64(a.cfg.Deletes.MaxShare)),
		MaxCount: cmp.Or(own.MaxCount, int64(a.cfg.Deletes.MaxCount)),
	}
}

// listSubject returns the subject of the incident of a list.
func listSubject(space schemas.Copy, list string) incident.Subject {
	s := incident.Subject{Account: space.Account, Store: space.Store, Space: space.Space, Kind: incident.DeletesHeld}
	if list != deletion.UnlistedDeletes {
		s.Name = list
	}
	return s
}

// listOf returns the space and the name of the list that an incident is about.
func listOf(s incident.Subject) (schemas.Copy, string) {
	list := s.Name
	if list == "" {
		list = deletion.UnlistedDeletes
	}
	return schemas.Copy{Account: s.Account, Store: s.Store, Space: s.Space}, list
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
	return l.app.incidentBoard.Open(ctx, about, "deletes wait for approval, and the copies are kept: "+cause)
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
		check := func() error {
			gaps, err := clickhouse.Gaps(ctx, l.app.db, committed)
			if err != nil {
				return err
			}
			return clickhouse.CheckGaps(gaps)
		}
		// Before and after, as fresh reads of records do: a table may be filled or emptied meanwhile.
		if err := check(); err != nil {
			return err
		}
		if err := do(ctx); err != nil {
			return err
		}
		return check()
	})
}

func (l *deleteLists) live(ctx context.Context, space schemas.Copy) (n int64, err error) {
	err = l.fresh(ctx, func(ctx context.Context) error {
		n, err = read.LiveCopies(ctx, l.app.db, space)
		return err
	}, l.app.watermark)
	return n, err
}

func (l *deleteLists) history(ctx context.Context, space schemas.Copy, since time.Time) (deletion.History, error) {
	var h deletion.History
	err := l.fresh(ctx, func(ctx context.Context) (err error) {
		if h.Live, err = read.LiveCopies(ctx, l.app.db, space); err != nil {
			return err
		}
		counts, err := read.DeletesSince(ctx, l.app.db, space, since)
		h.Deletes = nil
		for _, c := range counts {
			h.Deletes = append(h.Deletes, deletion.Executed{At: c.At, Count: int64(c.Count)})
		}
		return err
	}, l.app.watermark, l.results)
	return h, err
}

// Waiting implements deletion.Lists.
func (l *deleteLists) Waiting(ctx context.Context, p deletion.ListPage) (page []deletion.Listed, err error) {
	q := read.ListQuery{Space: p.Space, List: p.List, Until: p.Until, After: p.After, Waiting: true, Limit: orderedAtOnce}
	get := func(ctx context.Context) error {
		rows, err := read.ListedDeletes(ctx, l.app.db, q)
		page = nil
		for _, r := range rows {
			page = append(page, deletion.Listed{
				Item: r.Item, SourceStore: r.SourceStore, Deleted: r.Deleted, Approved: r.Approved, Reason: r.Reason})
		}
		return err
	}
	if p.After == "" { // the list is closed: the rest of it cannot grow
		return page, l.fresh(ctx, get, l.results)
	}
	return page, get(ctx)
}

// Ordered implements deletion.Lists.
func (l *deleteLists) Ordered(ctx context.Context, space schemas.Copy, list string, by deletion.Approval) error {
	return l.app.incidentBoard.Approve(ctx, listSubject(space, list), by.Who, by.Action)
}

// report counts the deletes of the open lists, reminds of them, and closes the incident of a list whose deletes all
// have a result, until ctx is done.
func (l *deleteLists) report(ctx context.Context) error {
	t := time.NewTicker(countInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		for _, about := range l.app.incidentBoard.OpenOf(incident.DeletesHeld) {
			if err := l.reportList(ctx, about); err != nil && ctx.Err() == nil {
				l.app.log.Warn("count the deletes of a list that wait for approval", "incident", about.Key(), "err", err)
			}
		}
	}
}

// due reports whether the deletes of a list are to be counted now.
func (l *deleteLists) due(about incident.Subject) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.lists[about]
	if t == nil {
		t = new(listTimes)
		l.lists[about] = t
	}
	now := time.Now()
	if !l.app.incidentBoard.IsApproved(about) && now.Sub(t.grew) > growingFor && now.Sub(t.counted) < recountInterval {
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
	approved := board.IsApproved(about) // before the count
	space, list := listOf(about)
	p, err := read.ProgressOfList(ctx, l.app.db, space, list)
	if err != nil {
		return err
	}
	detail := describeList(p, approved)
	switch {
	case approved && p.Ended >= p.Items: // all were in the table when they were ordered
		return board.Close(ctx, about, detail)
	case p.Items == 0: // not in the table yet
		return nil
	}
	if err := board.Update(ctx, about, detail); err != nil {
		return err
	}
	return board.Remind(ctx, about, reminderInterval, detail)
}

// describeList says how many deletes are on a list.
func describeList(p read.ListProgress, approved bool) string {
	if approved {
		return fmt.Sprintf("%d of %d deletes have ended, %d copies were deleted", p.Ended, p.Items, p.Deleted)
	}
	return fmt.Sprintf("%d deletes wait for approval, the first since %s",
		p.Items-min(p.Items, p.Ended), p.First.UTC().Format(time.RFC3339))
}
