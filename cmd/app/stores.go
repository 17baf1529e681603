package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/health"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/schedule"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/steward"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/lazy"
	"github.com/millrace/millrace/streams/storage/limit"
)

// Stores are the stores of the configuration. The methods implement the interfaces of the
// processors.
type Stores struct {
	log      *slog.Logger
	byKey    map[string]store // by schemas.Key(account, id)
	accounts map[string][]string
	limits   map[string]config.Limits // by account
	policies *policy.Registry
	waiting  *client.UnavailableCounts // counts messages that wait for unavailable stores; nil: not counted
}

// A StoreName names one store of one account.
type StoreName struct{ Account, Store string }

type store struct {
	*limit.Store // around lazy
	lazy         *lazy.Store
	breaker      *limit.Breaker
	cfg          config.Store
}

// newStores makes every store of cfg. It opens none: a store is opened at its first use.
func newStores(cfg *config.Config, log *slog.Logger) (*Stores, error) {
	s := &Stores{log: log, byKey: map[string]store{}, accounts: map[string][]string{}, limits: map[string]config.Limits{}}
	var errs []error
	for _, a := range cfg.Accounts {
		s.limits[a.ID] = a.Limits
		for _, c := range a.Stores {
			open, err := driver(a.ID, c, log)
			if err != nil {
				errs = append(errs, fmt.Errorf("store %s/%s: %w", a.ID, c.ID, err))
				continue
			}
			onDemand := lazy.New(c.Driver, open)
			b := limit.NewBreaker(limit.Config{Account: a.ID, Store: c.ID, Log: log})
			t := limit.NewThrottle(limit.Rates{
				Concurrency: c.Requests.AtOnce, RequestsPerSecond: float64(c.Requests.PerSecond),
				BytesPerSecond: float64(c.Requests.BytesPerSecond),
			}, log.With("account", a.ID, "store", c.ID))
			s.byKey[schemas.Key(a.ID, c.ID)] = store{limit.New(onDemand, b, t), onDemand, b, c}
			s.accounts[a.ID] = append(s.accounts[a.ID], c.ID)
		}
		// The primary first: good copies are searched in this order.
		slices.SortStableFunc(s.accounts[a.ID], func(x, y string) int {
			return primaryFirst(s.byKey[schemas.Key(a.ID, x)].cfg) - primaryFirst(s.byKey[schemas.Key(a.ID, y)].cfg)
		})
	}
	return s, precondition.Join(errs)
}

func primaryFirst(c config.Store) int {
	if c.Primary {
		return 0
	}
	return 1
}

// close closes the drivers that have resources.
func (s *Stores) close() error {
	var errs []error
	for _, st := range s.byKey {
		errs = append(errs, st.lazy.Close())
	}
	return errors.Join(errs...)
}

// storeNames returns all stores, by account and in the order of IDs.
func (s *Stores) storeNames() (all []StoreName) {
	for _, account := range slices.Sorted(maps.Keys(s.accounts)) {
		for _, id := range s.accounts[account] {
			all = append(all, StoreName{account, id})
		}
	}
	return all
}

func (s *Stores) of(n StoreName) store { return s.byKey[schemas.Key(n.Account, n.Store)] }

// Store returns an account's store.
func (s *Stores) Store(account, id string) (storage.Store, bool) {
	st, ok := s.byKey[schemas.Key(account, id)]
	if !ok {
		return nil, false
	}
	return st.Store, true
}

// configured returns a store. The error wraps precondition.Err if the configuration does not have it.
func (s *Stores) configured(n StoreName) (store, error) {
	st, ok := s.byKey[schemas.Key(n.Account, n.Store)]
	if !ok {
		return st, missingStore(n)
	}
	return st, nil
}

func missingStore(n StoreName) error {
	return fmt.Errorf("%w: the configuration has no store %s/%s", precondition.Err, n.Account, n.Store)
}

// Admit returns nil if a task may use a store now. Otherwise it returns the error, of class
// unavailable, that the task's first request would get. It admits tasks of unknown stores: their
// handlers report the error.
func (s *Stores) Admit(account, id string) error {
	if st, ok := s.byKey[schemas.Key(account, id)]; ok {
		return st.breaker.Admit()
	}
	return nil
}

// Path returns the path of an item in a store that keeps items in files.
func (s *Stores) Path(ctx context.Context, name StoreName, space, item string) (string, error) {
	st, ok := s.byKey[schemas.Key(name.Account, name.Store)]
	if !ok {
		return "", fmt.Errorf("no store %s/%s", name.Account, name.Store)
	}
	return st.lazy.Path(ctx, space, item)
}

// limit returns the configured limits of a store or, if id is empty, of an account.
func (s *Stores) limit(account, id string) schedule.Limit {
	l := s.limits[account]
	if id != "" {
		l = s.byKey[schemas.Key(account, id)].cfg.Limits
	}
	return schedule.Limit{
		Tasks: l.Tasks, TasksPerSecond: float64(l.TasksPerSecond), BytesPerSecond: float64(l.BytesPerSecond),
	}
}

// Breakers returns the state of every store, by account and in the order of IDs.
func (s *Stores) Breakers() []health.Store {
	var all []health.Store
	for _, account := range slices.Sorted(maps.Keys(s.accounts)) {
		for _, id := range s.accounts[account] {
			key := schemas.Key(account, id)
			state, since, cause := s.byKey[key].breaker.State()
			all = append(all, health.Store{
				Account: account, Store: id, State: state, Since: since, Cause: cause, Waiting: s.waiting.Count(key),
			})
		}
	}
	return all
}

// IDs returns the ids of an account's stores, the primary first.
func (s *Stores) IDs(account string) []string { return s.accounts[account] }

// Settings returns the fixity settings of a store.
func (s *Stores) Settings(account, id string) fixity.StoreSettings {
	c := s.byKey[schemas.Key(account, id)].cfg
	set := fixity.StoreSettings{NeverRead: c.Read == "never", ExternalWrites: c.ExternalWrites == "expected"}
	if c.Read == "sampled" {
		set.SamplePercent = c.SamplePercent
	}
	return set
}

// RepairMode returns the repair mode of a store.
func (s *Stores) RepairMode(account, id string) steward.Mode {
	return steward.Mode(s.byKey[schemas.Key(account, id)].cfg.Repair)
}

// Others returns the stores other than id that should have the space according to the policy, the
// primary first.
func (s *Stores) Others(account, space, id string) []string {
	rules, ok := s.policies.Rules(account, space)
	if !ok {
		return nil
	}
	var others []string
	for _, candidate := range s.accounts[account] {
		if candidate != id && slices.ContainsFunc(rules.Pairs, func(p policy.Pair) bool {
			return p.Source == candidate || p.Destination == candidate
		}) {
			others = append(others, candidate)
		}
	}
	return others
}
