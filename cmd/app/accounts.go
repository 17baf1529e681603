package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/revision"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/lazy"
	"github.com/millrace/millrace/streams/storage/limit"
)

// An accountRegistry holds the revisions of the topic accounts.
type accountRegistry = revision.Registry[config.AccountDocument]

func newAccountRegistry(cfg *config.Config) *accountRegistry {
	return revision.NewRegistry("document of account", "settings that weaken protection do not hold",
		cfg.AccountTopic.ReadAccount)
}

// newAccounts makes the table of accounts, which keeps the stores up to date.
func (a *App) newAccounts() (err error) {
	a.accountRegistry = newAccountRegistry(a.cfg)
	a.accounts, err = kafka.NewTable(a.kafka, schemas.Accounts, a.applyAccount)
	if err != nil {
		return fmt.Errorf("make the accounts table: %w", err)
	}
	a.accounts.OnUnreadable(func(key []byte, at time.Time, cause error) {
		a.accountRegistry.Unreadable(key, at, cause)
		a.followAccount(string(key))
	})
	a.stores.catchUp = a.accounts.CatchUp
	for _, acc := range a.cfg.Accounts {
		a.controls.SetActive(acc.ID, acc.Active != config.Inactive)
	}
	return nil
}

// applyAccount applies a record of the topic accounts. A document that this process cannot apply in full is in force as
// far as it can; the error makes its record one that cannot be read.
func (a *App) applyAccount(key []byte, d *schemas.Delivery) error {
	rec, ok := d.Body.(*pb.Account)
	if !ok || !a.accountRegistry.Apply(key, d.Timestamp, rec) {
		return kafka.ErrIgnored
	}
	state, exists := a.followAccount(rec.GetAccount())
	errs := []error{a.accountRegistry.Faults(rec.GetAccount()).Unread}
	for _, st := range state.Stores {
		if err := state.faults[st.ID]; exists && err != nil {
			errs = append(errs, fmt.Errorf("store %s/%s: %w", state.ID, st.ID, err))
		}
	}
	return retry.Permanent(errors.Join(errs...))
}

// followAccount brings the stores, limits and pauses of an account in line with its records.
func (a *App) followAccount(account string) (state accountState, exists bool) {
	file := fileAccount(a.configured, account)
	var n int64
	a.accountRegistry.View(account, func(l *revision.Log[config.AccountDocument]) {
		state, exists = accountStateOf(file, l)
		n = int64(len(l.Revisions))
	})
	ids := a.stores.set(account, state, exists)
	a.slots.Refresh(account, ids...)
	a.controls.SetActive(account, !exists || state.Active != config.Inactive)
	a.log.Info("apply account", "account", account, "revision", n, "stores", len(state.Stores), "removed", !exists)
	if file != nil && exists && !file.Equal(state.Account) {
		a.log.Warn("ignore account of the configuration: another document was published for it", "account", account,
			"revision", n, "remedy", "run: millrace account diff "+account+" FILE")
	}
	return state, exists
}

// fileAccount returns an account of the configuration; nil if there is none.
func fileAccount(cfg *config.Config, account string) *config.Account {
	for i := range cfg.Accounts {
		if cfg.Accounts[i].ID == account {
			return &cfg.Accounts[i]
		}
	}
	return nil
}

// An accountState is the document in force of an account, with the state of its stores.
type accountState struct {
	config.Account
	faults map[string]error // why this process cannot use a store, by its id
	since  map[string]since // by the id of the store; nothing is zero times
}

// store returns the settings of a store; the zero value if there is none.
func (s accountState) store(id string) config.Store {
	for _, c := range s.Stores {
		if c.ID == id {
			return c
		}
	}
	return config.Store{}
}

// inForce returns the accounts in force, sorted.
func (s *Stores) inForce() (accounts []config.Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.accounts)) {
		accounts = append(accounts, s.accounts[id].Account)
	}
	return accounts
}

// inactive returns the accounts in force whose work waits, sorted.
func (s *Stores) inactive() (accounts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.accounts)) {
		if s.accounts[id].Active == config.Inactive {
			accounts = append(accounts, id)
		}
	}
	return accounts
}

// A since holds when settings of a store came into force, by the clock of the brokers. Zero is before all records.
type since struct {
	place          time.Time // its place; of two stores in one place, the later one is not used
	repair         time.Time // repair
	externalWrites time.Time // external_writes
	corrections    time.Time // corrections
	read           time.Time // read
}

