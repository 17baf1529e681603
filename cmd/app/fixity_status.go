package app

import (
	"context"
	"slices"
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
}

// Share returns the share of the copies that have passed within the period.
func (s *SpaceFixity) Share() float64 {
	if s.Live == 0 {
		return 1
	}
	return float64(s.Live-s.Overdue) / float64(s.Live)
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
func (a *App) FixityStatus(ctx context.Context, of schemas.Copy, now time.Time) (all []SpaceFixity, err error) {
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

// A statusKey is how copies count as overdue.
type statusKey struct {
	period  time.Duration
	asserts bool
}

// accountFixity is FixityStatus of one account.
func (a *App) accountFixity(ctx context.Context, of schemas.Copy, now time.Time) (all []SpaceFixity, err error) {
	byKey := map[statusKey][]read.SpaceStatus{}
	count := func(k statusKey) ([]read.SpaceStatus, error) {
		if _, ok := byKey[k]; !ok {
			found, err := read.FixityStatus(ctx, a.db, read.StatusQuery{Account: of.Account, Store: of.Store,
				Space: of.Space, PassedBefore: now.Add(-k.period), Asserted: k.asserts})
			if err != nil {
				return nil, err
			}
			byKey[k] = found
		}
		return byKey[k], nil
	}
	spaces, err := count(statusKey{period: a.cfg.Fixity.Period})
	if err != nil || len(spaces) == 0 {
		return nil, err
	}
	rates, err := read.SpaceRates(ctx, a.db, of.Account, now.Add(-rateDay))
	if err != nil {
		return nil, err
	}
	for _, s := range spaces {
		n := StoreName{of.Account, s.Store}
		st, err := a.stores.configured(n)
		if err != nil {
			continue // it was removed, and its copies are not checked
		}
		k := statusKey{a.cfg.Fixity.PeriodOf(n.Account, n.Store, s.Space), a.asserts(n)}
		counted, err := count(k)
		if err != nil {
			return nil, err
		}
		same := func(c read.SpaceStatus) bool { return c.Store == s.Store && c.Space == s.Space }
		if i := slices.IndexFunc(counted, same); i >= 0 {
			s = counted[i]
		}
		f := SpaceFixity{Account: of.Account, SpaceStatus: s, Period: k.period, Asserts: k.asserts, Sample: sampleOf(st.cfg)}
		for _, r := range rates {
			if r.Store == s.Store && r.Space == s.Space {
				f.Rate = float64(r.Checks) / rateDay.Seconds()
			}
		}
		all = append(all, f)
	}
	return all, nil
}

// An OverdueCopy is a copy without a pass within the period of its space.
type OverdueCopy struct {
	schemas.Copy
	LastPass time.Time // of its content; zero: it has not passed
	Period   time.Duration
}

// OverdueCopies returns at most limit of the copies that are overdue, sorted by account, store and space; 0: all. Those
// of a space that have never passed come first, then those with the oldest pass.
func (a *App) OverdueCopies(
	ctx context.Context, of schemas.Copy, now time.Time, limit int,
) (all []OverdueCopy, err error) {
	spaces, err := a.FixityStatus(ctx, of.WithoutItem(), now)
	if err != nil {
		return nil, err
	}
	for _, s := range spaces {
		left := int(s.Overdue)
		if limit > 0 {
			left = min(left, limit-len(all))
		}
		if left == 0 {
			continue
		}
		found, err := read.Overdue(ctx, a.db, schemas.DueQuery{Account: s.Account, Store: s.Store, Space: s.Space,
			Prefix: of.Item, PassedBefore: now.Add(-s.Period), Asserted: s.Asserts, Limit: left})
		if err != nil {
			return nil, err
		}
		for _, c := range found {
			at := schemas.Copy{Account: s.Account, Store: s.Store, Space: s.Space, Item: c.Item}
			all = append(all, OverdueCopy{at, c.LastPass, s.Period})
		}
	}
	return all, nil
}
