package app

import (
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/sweep"
)

// CheckTime estimates how many seconds the checks of fixity rounds take at least, by the fastest minute of the last 30
// days and by the budgets; nil: it is unknown, since a store was not checked then. The stores are checked at the same
// time.
func (a *App) CheckTime(ctx context.Context, rounds []FixityRound) (*float64, error) {
	t := workTime{map[StoreName]sweep.Amount{}, nil}
	for _, r := range rounds {
		add(t.checks, StoreName{r.Account, r.Store},
			sweep.Amount{Items: r.Counts[sweep.Requested], Bytes: r.Counts[sweep.RequestedBytes]})
	}
	return a.longest(ctx, t, a.secondsOf)
}

// WorkTime estimates how many seconds the work of dry runs takes at least, by the fastest minutes of the last 30 days;
// nil: it is unknown, since a store was not checked, or a pair has not copied, then. Stores and pairs work at the same
// time.
func (a *App) WorkTime(ctx context.Context, all []SweptSpace) (*float64, error) {
	t := workTime{map[StoreName]sweep.Amount{}, map[pairName]sweep.Amount{}}
	adds := false
	for _, w := range all {
		add(t.checks, StoreName{w.Account, w.Store}, w.Work.Checks)
		add(t.copies, pairName{w.Account, w.Store, w.Destination}, w.Work.Copies)
		adds = adds || w.Work.Changes.Items > 0
	}
	if adds {
		err := a.withPolicies(ctx, func(_ context.Context, r *policy.Registry) error {
			for _, w := range all {
				rules, _ := r.Rules(w.Account, w.Space)
				for _, p := range rules.Pairs {
					if p.Source == w.Store {
						add(t.copies, pairName{w.Account, p.Source, p.Destination}, w.Work.Changes)
					}
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return a.longest(ctx, t, func(StoreName, float64, float64) float64 { return 0 })
}

type pairName struct{ account, source, destination string }

// A workTime sums the work of stores and pairs.
type workTime struct {
	checks map[StoreName]sweep.Amount
	copies map[pairName]sweep.Amount
}

func add[K comparable](sums map[K]sweep.Amount, of K, more sweep.Amount) {
	was := sums[of]
	sums[of] = sweep.Amount{Items: was.Items + more.Items, Bytes: was.Bytes + more.Bytes}
}

// longest returns the time of the store or pair that takes longest. bound returns how long the checks of a store take
// at least, whatever the rates.
func (a *App) longest(
	ctx context.Context, t workTime, bound func(n StoreName, checks, bytes float64) float64,
) (*float64, error) {
	longest, since := 0.0, time.Now().Add(-rateWindow)
	for n, of := range t.checks {
		if of.Items == 0 {
			continue
		}
		all, err := read.CheckRates(ctx, a.db, n.Account, since)
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
		all, err := read.PairRates(ctx, a.db, p.account, since)
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
