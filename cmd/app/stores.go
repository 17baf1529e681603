package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/steward"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/limit"
)

// Stores are the stores of the configuration, opened. Its methods are what the
// processors need to know of them.
type Stores struct {
	log      *slog.Logger
	byKey    map[string]store // by schemas.Key(account, id)
	accounts map[string][]string
	limits   map[string]config.Limits // by account
	policies *policy.Book
	waiting  *kafka.Waiting // messages that wait for stores; nil: not counted
}

type store struct {
	storage.Store // the mount, behind the breaker
	lazy          *lazyStore
	breaker       *limit.Breaker
	throttle      *limit.Throttle
	transitions   *transitions
	cfg           config.Store
}

// newStores knows every store of cfg. It opens none: a store is opened when it is first used.
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
			m, changes := &lazyStore{kind: c.Driver, openDriver: open}, newTransitions()
			b := limit.NewBreaker(limit.Config{Account: a.ID, Store: c.ID, Log: log, Changed: changes.changed})
			t := limit.NewThrottle(limit.Rates{
				Concurrency: c.Requests.AtOnce, RequestsPerSecond: float64(c.Requests.PerSecond), BytesPerSecond: float64(c.Requests.BytesPerSecond),
			}, log.With("account", a.ID, "store", c.ID))
			s.byKey[schemas.Key(a.ID, c.ID)] = store{limit.NewThrottled(m, b, t), m, b, t, changes, c}
			s.accounts[a.ID] = append(s.accounts[a.ID], c.ID)
		}
		// Primary first: the order in which good copies are looked for.
		slices.SortStableFunc(s.accounts[a.ID], func(x, y string) int {
			return primaryFirst(s.byKey[schemas.Key(a.ID, x)].cfg) - primaryFirst(s.byKey[schemas.Key(a.ID, y)].cfg)
		})
	}
	return s, precondition(errs)
}

// precondition joins what a person must mend first; nil where there is nothing.
func precondition(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPrecondition, errors.Join(errs...))
}

func primaryFirst(c config.Store) int {
	if c.Primary {
		return 0
	}
	return 1
}

// driver is the one switch over drivers. It returns what opens a store.
func driver(account string, c config.Store, log *slog.Logger) (open func(context.Context) (storage.Store, error), err error) {
	switch c.Driver {
	case "file":
		id, skipped := schemas.Key(account, c.ID), func(path, reason string) {
			log.Warn("not an item", "account", account, "store", c.ID, "path", path, "reason", reason)
		}
		return func(context.Context) (storage.Store, error) {
			if c.Layout == "plain" {
				return file.OpenPlain(file.PlainConfig{
					ID: id, Root: c.Root, Space: c.Space, Expect: c.Expect, ExpectSHA256: c.ExpectSHA256, Skipped: skipped,
				})
			}
			return file.Open(file.Config{ID: id, Root: c.Root, Skipped: skipped})
		}, nil
	case "s3":
		return func(ctx context.Context) (storage.Store, error) { return openS3(ctx, account, c, log) }, nil
	default:
		return nil, fmt.Errorf("unknown driver %q", c.Driver)
	}
}

// CheckStores opens the stores of cfg and reads their markers, so that what a person must mend is
// told before anything is made.
func CheckStores(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	stores, err := newStores(cfg, log)
	if err != nil {
		return err
	}
	return errors.Join(stores.checkMarkers(ctx), stores.close())
}

// close closes the stores that hold anything open.
func (s *Stores) close() error {
	var errs []error
	for _, st := range s.byKey {
		errs = append(errs, st.lazy.close())
	}
	return errors.Join(errs...)
}

// Store returns an account's store.
func (s *Stores) Store(account, id string) (storage.Store, bool) {
	st, ok := s.byKey[schemas.Key(account, id)]
	return st.Store, ok
}

// Admit returns nil where a task may use a store now, or the error, of class
// unavailable, that its first look would get. It admits to a store that nobody knows:
// whoever handles the task knows what to say of that.
func (s *Stores) Admit(account, id string) error {
	if st, ok := s.byKey[schemas.Key(account, id)]; ok {
		return st.breaker.Admit()
	}
	return nil
}

// Path returns where an item's bytes lie in a store that keeps them in files.
func (s *Stores) Path(ctx context.Context, name StoreName, space, item string) (string, error) {
	st, ok := s.byKey[schemas.Key(name.Account, name.Store)]
	if !ok {
		return "", fmt.Errorf("no store %s/%s", name.Account, name.Store)
	}
	return st.lazy.Path(ctx, space, item)
}

