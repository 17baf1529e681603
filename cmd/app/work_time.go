package app

import (
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/sweep"
)

// A PlannedWork is what a dry run of a sweep over a space would ask for.
type PlannedWork struct {
	Account, Store, Space string
	Destination           string // of a pair
	sweep.Work
}

// CheckTime estimates how many seconds the checks of fixity rounds take at least, by the fastest minute of the last 30
// days and by the budgets; nil: it is unknown, since a store was not checked then. The stores are checked at the same
// time.
func (a *App) CheckTime(ctx context.Context, rounds []FixityRound) (*float64, error) {
	t := a.newWorkTime()
	for _, r := range rounds {
		t.check(StoreName{r.Account, r.Store},
			sweep.Amount{Items: r.Counts[sweep.Requested], Bytes: r.Counts[sweep.RequestedBytes]})
	}
	return t.longest(ctx, a.secondsOf)
}

// WorkTime estimates how many seconds the work of dry runs takes at least, by the fastest minutes of the last 30 days;
// nil: it is unknown, since a store was not checked, or a pair has not copied, then. Stores and pairs work at the same
// time.
func (a *App) WorkTime(ctx context.Context, all []PlannedWork) (*float64, error) {
	t := a.newWorkTime()
	adds := false
	for _, w := range all {
		t.check(StoreName{w.Account, w.Store}, w.Checks)
		t.copy(pairName{w.Account, w.Store, w.Destination}, w.Copies)
		adds = adds || w.Changes.Items > 0
	}
	if adds {
		err := a.withPolicies(ctx, func(_ context.Context, r *policy.Registry) error {
			for _, w := range all {
				rules, _ := r.Rules(w.Account, w.Space)
				for _, p := range rules.Pairs {
					if p.Source == w.Store {
						t.copy(pairName{w.Account, p.Source, p.Destination}, w.Changes)
					}
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return t.longest(ctx, func(StoreName, float64, float64) float64 { return 0 })
}

type pairName struct{ account, source, destination string }

// A workTime sums the work of stores and pairs, and knows their rates.
type workTime struct {
	app    *App
	checks map[StoreName]sweep.Amount
	copies map[pairName]sweep.Amount
	// The rates of accounts.
	checkRates map[string][]read.CheckRate
	pairRates  map[string][]read.PairRate
}

func (a *App) newWorkTime() *workTime {
	return &workTime{a, map[StoreName]sweep.Amount{}, map[pairName]sweep.Amount{}, map[string][]read.CheckRate{},
		map[string][]read.PairRate{}}
}

func (t *workTime) check(n StoreName, more sweep.Amount) {
	was := t.checks[n]
	t.checks[n] = sweep.Amount{Items: was.Items + more.Items, Bytes: was.Bytes + more.Bytes}
}

func (t *workTime) copy(p pairName, more sweep.Amount) {
	was := t.copies[p]
	t.copies[p] = sweep.Amount{Items: was.Items + more.Items, Bytes: was.Bytes + more.Bytes}
}

// longest returns the time of the store or pair that takes longest. bound returns how long the checks of a store take
// at least, whatever the rates.
func (t *workTime) longest(
	ctx context.Context, bound func(n StoreName, checks, bytes float64) float64,
) (*float64, error) {
	longest := 0.0
	for n, of := range t.checks {
		if of.Items == 0 {
			continue
		}
		all, err := ratesOf(ctx, t, t.checkRates, n.Account, read.CheckRates)
		i := slices.IndexFunc(all, func(r read.CheckRate) bool { return r.Store == n.Store })
		if i < 0 || err != nil {
			return nil, err
		}
		checks, bytes := float64(of.Items), float64(of.Bytes)
		longest = max(longest, checks/all[i].Checks, bytes/all[i].Bytes, bound(n, checks, bytes))
	}
	for p, of := range t.copies {
		if of.Items == 0 {
			continue
		}
		all, err := ratesOf(ctx, t, t.pairRates, p.account, read.PairRates)
		i := slices.IndexFunc(all, func(r read.PairRate) bool {
			return r.Source == p.source && r.Destination == p.destination
		})
		if i < 0 || err != nil {
			return nil, err
		}
		longest = max(longest, float64(of.Items)/all[i].Items)
		if of.Bytes == 0 {
			continue
		}
		if all[i].Bytes == 0 { // it has copied empty items only
			return nil, nil
		}
		longest = max(longest, float64(of.Bytes)/all[i].Bytes)
	}
	return &longest, nil
}

// ratesOf returns the rates of an account, which are read once.
func ratesOf[R any](
	ctx context.Context, t *workTime, known map[string][]R, account string,
	find func(context.Context, *clickhouse.DB, string, time.Time) ([]R, error),
) ([]R, error) {
	if all, ok := known[account]; ok {
		return all, nil
	}
	all, err := find(ctx, t.app.db, account, time.Now().Add(-rateWindow))
	if err == nil {
		known[account] = all
	}
	return all, err
}
