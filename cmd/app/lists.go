package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/deletion"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// countInterval is the time between two counts of the effects of a list that grows, or is being worked off.
	countInterval = 5 * time.Second
	// recountInterval is the time between two counts of a list that seems not to change.
	recountInterval = 5 * time.Minute
	// growingFor is how long a list counts as growing after an effect was put on it. Its result is in ClickHouse by then.
	growingFor = 30 * time.Second
	// emptyFor is how long a list without items stays open: the first result is in ClickHouse by then.
	emptyFor = time.Hour
	// reminderInterval is the time between two reminders of a list.
	reminderInterval = 24 * time.Hour
	// orderedAtOnce is the number of effects of a list that are ordered at once.
	orderedAtOnce = 1000
)

// deleteLists connects the brakes on deletes, rewrites and repairs, and their lists, with the topics, the tables and
// the incidents. The copier uses those on rewrites and repairs, and the deleter orders all lists.
type deleteLists struct {
	brake, rewrites, repairs *brake.Brake
	app                      *App
	checkpoints              *kafka.Table
	clockRead                atomic.Pointer[time.Time] // Kafka's time of the newest checkpoint kafkaClockSweep
	results                  *admin.Watermark          // of duplication.results
	decisions                *held.Decisions

	mu    sync.Mutex
	lists map[held.List]*listState // guarded by mu
	again time.Time                // when report looks at lists again
}

// A listState is what a process has seen of a list.
type listState struct {
	grew, counted time.Time
	items         uint64    // at the last count
	emptied       time.Time // when this process closed the incident, since nothing was on the list
	looked        bool      // for what a decision had not known
	knew          bool      // the decisions were read
}