// limit is what the configuration says of a store, or of an account as a whole.
func (s *Stores) limit(account, id string) kafka.Limit {
	l := s.limits[account]
	if id != "" {
		l = s.byKey[schemas.Key(account, id)].cfg.Limits
	}
	return kafka.Limit{Tasks: l.Tasks, TasksPerSecond: float64(l.TasksPerSecond), BytesPerSecond: float64(l.BytesPerSecond)}
}

// A BreakerState says whether a store is away.
type BreakerState struct {
	Account, Store string
	State          limit.State
	Since          time.Time // it is away, or is not
	Cause          error     // the first failure; nil where it is not away
	Waiting        int       // messages that this process has sent to delay lanes since it is away, and that are not due
}

// Breakers returns the state of every store, by account and in the order of IDs.
func (s *Stores) Breakers() []BreakerState {
	var all []BreakerState
	for _, account := range slices.Sorted(maps.Keys(s.accounts)) {
		for _, id := range s.accounts[account] {
			key := schemas.Key(account, id)
			state, since, cause := s.byKey[key].breaker.State()
			all = append(all, BreakerState{account, id, state, since, cause, s.waiting.Of(key)})
		}
	}
	return all
}

// IDs returns the ids of an account's stores, the primary first.
func (s *Stores) IDs(account string) []string { return s.accounts[account] }

// checkMarkers refuses stores whose marker cannot be read, for a person who waits for them: a root
// that is not mounted must not look like a store that lost everything. It passes by the
// breakers: what a person mends before anything runs is no failure of a store that is in use.
func (s *Stores) checkMarkers(ctx context.Context) error {
	var errs []error
	for account, ids := range s.accounts {
		for _, id := range ids {
			if err := s.byKey[schemas.Key(account, id)].lazy.Marker(ctx); err != nil {
				n := StoreName{account, id}
				errs = append(errs, fmt.Errorf("store %s/%s: %w: %s", account, id, err, s.remedyFor(n, err)))
			}
		}
	}
	return precondition(errs)
}

// remedy says what a person can do about a marker that could not be read.
func remedy(n StoreName, err error) string {
	switch {
	case errors.Is(err, storage.ErrWrongMarker):
		return "check in the configuration where it is, and what is expected there"
	case errors.Is(err, fs.ErrNotExist):
		return "make or mount its root, or mend accounts in the configuration"
	case errors.Is(err, storage.ErrNoMarker):
		return fmt.Sprintf("if it is mounted and new to millrace, run: millrace store init %s/%s", n.Account, n.Store)
	}
	return remedyUnreachable
}

const remedyUnreachable = "see that it is up, mounted and reachable"

// remedyFor is remedy for a store of the configuration: what a service refuses says by itself what to see to.
func (s *Stores) remedyFor(n StoreName, err error) string {
	switch {
	case errors.Is(err, storage.ErrCredentials):
		return "see its credentials in the configuration"
	case s.of(n).cfg.Driver == "file", errors.Is(err, storage.ErrWrongMarker), errors.Is(err, storage.ErrNoMarker):
		return remedy(n, err)
	}
	return "see its settings in the configuration"
}

// init writes a store's marker where it has none.
func (s *Stores) init(ctx context.Context, name StoreName) error {
	st, ok := s.byKey[schemas.Key(name.Account, name.Store)]
	if !ok {
		return fmt.Errorf("%w: the configuration has no store %s/%s", ErrPrecondition, name.Account, name.Store)
	}
	d, err := st.lazy.open(ctx)
	if err != nil {
		return fmt.Errorf("%w: open store %s/%s: %w: %s", ErrPrecondition, name.Account, name.Store, err, s.remedyFor(name, err))
	}
	if err = d.Marker(ctx); errors.Is(err, storage.ErrNoMarker) {
		err = d.WriteMarker(ctx)
	}
	switch state := stateOf(err); {
	case state == storeOther, state == storeUnavailable, state == storeUnusable: // trying again mends nothing
		return fmt.Errorf("%w: mark store %s/%s: %w: %s", ErrPrecondition, name.Account, name.Store, err, s.remedyFor(name, err))
	case err != nil:
		return fmt.Errorf("mark store %s/%s: %w", name.Account, name.Store, err)
	}
	return nil
}

// Settings says how a store is checked.
func (s *Stores) Settings(account, id string) fixity.StoreSettings {
	c := s.byKey[schemas.Key(account, id)].cfg
	set := fixity.StoreSettings{Never: c.Read == "never", ExternalWrites: c.ExternalWrites == "expected"}
	if c.Read == "sampled" {
		set.SamplePercent = c.SamplePercent
	}
	return set
}

// RepairMode returns who decides about repairs of a store's copies.
func (s *Stores) RepairMode(account, id string) steward.Mode {
	return steward.Mode(s.byKey[schemas.Key(account, id)].cfg.Repair)
}

// Others returns the stores other than id that the policy has hold the space, the primary first.
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
