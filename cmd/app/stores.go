package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

// Stores are the stores of the accounts. They change at run time: each account is replaced at once, and tasks that run
// go on with the store that they began with. The methods implement the interfaces of the processors.
type Stores struct {
	log      *slog.Logger
	policies *policy.Registry
	waiting  *client.UnavailableCounts // counts messages that wait for unavailable stores; nil: not counted
	// catchUp waits until all accounts that were published before the call are in force; nil: there is no topic.
	catchUp func(context.Context) error

	current atomic.Pointer[storeSet]
	clocks  *prometheus.GaugeVec
	// wrongClocks has the names of stores whose clocks were logged.
	wrongClocks sync.Map

	mu       sync.Mutex              // guards the fields below, and changes of current
	accounts map[string]accountState // in force
	changed  chan struct{}           // closed at the next change of current
	unknown  map[string]bool         // stores that tasks name and no account has: whether the topic was read since
	asked    chan struct{}           // a store was added to unknown
	replaced map[*lazy.Store]bool    // not closed yet, since a task may use them
}

// A storeSet has the stores at one time. It is immutable.
type storeSet struct {
	byKey    map[string]store    // by schemas.Key(account, id)
	accounts map[string][]string // ids by account, the primary first
	limits   map[string]config.Limits
}

// A StoreName names one store of one account.
type StoreName struct {
	Account string `json:"account"`
	Store   string `json:"store"`
}

type store struct {
	*limit.Store // around lazy
	lazy         *lazy.Store
	breaker      *limit.Breaker
	cfg          config.Store
	since        since
	fault        string // why this process does not use it; empty if it does
}

