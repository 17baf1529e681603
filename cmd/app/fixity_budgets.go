package app

import (
	"sync"

	"github.com/millrace/millrace/cmd/config"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage/s3"
	"github.com/millrace/millrace/streams/sweep"
)

// fixityBudgets are the budgets of the stores that have one.
type fixityBudgets struct {
	app   *App
	known *checkpoints

	mu      sync.Mutex // guards byStore
	byStore map[budgetKey]*sweep.Budget
}

// A budgetKey is a budget as the settings had it.
type budgetKey struct {
	StoreName
	sweep.Amount
}

func (a *App) newBudgets(known *checkpoints) *fixityBudgets {
	return &fixityBudgets{app: a, known: known, byStore: map[budgetKey]*sweep.Budget{}}
}

// of returns the budget of a store; nil: it has none. Without limit it only counts.
func (f *fixityBudgets) of(n StoreName, limit bool) *sweep.Budget {
	b, ok := f.app.cfg.Fixity.BudgetOf(n.Account, n.Store)
	most := sweep.Amount{Items: int64(b.Items), Bytes: int64(b.Bytes), Requests: int64(b.Requests)}
	if !ok || most == (sweep.Amount{}) {
		return nil
	}
	key := budgetKey{StoreName: n}
	if limit {
		key.Amount = most
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byStore[key] == nil {
		f.byStore[key] = sweep.NewBudget(key.Amount, func() []*pb.Checkpoint { return f.known.fixityOf(n) })
	}
	return f.byStore[key]
}

// checkRequests returns what returns how many requests the check of a copy of a size makes to a store: it stats the
// copy before and after it reads the bytes. A store that is sampled counts as one that is read.
func checkRequests(c config.Store) func(size int64) int64 {
	const stats = 2
	return func(size int64) int64 {
		switch {
		case c.Read == "never":
			return stats
		case c.Driver == "s3":
			return stats + s3.ReadRequests(size, s3.DefaultPartBytes)
		}
		return stats + 1
	}
}

// fixityOf returns the newest checkpoints of the fixity rounds over a store.
func (c *checkpoints) fixityOf(n StoreName) (of []*pb.Checkpoint) {
	for _, p := range c.all() {
		if s, ok := splitOf(p); ok && s.Sweep == sweep.FixitySweep && s.Account == n.Account && s.Store == n.Store {
			of = append(of, p)
		}
	}
	return of
}

// secondsOf returns how long a budget of a store makes checks take.
func (a *App) secondsOf(n StoreName, checks, bytes float64) (seconds float64) {
	const day = 24 * 60 * 60
	b, _ := a.cfg.Fixity.BudgetOf(n.Account, n.Store)
	if b.Items > 0 {
		seconds = checks / float64(b.Items) * day
	}
	if b.Bytes > 0 {
		seconds = max(seconds, bytes/float64(b.Bytes)*day)
	}
	if b.Requests > 0 { // of copies of the mean size
		each := checkRequests(a.stores.of(n).cfg)(int64(bytes / checks))
		seconds = max(seconds, checks*float64(each)/float64(b.Requests)*day)
	}
	return seconds
}