// never is later than every finding.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// accountStateOf returns the state of an account: of its newest document in the topic or, if it has no revision there,
// of that in the configuration; zero if there is none. exists is false if there is no account. A revision that
// cannot be parsed leaves the stores of the one before, which are not used until the next revision.
func accountStateOf(file *config.Account, l *revision.Log[config.AccountDocument]) (state accountState, exists bool) {
	newest := l.Newest()
	switch {
	case newest.Document != nil:
		state.Account, state.faults = newest.Document.Account, maps.Clone(newest.Document.Faults)
	case file != nil && (l == nil || len(l.Revisions) == 0 || newest.Unread):
		state.Account = *file
	default:
		return state, false
	}
	if state.faults == nil {
		state.faults = map[string]error{}
	}
	state.since = map[string]since{}
	for _, st := range state.Stores {
		if newest.Unread {
			state.faults[st.ID] = l.Faults.Unread
		}
		if l == nil {
			continue
		}
		in := since{
			place:  sinceWhen(l, file, st.ID, st.Place(), config.Store.Place),
			repair: sinceWhen(l, file, st.ID, st.Repair, func(s config.Store) string { return s.Repair }),
			externalWrites: sinceWhen(l, file, st.ID, st.ExternalWrites,
				func(s config.Store) string { return s.ExternalWrites }),
			corrections: sinceWhen(l, file, st.ID, st.Corrections,
				func(s config.Store) string { return s.Corrections }),
			read: sinceWhen(l, file, st.ID, st.Read, func(s config.Store) string { return s.Read }),
		}
		if !l.Gap.IsZero() || newest.Unread {
			in.repair, in.externalWrites, in.corrections, in.read = never, never, never, never
		}
		state.since[st.ID] = in
	}
	return state, true
}

// sinceWhen returns the time of the first revision in the unbroken sequence, up to the newest, in which a setting of a
// store has its present value. Zero is before the first one: the configuration has it too.
func sinceWhen(l *revision.Log[config.AccountDocument], file *config.Account, id, value string,
	setting func(config.Store) string,
) (first time.Time) {
	has := func(a *config.Account) bool {
		return a != nil && slices.ContainsFunc(a.Stores, func(s config.Store) bool {
			return s.ID == id && setting(s) == value
		})
	}
	for _, r := range slices.Backward(l.Revisions) {
		if r.Document == nil || !has(&r.Document.Account) {
			return first
		}
		if first = r.Time; r.AfterGap {
			return first
		}
	}
	if has(file) {
		return time.Time{}
	}
	return first
}

// change returns a channel that is closed at the next change of the stores.
func (s *Stores) change() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// set replaces the stores of one account, or removes it, and returns the ids of the stores before and after. Stores
// with the same settings of their drivers stay, with their breakers.
func (s *Stores) set(account string, state accountState, exists bool) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids = slices.Clone(s.current.Load().accounts[account])
	if exists {
		s.accounts[account] = state
	} else {
		delete(s.accounts, account)
	}
	s.rebuild()
	close(s.changed)
	s.changed, s.unknown = make(chan struct{}), map[string]bool{}
	return append(ids, s.current.Load().accounts[account]...)
}

// rebuild makes the set of stores from s.accounts. The caller holds mu, or s is not shared yet.
func (s *Stores) rebuild() {
	before, shared := s.current.Load(), s.sharedPlaces()
	next := &storeSet{byKey: map[string]store{}, accounts: map[string][]string{}, limits: map[string]config.Limits{}}
	for id, a := range s.accounts {
		next.limits[id] = a.Limits
		for _, c := range a.Stores {
			key := schemas.Key(id, c.ID)
			fault := a.faults[c.ID]
			if other, is := shared[StoreName{id, c.ID}]; is {
				fault = errors.Join(fault, fmt.Errorf("it is in the place of store %s/%s", other.Account, other.Store))
			}
			st := s.storeOf(id, c, fault, before.byKey[key])
			st.since = a.since[c.ID]
			next.byKey[key] = st
			next.accounts[id] = append(next.accounts[id], c.ID)
		}
		// The primary first: good copies are searched in this order.
		slices.SortStableFunc(next.accounts[id], func(x, y string) int {
			return primaryFirst(next.byKey[schemas.Key(id, x)].cfg) - primaryFirst(next.byKey[schemas.Key(id, y)].cfg)
		})
	}
	s.current.Store(next)
	for account, ids := range before.accounts {
		for _, id := range ids {
			key := schemas.Key(account, id)
			st, stays := next.byKey[key]
			if !stays {
				s.clocks.DeleteLabelValues(account, id)
			}
			if before.byKey[key].lazy != st.lazy {
				s.retire(before.byKey[key])
			}
		}
	}
}

// sharedPlaces returns the stores that are in the place of another one, or inside it or around it, and that other one,
// which was there before. Two writers can add them at the same time, to two accounts.
func (s *Stores) sharedPlaces() map[StoreName]StoreName {
	type occupant struct {
		name  StoreName
		since time.Time
	}
	later := map[StoreName]StoreName{}
	conflict := func(a, b occupant) (first occupant) {
		if b.since.Before(a.since) || b.since.Equal(a.since) && cmp.Or(
			cmp.Compare(b.name.Account, a.name.Account), cmp.Compare(b.name.Store, a.name.Store)) < 0 {
			a, b = b, a
		}
		later[b.name] = a.name
		return a
	}
	places := map[string]occupant{}
	for id, a := range s.accounts {
		for _, c := range a.Stores {
			at, o := strings.TrimSuffix(c.Place(), "/"), occupant{StoreName{id, c.ID}, a.since[c.ID].place}
			if other, taken := places[at]; taken {
				o = conflict(o, other)
			}
			places[at] = o
		}
	}
	for place, o := range places {
		if c := s.accounts[o.name.Account].store(o.name.Store); c.Driver == "s3" && c.Bucket == "" {
			for other, in := range places { // the buckets of its spaces may be those of another store
				if other != place && strings.HasPrefix(other, place) {
					conflict(o, in)
				}
			}
		}
		for at := place; strings.Contains(at, "/"); {
			at = at[:strings.LastIndexByte(at, '/')]
			if around, is := places[at]; is {
				conflict(o, around)
			}
		}
	}
	return later
}