// newStores makes every store of cfg. It opens none: a store is opened at its first use.
func newStores(cfg *config.Config, log *slog.Logger) (*Stores, error) {
	s := &Stores{log: log, accounts: map[string]accountState{}, changed: make(chan struct{}),
		unknown: map[string]bool{}, asked: make(chan struct{}, 1), replaced: map[*lazy.Store]bool{}, clocks: newStoreClocks()}
	s.current.Store(&storeSet{})
	var errs []error
	for _, a := range cfg.Accounts {
		for _, c := range a.Stores {
			if a.Unusable[c.ID] != "" {
				continue
			}
			if _, err := driver(a.ID, c, log, nil); err != nil {
				errs = append(errs, fmt.Errorf("store %s/%s: %w", a.ID, c.ID, err))
			}
		}
		faults := map[string]error{}
		for id, why := range a.Unusable {
			faults[id] = errors.New(why)
		}
		s.accounts[a.ID] = accountState{Account: a, faults: faults}
	}
	s.rebuild()
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
	for _, st := range s.current.Load().byKey {
		errs = append(errs, st.lazy.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.replaced {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// storeNames returns all stores, by account and in the order of IDs.
func (s *Stores) storeNames() (all []StoreName) {
	in := s.current.Load()
	for _, account := range slices.Sorted(maps.Keys(in.accounts)) {
		for _, id := range in.accounts[account] {
			all = append(all, StoreName{account, id})
		}
	}
	return all
}

// of returns a store; the zero value if there is none.
func (s *Stores) of(n StoreName) store {
	return s.current.Load().byKey[schemas.Key(n.Account, n.Store)]
}

// Store returns an account's store.
func (s *Stores) Store(account, id string) (storage.Store, bool) {
	st, ok := s.current.Load().byKey[schemas.Key(account, id)]
	if !ok {
		return nil, false
	}
	return st.Store, true
}

// configured returns a store. The error wraps precondition.Err if there is none.
func (s *Stores) configured(n StoreName) (store, error) {
	st, ok := s.current.Load().byKey[schemas.Key(n.Account, n.Store)]
	if !ok {
		return st, missingStore(n)
	}
	return st, nil
}

func missingStore(n StoreName) error {
	return fmt.Errorf("%w: the configuration has no store %s/%s", precondition.Err, n.Account, n.Store)
}

// Admit returns nil if a task may use a store now. Otherwise it returns the error, of class
// unavailable, that the task's first request would get. It admits tasks of unknown stores, whose
// handlers report the error, but only when the topic of accounts was read: the store may have been
// added right before the task was published.
func (s *Stores) Admit(account, id string) error {
	if st, ok := s.current.Load().byKey[schemas.Key(account, id)]; ok {
		return st.breaker.Admit()
	}
	return s.admitUnknown(account, id)
}

// Path returns the path of an item in a store that keeps items in files.
func (s *Stores) Path(ctx context.Context, name StoreName, space, item string) (string, error) {
	st, ok := s.current.Load().byKey[schemas.Key(name.Account, name.Store)]
	if !ok {
		return "", fmt.Errorf("no store %s/%s", name.Account, name.Store)
	}
	return st.lazy.Path(ctx, space, item)
}

// limit returns the configured limits of a store or, if id is empty, of an account.
func (s *Stores) limit(account, id string) schedule.Limit {
	l := s.current.Load().limits[account]
	if id != "" {
		l = s.of(StoreName{account, id}).cfg.Limits
	}
	return schedule.Limit{
		Tasks: l.Tasks, TasksPerSecond: float64(l.TasksPerSecond), BytesPerSecond: float64(l.BytesPerSecond),
	}
}

// Breakers returns the state of every store, by account and in the order of IDs.
func (s *Stores) Breakers() []health.Store {
	var all []health.Store
	for _, n := range s.storeNames() {
		st, ok := s.current.Load().byKey[schemas.Key(n.Account, n.Store)]
		if !ok {
			continue // it was removed meanwhile
		}
		state, since, cause := st.breaker.State()
		all = append(all, health.Store{Account: n.Account, Store: n.Store, State: state, Since: since, Cause: cause,
			Waiting: s.waiting.Count(schemas.Key(n.Account, n.Store))})
	}
	return all
}

// IDs returns the ids of an account's stores, the primary first.
func (s *Stores) IDs(account string) []string { return s.current.Load().accounts[account] }

// Settings returns the fixity settings of a store.
func (s *Stores) Settings(account, id string) fixity.StoreSettings {
	st := s.of(StoreName{account, id})
	c := st.cfg
	set := fixity.StoreSettings{NeverRead: c.Read == "never", NeverReadSince: st.since.read,
		ExternalWrites: c.ExternalWrites == "expected", ExternalWritesSince: st.since.externalWrites,
		CorrectUpdates: c.Corrections == "auto", CorrectUpdatesSince: st.since.corrections}
	if c.Read == "sampled" {
		set.SamplePercent = c.SamplePercent
	}
	return set
}

// ExternalWrites reports whether programs other than millrace's clients were expected to write an object of that time.
func (s *Stores) ExternalWrites(c schemas.Copy, modified time.Time) bool {
	return s.Settings(c.Account, c.Store).ExpectsWrite(modified)
}

// RepairMode returns the repair mode of a store for a fault that was found at a time. Mode Auto holds only for faults
// that were found after it came into force; the others are approved.
func (s *Stores) RepairMode(account, id string, found time.Time) steward.Mode {
	st := s.of(StoreName{account, id})
	mode := steward.Mode(st.cfg.Repair)
	if mode == steward.Auto && found.Before(st.since.repair) {
		return steward.Approve
	}
	return mode
}

// Others returns the stores other than id that should have the space according to the policy, the
// primary first.
func (s *Stores) Others(account, space, id string) []string {
	rules, ok := s.policies.Rules(account, space)
	if !ok {
		return nil
	}
	var others []string
	for _, candidate := range s.current.Load().accounts[account] {
		if candidate != id && slices.ContainsFunc(rules.Pairs, func(p policy.Pair) bool {
			return p.Source == candidate || p.Destination == candidate
		}) {
			others = append(others, candidate)
		}
	}
	return others
}
