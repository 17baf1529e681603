package app

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// rateDay is the time over which the rate of checks is counted.
const rateDay = 24 * time.Hour

// A SpaceFixity is the state of the checks of the live copies of one space in one store.
type SpaceFixity struct {
	Account string
	read.SpaceStatus
	Period  time.Duration // in which each copy is checked
	Asserts bool          // the store is not always read: what it asserts counts as a pass
	Sample  int           // percent of the copies that are read in a period; 100: all, 0: none
	Rate    float64       // checks per second in the last day that have read bytes
	// Objective is the share of the copies that shall have passed within the period, and Burn is burnRate.
	Objective config.Share
	Burn      float64
}

// Share returns the share of the copies that have passed within the period.
func (s *SpaceFixity) Share() float64 { return shareOf(s.Live-s.Overdue, s.Live) }

// shareOf returns the share of n in all copies; 1 if there are none.
func shareOf(n, all uint64) float64 {
	if all == 0 {
		return 1
	}
	return float64(n) / float64(all)
}

// burnRate returns how much of the share of copies that an objective allows to be overdue is overdue: at 1 all of it.
func burnRate(overdue, copies uint64, objective config.Share) float64 {
	if copies == 0 {
		return 0
	}
	return float64(overdue) / float64(copies) / float64(1-objective)
}

// End estimates when the overdue copies are checked at the rate of the last day; the zero time: it is unknown.
func (s *SpaceFixity) End(now time.Time) time.Time {
	if s.Overdue == 0 || s.Rate <= 0 {
		return time.Time{}
	}
	seconds := float64(s.Overdue) / s.Rate
	if seconds > (100 * 365 * 24 * time.Hour).Seconds() {
		return time.Time{}
	}
	return now.Add(time.Duration(seconds * float64(time.Second)))
}

// FixityStatus returns the state of the checks of the selected spaces, sorted by account, store and space. An empty
// account, store or space selects all.
func (a *App) FixityStatus(ctx context.Context, of schemas.Copy, now time.Time) ([]SpaceFixity, error) {
	all, err := a.countCopies(ctx, of, now)
	if err != nil {
		return nil, err
	}
	rates := map[schemas.Copy]read.SpaceRate{}
	for _, account := range a.stores.inForce() {
		if of.Account != "" && of.Account != account.ID {
			continue
		}
		found, err := read.SpaceRates(ctx, a.db, account.ID, now.Add(-rateDay))
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			rates[schemas.Copy{Account: account.ID, Store: r.Store, Space: r.Space}] = r
		}
	}
	for i := range all {
		s := &all[i]
		r := rates[schemas.Copy{Account: s.Account, Store: s.Store, Space: s.Space}]
		checks := r.Read
		if s.Asserts {
			checks = r.Checks
		}
		s.Rate = float64(checks) / rateDay.Seconds()
	}
	return all, nil
}

// countCopies is FixityStatus without rates.
func (a *App) countCopies(ctx context.Context, of schemas.Copy, now time.Time) (all []SpaceFixity, err error) {
	for _, account := range a.stores.inForce() {
		if of.Account != "" && of.Account != account.ID {
			continue
		}
		in := of
		in.Account = account.ID
		err := a.withoutGaps(ctx, func() error {
			spaces, err := a.accountFixity(ctx, in, now)
			all = append(all, spaces...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// sampleOf returns the share of the copies of a store, in percent, that are read in a period.
func sampleOf(s config.Store) int {
	switch s.Read {
	case "never":
		return 0
	case "sampled":
		return s.SamplePercent
	}
	return 100
}

// A statusKey is how the copies of a store count as overdue.
type statusKey struct {
	store   string // empty: all
	period  time.Duration
	asserts bool
}

// accountFixity is countCopies of one account. Spaces whose copies count in another way than those of most are counted
// again, by store.
func (a *App) accountFixity(ctx context.Context, of schemas.Copy, now time.Time) (all []SpaceFixity, err error) {
	type place struct{ store, space string }
	byKey := map[statusKey]map[place]read.SpaceStatus{}
	count := func(k statusKey) ([]read.SpaceStatus, error) {
		found, err := read.FixityStatus(ctx, a.db, read.StatusQuery{Account: of.Account, Store: cmp.Or(of.Store, k.store),
			Space: of.Space, PassedBefore: now.Add(-k.period), Asserted: k.asserts})
		if err != nil {
			return nil, err
		}
		byKey[k] = map[place]read.SpaceStatus{}
		for _, s := range found {
			byKey[k][place{s.Store, s.Space}] = s
		}
		return found, nil
	}
	usual := statusKey{period: a.cfg.Fixity.Period}
	spaces, err := count(usual)
	if err != nil {
		return nil, err
	}
	for _, s := range spaces {
		n := StoreName{of.Account, s.Store}
		st, err := a.stores.configured(n)
		if err != nil {
			continue // it was removed, and its copies are not checked
		}
		k := statusKey{s.Store, a.cfg.Fixity.PeriodOf(n.Account, n.Store, s.Space), a.asserts(n)}
		if k.period == usual.period && !k.asserts {
			k = usual
		}
		if byKey[k] == nil {
			if _, err := count(k); err != nil {
				return nil, err
			}
		}
		if counted, ok := byKey[k][place{s.Store, s.Space}]; ok {
			s = counted
		}
		period := a.cfg.Fixity.PeriodOf(n.Account, n.Store, s.Space)
		all = append(all, SpaceFixity{Account: of.Account, SpaceStatus: s, Period: period, Asserts: k.asserts,
			Sample: sampleOf(st.cfg), Objective: a.cfg.Fixity.Objective,
			Burn: burnRate(s.Overdue, s.Live, a.cfg.Fixity.Objective)})
	}
	return all, nil
}

// An OverdueCopy is a copy without a pass within the period of its space.
type OverdueCopy struct {
	schemas.Copy
	LastPass time.Time // of its content; zero: it has not passed
	Period   time.Duration
}

// overduePage is the number of overdue copies that are read at once.
const overduePage = 10_000

// EachOverdue calls each with at most limit of the copies that are overdue, by account, store and space; 0: all. Those
// of a space that have never passed come first, then those with the oldest pass.
func (a *App) EachOverdue(
	ctx context.Context, of schemas.Copy, now time.Time, limit int, each func([]OverdueCopy) error,
) error {
	spaces, err := a.countCopies(ctx, of.WithoutItem(), now)
	if err != nil {
		return err
	}
	left := cmp.Or(limit, math.MaxInt)
	for _, s := range spaces {
		q := schemas.DueQuery{Account: s.Account, Store: s.Store, Space: s.Space, Prefix: of.Item,
			PassedBefore: now.Add(-s.Period), Asserted: s.Asserts}
		for q.Limit = min(left, overduePage); s.Overdue > 0 && q.Limit > 0; q.Limit = min(left, overduePage) {
			found, err := read.Overdue(ctx, a.db, q)
			if err != nil {
				return err
			}
			page := make([]OverdueCopy, len(found))
			for i, c := range found {
				at := schemas.Copy{Account: s.Account, Store: s.Store, Space: s.Space, Item: c.Item}
				page[i] = OverdueCopy{at, c.LastPass, s.Period}
				q.After = schemas.DueCursor{LastPass: c.LastPass, Item: c.Item}
			}
			if err := each(page); err != nil {
				return err
			}
			if left -= len(found); len(found) < q.Limit {
				break
			}
		}
	}
	return nil
}