// state calls do with the state of a list, while no other task has it.
func (l *deleteLists) state(list held.List, do func(*listState)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lists[list] == nil {
		l.lists[list] = new(listState)
	}
	do(l.lists[list])
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
	l := &deleteLists{app: a, decisions: &a.decided, lists: map[held.List]*listState{}}
	var ledgers []*brake.Ledger
	for _, k := range []brake.Kind{brake.Deletes, brake.Rewrites, brake.Repairs} {
		ledgers = append(ledgers, brake.NewLedger(k))
	}
	var err error
	l.checkpoints, err = kafka.NewTable(a.kafka, schemas.Checkpoints, func(key []byte, d *schemas.Delivery) (err error) {
		c, _ := d.Body.(*pb.Checkpoint) // nil for a tombstone
		if c.GetSweep() == kafkaClockSweep {
			l.clockRead.Store(&d.Timestamp)
		}
		for _, ledger := range ledgers {
			err = errors.Join(err, ledger.Apply(key, c, d.Timestamp))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make the table of checkpoints: %w", err)
	}
	l.checkpoints.OnUnreadable(func(key []byte, _ time.Time, _ error) {
		for _, ledger := range ledgers {
			ledger.Unreadable(key)
		}
	})
	l.results = a.admin.NewWatermark(schemas.DuplicationResults, map[schemas.Role][]schemas.Topic{
		schemas.RoleSink: {schemas.DuplicationResults}})
	for i, b := range []**brake.Brake{&l.brake, &l.rewrites, &l.repairs} {
		executed := [...]read.Executed{read.Deletes, read.Rewrites, read.Repairs}[i]
		if *b, err = brake.New(brake.Deps{Ledger: ledgers[i], CatchUp: l.catchUpCounts, Publisher: a.producer,
			Now: a.kafka.Clock.Now, Live: l.live, History: l.history(executed), Limits: a.limitsFor(brake.Kind(i)),
			Park: kafka.Park}); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// catchUp returns when this process knows what the owner of its partitions before it has counted, and which lists are
// open and were decided about.
func (l *deleteLists) catchUp(ctx context.Context) error {
	return errors.Join(l.app.incidents.CatchUp(ctx), l.app.actions.CatchUp(ctx), l.catchUpCounts(ctx))
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
	switch k {
	case brake.Rewrites:
		own, share, count = rules.Brake.Rewrites, cfg.Replaced.MaxShare, cfg.Replaced.MaxCount
	case brake.Repairs:
		return brake.Limits{MaxShare: float64(cfg.Sweep.MaxMissing), MaxCount: math.MaxInt64}
	}
	return brake.Limits{MaxShare: cmp.Or(own.MaxShare, float64(share)), MaxCount: cmp.Or(own.MaxCount, int64(count))}
}

// listSubject returns the subject of the incident of a list.
func listSubject(l held.List) incident.Subject {
	return incident.Subject{Account: l.Space.Account, Store: l.Space.Store, Space: l.Space.Space,
		Kind: l.Kind.Act().IncidentKind(), Name: l.Name()}
}

// HasList reports whether incidents of a kind have a list of effects that wait for a decision.
func HasList(kind string) bool {
	return slices.ContainsFunc(held.Acts(), func(a held.Act) bool { return a.IncidentKind() == kind })
}

// openLists returns the subjects of the open incidents of lists.
func (a *App) openLists() (all []incident.Subject) {
	for _, act := range held.Acts() {
		all = append(all, a.incidentBoard.OpenOf(act.IncidentKind())...)
	}
	return all
}

// IsAsked reports whether an incident has a list of what a person asked for.
func IsAsked(i *pb.Incident) bool {
	return HasList(i.GetKind()) && held.KindOf(i.GetSubject()) == held.Asked
}

// EventOf returns ACCOUNT/SPACE if an incident has a list and is open: what happened in one space may have led to lists
// at several destinations. Otherwise, and for a list that cannot be refused, it returns "".
func EventOf(i *pb.Incident) string {
	if !HasList(i.GetKind()) || !held.KindOf(i.GetSubject()).CanRefuse() ||
		i.GetState() == pb.IncidentState_INCIDENT_STATE_CLOSED {
		return ""
	}
	return i.GetAccount() + "/" + i.GetSpace()
}

// listOf returns the list that an incident is about; false if it is about none.
func listOf(s incident.Subject) (held.List, bool) {
	l, ok := held.Named(schemas.Copy{Account: s.Account, Store: s.Store, Space: s.Space}, s.Name)
	return l, ok && HasList(s.Kind)
}

// queryOf returns the query for a list by the decisions that are known.
func queryOf(d *held.Decisions, l held.List) read.ListQuery {
	q := read.ListQuery{Space: l.Space, Kind: string(l.Kind), Name: l.Name()}
	one, before, decided := d.About(l)
	if q.Before = before; decided {
		q.Until = &one.Seen
	}
	return q
}

// Hold implements held.Lists.
func (l *deleteLists) Hold(ctx context.Context, at schemas.Copy, k held.Kind, cause string) (string, error) {
	list := l.decisions.Open(at, k)
	about := listSubject(list)
	l.state(list, func(s *listState) { s.grew = time.Now() })
	if l.app.incidentBoard.IsOpen(about) {
		return list.Name(), nil
	}
	return list.Name(), l.app.incidentBoard.Open(ctx, about,
		fmt.Sprintf("%s wait for approval, and the copies are kept: %s", k.Act(), cause))
}

// Wait implements held.Lists.
func (l *deleteLists) Wait(ctx context.Context, at schemas.Copy, k held.Kind) (bool, error) {
	next := l.decisions.Open(at, k)
	if l.app.incidentBoard.IsOpen(listSubject(next)) {
		return true, nil
	}
	return l.openNext(ctx, next)
}

// openNext opens the incident of a list that follows a decided one, or that was closed because it was empty, if
// something is on it: it was held before the decision, which did not know it, or by a process that was suspended. It
// reports whether something is. A list is looked at once, and by report again.
func (l *deleteLists) openNext(ctx context.Context, next held.List) (bool, error) {
	looked := false
	if l.state(next, func(s *listState) { looked = s.looked }); looked || next.Number == 1 && !l.closed(next) {
		return false, nil
	}
	var p read.ListProgress
	err := l.fresh(ctx, func(ctx context.Context) (err error) {
		p, err = read.ProgressOfList(ctx, l.app.db, queryOf(l.decisions, next))
		return err
	}, l.results)
	if err == nil && p.Items > 0 {
		return true, l.app.incidentBoard.Open(ctx, listSubject(next), describeList(next.Kind, p, false))
	}
	if err == nil {
		l.state(next, func(s *listState) { s.looked = true })
	}
	return false, err
}

// know reads the decisions to their end if the incident of a list that takes effects is closed: then there is one that
// this process does not know yet, or nothing was on the list.
func (l *deleteLists) know(ctx context.Context, at schemas.Copy, act held.Act) error {
	for _, k := range held.Kinds() {
		next := l.decisions.Open(at, k)
		known := !l.closed(next)
		l.state(next, func(s *listState) { known, s.knew = known || s.knew, s.knew && !known })
		if k.Act() != act || known {
			continue
		}
		if err := l.app.actions.CatchUp(ctx); err != nil {
			return err
		}
		l.state(next, func(s *listState) { s.knew = true })
	}
	return nil
}

// Decided implements held.Lists.
func (l *deleteLists) Decided(
	ctx context.Context, at schemas.Copy, act held.Act, effect string,
) (s held.Standing, err error) {
	if err := l.know(ctx, at, act); err != nil {
		return s, err
	}
	if !l.decisions.Matter(at, act) { // usual case
		return s, nil
	}
	err = l.fresh(ctx, func(ctx context.Context) error {
		rows, err := read.ResultsOfEffect(ctx, l.app.db, at, effect, held.ReasonOf(effect))
		var where []held.Place
		done := false
		for _, r := range rows {
			if r.Held {
				where = append(where, held.Place{Coordinates: r.Coordinates, Kind: held.KindOf(r.List), Effect: r.Effect})
			}
			done = done || r.Done
		}
		s = l.decisions.Standing(at, effect, where, done)
		return err
	}, l.results)
	return s, err
}

// closed reports whether the incident of a list is closed, so that its work has ended.
func (l *deleteLists) closed(list held.List) bool {
	return l.app.incidentBoard.WasClosed(listSubject(list))
}

// Refused implements held.Lists.
func (l *deleteLists) Refused(at schemas.Copy) error {
	if list, ok := l.decisions.Refused(at, l.closed); ok {
		return retry.UnavailableFor("refused list",
			fmt.Errorf("the copies are needed until the items of the refused list %s are restored", list.Name()))
	}
	return nil
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

// history returns brake.Deps.History of what was executed.
func (l *deleteLists) history(
	executed read.Executed,
) func(context.Context, schemas.Copy, time.Time) (brake.History, error) {
	return func(ctx context.Context, space schemas.Copy, since time.Time) (h brake.History, err error) {
		err = l.fresh(ctx, func(ctx context.Context) (err error) {
			if h.Live, err = read.LiveCopies(ctx, l.app.db, space); err != nil {
				return err
			}
			counts, err := read.ExecutedSince(ctx, l.app.db, space, since, executed)
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
func (l *deleteLists) Waiting(ctx context.Context, list held.List, after string) (page []deletion.Listed, err error) {
	q := queryOf(l.decisions, list)
	q.After, q.Waiting, q.Limit = after, true, orderedAtOnce
	err = l.fresh(ctx, func(ctx context.Context) error {
		rows, err := read.ListedDeletes(ctx, l.app.db, q)
		page = nil
		for _, r := range rows {
			page = append(page, deletion.Listed{
				Item: r.Item, SourceStore: r.SourceStore, Effect: r.Effect, Incident: r.Incident, Deleted: r.Deleted,
				Reason: r.Reason, Changed: r.Deleted, Version: r.Version, Digests: r.Digests})
		}
		return err
	}, l.results)
	return page, err
}

// Decide implements deletion.Lists.
func (l *deleteLists) Decide(ctx context.Context, list held.List, id string) (lost string, err error) {
	if err := l.app.actions.CatchUp(ctx); err != nil {
		return "", retry.Unavailable(fmt.Errorf("read the decisions: %w", err))
	}
	d, _, decided := l.decisions.About(list)
	switch {
	case !decided:
		return "it is not about the list that waits", nil
	case d.ID != id:
		return fmt.Sprintf("%s decided before (%s)", d.By, d.Action), nil
	}
	return "", l.decided(ctx, list, d)
}

// Ordered implements deletion.Lists.
func (l *deleteLists) Ordered(ctx context.Context, list held.List, detail string) error {
	d, _, _ := l.decisions.About(list)
	return l.app.incidentBoard.Ordered(ctx, listSubject(list), d.ID, detail)
}

// report counts the items of the open lists, publishes reminders, and closes the incident of a list when each item has
// a result, until ctx is done. It opens the incident of what was held while somebody decided about the list before.
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
		for _, about := range l.app.openLists() {
			l.warn(ctx, about, l.reportList(ctx, about))
		}
		if now := time.Now(); !now.Before(l.again) { // a process that was suspended may have held something since
			l.again = now.Add(recountInterval)
			l.mu.Lock()
			for _, s := range l.lists {
				s.looked = false
			}
			l.mu.Unlock()
		}
		for _, list := range l.decisions.Decided(time.Time{}) {
			l.warn(ctx, listSubject(list), l.reopenLost(ctx, list))
		}
		for _, list := range append(l.decisions.Decided(time.Now().Add(-held.Final)), l.emptied()...) {
			next := l.decisions.Open(list.Space, list.Kind)
			if board.IsOpen(listSubject(next)) {
				continue
			}
			_, err := l.openNext(ctx, next)
			l.warn(ctx, listSubject(next), err)
		}
	}
}

// reopenLost opens the incident of a refused list of which the topic has no record any more: only its end says that the
// copies are not needed.
func (l *deleteLists) reopenLost(ctx context.Context, list held.List) error {
	about, board := listSubject(list), l.app.incidentBoard
	d, _, _ := l.decisions.About(list)
	if d.Action != held.ActionRefuse || board.IsOpen(about) || board.WasClosed(about) {
		return nil
	}
	return board.Open(ctx, about, "the record of this incident was lost")
}

// emptied returns the lists whose incidents this process has closed within emptyFor, since nothing was on them. What
// was held at the same time is on the list when its result is stored.
func (l *deleteLists) emptied() (all []held.List) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for list, s := range l.lists {
		if time.Since(s.emptied) < emptyFor {
			all = append(all, list)
		}
	}
	return all
}

func (l *deleteLists) warn(ctx context.Context, about incident.Subject, err error) {
	if err != nil && ctx.Err() == nil {
		l.app.log.Warn("count what waits for approval on a list", "incident", about.Key(), "err", err)
	}
}

// due reports whether the items of a list are to be counted now, and whether something was put on it just now.
func (l *deleteLists) due(list held.List, decided bool) (due, grows bool) {
	now := time.Now()
	l.state(list, func(s *listState) {
		grows = now.Sub(s.grew) <= growingFor
		if due = decided || grows || s.items == 0 || now.Sub(s.counted) >= recountInterval; due {
			s.counted = now
		}
	})
	return due, grows
}

func (l *deleteLists) reportList(ctx context.Context, about incident.Subject) error {
	board := l.app.incidentBoard
	list, ok := listOf(about)
	if !ok {
		return nil
	}
	d, _, decided := l.decisions.About(list)
	due, grows := l.due(list, decided)
	if !due {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.app.cfg.Fixity.FreshWait)
	defer cancel()
	if decided && (d.Action == held.ActionClose || list.Kind == held.Asked && d.Keeps()) {
		return board.Close(ctx, about, "the copies are kept")
	}
	var p read.ListProgress
	count := func(ctx context.Context) (err error) {
		p, err = read.ProgressOfList(ctx, l.app.db, queryOf(l.decisions, list))
		return err
	}
	// The process that has opened it may have found on its return that nothing is to be held, or all of it is moot.
	empty := func() bool {
		return !decided && p.Items == 0 && (p.Moot > 0 && !grows || time.Since(board.OpenedAt(about)) > emptyFor)
	}
	ended := func() bool { return empty() || decided && p.Ended >= p.Items }
	err := count(ctx)
	if err == nil && ended() { // a table that was emptied meanwhile says nothing
		err = l.fresh(ctx, count, l.results)
	}
	if err != nil {
		return err
	}
	l.state(list, func(s *listState) {
		if p.Items > s.items { // by any process: it is counted again soon
			s.grew = time.Now()
		}
		s.items = p.Items
	})
	detail := describeList(list.Kind, p, decided)
	if decided && d.Action == held.ActionRefuse {
		detail = fmt.Sprintf("%d of %d restores have ended, %d items are back", p.Ended, p.Items, p.Restored)
	}
	switch {
	case empty(), decided && p.Items == 0: // the operator saw what was on the list before, or the records are lost
		l.state(list, func(s *listState) { s.emptied = time.Now() })
		return board.Close(ctx, about, "nothing waits")
	case p.Items == 0: // not in the table yet
		return nil
	case ended():
		return board.Close(ctx, about, detail)
	case decided: // another process may have overwritten the step
		if err := l.decided(ctx, list, d); err != nil {
			return err
		}
	}
	if err := board.Update(ctx, about, detail); err != nil {
		return err
	}
	return board.Remind(ctx, about, reminderInterval, detail)
}

// decided records a decision in the incident of its list.
func (l *deleteLists) decided(ctx context.Context, list held.List, d held.Decision) error {
	return l.app.incidentBoard.Decide(ctx, listSubject(list), incident.Decision{By: d.By, Ref: d.ID, Reason: d.Reason,
		Refused: d.Action == held.ActionRefuse})
}

// describeList says how much is on a list.
func describeList(k held.Kind, p read.ListProgress, decided bool) string {
	if decided {
		done := map[held.Act]string{held.Delete: "deleted", held.Rewrite: "replaced", held.Repair: "repaired"}[k.Act()]
		return fmt.Sprintf("%d of %d %s have ended, %d copies were %s", p.Ended, p.Items, k.Act(), p.Done, done)
	}
	return fmt.Sprintf("%d %s wait for approval, the first since %s",
		p.Items-min(p.Items, p.Ended), k.Act(), p.First.UTC().Format(time.RFC3339))
}