// storeOf returns the store of an account with its settings: the one before if its driver has the same ones. One with a
// fault cannot be opened.
func (s *Stores) storeOf(account string, c config.Store, fault error, before store) store {
	text := ""
	if fault != nil {
		text = fault.Error()
	}
	same := before.Store != nil && before.fault == text && alike(before.cfg, c)
	if same && before.cfg.Requests == c.Requests {
		before.cfg = c
		return before
	}
	open, err := driver(account, c, s.log, s.clockOf(account, c.ID))
	if err = errors.Join(fault, err); err != nil {
		open = func(context.Context) (storage.Store, error) { return nil, retry.Unavailable(err) }
	}
	onDemand := lazy.New(c.Driver, open)
	b := before.breaker
	if !same {
		b = limit.NewBreaker(limit.Config{Account: account, Store: c.ID, Log: s.log})
	}
	t := limit.NewThrottle(limit.Rates{
		Concurrency: c.Requests.AtOnce, RequestsPerSecond: float64(c.Requests.PerSecond),
		BytesPerSecond: float64(c.Requests.BytesPerSecond),
	}, s.log.With("account", account, "store", c.ID))
	return store{Store: limit.New(onDemand, b, t), lazy: onDemand, breaker: b, cfg: c, fault: text}
}

// alike reports whether two settings open the same store in the same way: they differ at most in those that the driver
// does not know.
func alike(a, b config.Store) bool {
	for _, s := range []*config.Store{&a, &b} {
		s.Primary, s.Read, s.SamplePercent, s.Repair, s.Watch = false, "", 0, "", false
		s.ExternalWrites, s.Corrections = "", ""
		s.Limits, s.Requests = config.Limits{}, config.Requests{}
		if s.Layout == "millrace" { // the default
			s.Layout = ""
		}
	}
	return a == b
}

// retire closes a store that was replaced when no task refers to it any more. The caller holds mu.
func (s *Stores) retire(st store) {
	s.replaced[st.lazy] = true
	runtime.AddCleanup(st.Store, func(l *lazy.Store) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := l.Close(); err != nil {
			s.log.Warn("close a store that was replaced", "err", err)
		}
		delete(s.replaced, l)
	}, st.lazy)
}

// admitUnknown returns an error of class unavailable until the topic of accounts was read since a task named the store.
func (s *Stores) admitUnknown(account, id string) error {
	if s.catchUp == nil {
		return nil
	}
	key := schemas.Key(account, id)
	s.mu.Lock()
	read, asked := s.unknown[key]
	if !asked {
		s.unknown[key] = false
	}
	s.mu.Unlock()
	if read {
		return nil
	}
	select {
	case s.asked <- struct{}{}:
	default:
	}
	return retry.Unavailable(fmt.Errorf("store %s/%s is not known yet: the topic of accounts is read again", account, id))
}

// readForUnknown reads the topic of accounts for tasks of unknown stores until ctx is done.
func (s *Stores) readForUnknown(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.asked:
		}
		s.mu.Lock()
		asked := slices.Collect(maps.Keys(s.unknown))
		s.mu.Unlock()
		if err := s.catchUp(ctx); err != nil {
			continue // the next task asks again
		}
		s.mu.Lock()
		for _, key := range asked {
			s.unknown[key] = true
		}
		s.mu.Unlock()
	}
}

// accountsInForce reads the topic of accounts, and returns the accounts in force; those of the configuration if Kafka
// cannot be asked.
func (a *App) accountsInForce(ctx context.Context) []config.Account {
	cfg, err := EffectiveConfig(ctx, a.configured, a.log)
	if err != nil {
		a.log.Warn("use the accounts of the configuration: those of the topic are unknown", "err", err)
	}
	return cfg.Accounts
}

// effectiveAccounts returns the accounts in force: those of the configuration, except those that have revisions in the
// topic, and those of the topic. Accounts are sorted if the topic has any.
func effectiveAccounts(cfg *config.Config, r *accountRegistry) (all []config.Account) {
	names := r.Accounts()
	for _, a := range cfg.Accounts {
		if !slices.Contains(names, a.ID) {
			names = append(names, a.ID)
		}
	}
	for _, name := range names {
		r.View(name, func(l *revision.Log[config.AccountDocument]) {
			if state, exists := accountStateOf(fileAccount(cfg, name), l); exists {
				state.Revision, state.Unusable = l.Newest().Of, map[string]string{}
				for id, err := range state.faults {
					state.Unusable[id] = err.Error()
				}
				all = append(all, state.Account)
			}
		})
	}
	return all
}
