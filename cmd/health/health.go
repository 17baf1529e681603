// Package health reports whether a process does its work, as the probes of an orchestrator ask: is it
// live, is it ready, has it started.
//
// A condition that a new process would find too, such as an unavailable engine, makes a process not
// ready, and never not live. A process is not live if a role has had messages that it could handle
// for longer than the stall time and has done nothing, or if tasks do not end after they were
// cancelled. A failed query of an engine neither hides a stall nor causes one.
//
// The sweeper reads no topic. It is ready when it has read the checkpoints, and a sweep that runs is
// its work.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/limit"
)

const (
	collectInterval  = 15 * time.Second // or a quarter of health.stall_after, if that is shorter
	startingInterval = time.Second      // while Kafka is starting
	requestTimeout   = 10 * time.Second
	// startLimit is how long Kafka may be starting before that counts as an error.
	startLimit = time.Minute
)

// errNoOffsets reports that Kafka has been starting for longer than startLimit.
var errNoOffsets = errors.New("the brokers have not created the topic __consumer_offsets within a minute: " +
	"offsets.topic.replication.factor may be larger than the number of brokers")

// Config configures a Monitor: its limits, and the sources of the state.
type Config struct {
	Log *slog.Logger
	// StallAfter is the time after which a role that has due messages, and does nothing, is stalled.
	StallAfter  time.Duration
	TopicPrefix string

	Roles func() []metrics.RoleState // of this process
	Lags  func(context.Context, ...schemas.Role) ([]admin.Lag, error)
	// Ping checks that ClickHouse answers. nil: no role of this process uses it.
	Ping func(context.Context) error
	// Stores returns the stores that the roles use, and Policies the refused policies that they apply.
	// nil: the roles use none.
	Stores   func() []Store
	Policies func() []string
	// Unreadable returns the records of tables that cannot be read and on which the roles depend, with
	// the action to take. Stopped returns the partitions that this process has stopped reading.
	Unreadable func() []string
	Stopped    func() []client.UnreadableBatch
	SetLags    func([]admin.Lag) // sets the metrics of the lag
}

// A Store is the availability of a store.
type Store struct {
	Account, Store string
	State          limit.State
	Since          time.Time // of the last change of availability
	Cause          error     // the first failure; nil if the store is available
	Waiting        int       // messages that this process sent to delay lanes since then, and that are not due
}

// A Monitor collects the state of the process.
type Monitor struct {
	c Config

	// starting is the time since which Kafka has been starting; zero: it is not. Only Collect uses it.
	starting time.Time
	stopping chan struct{} // closed by Stop

	mu        sync.Mutex // guards the rest
	collected time.Time
	faults    map[string]error
	due       map[roleClass]int64
	dueSince  map[schemas.Role]time.Time
	started   bool
	ending    bool
}

// A roleClass is one class of a role.
type roleClass struct {
	role  schemas.Role
	class schemas.Class
}

// New makes a Monitor. Nothing is collected before Run.
func New(c Config) *Monitor {
	if c.Stores == nil {
		c.Stores = func() []Store { return nil }
	}
	if c.Policies == nil {
		c.Policies = func() []string { return nil }
	}
	return &Monitor{c: c, stopping: make(chan struct{})}
}

// Stop records that the process was asked to stop: it is not ready any more.
func (m *Monitor) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ending {
		close(m.stopping)
	}
	m.ending = true
}

func (m *Monitor) isEnding() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ending
}

// Run collects the state periodically, until ctx is done.
func (m *Monitor) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		m.Collect(ctx)
		_ = retry.Sleep(ctx, m.nextInterval()) // only ctx ends it early
	}
	return nil
}

func (m *Monitor) interval() time.Duration { return min(collectInterval, m.c.StallAfter/4) }

// nextInterval returns the time until the next collection. While Kafka is starting it is short,
// since that takes seconds.
func (m *Monitor) nextInterval() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if errors.Is(m.faults[engineKafka], client.ErrOffsetsNotReady) {
		return min(startingInterval, m.interval())
	}
	return m.interval()
}

// Collect queries the engines once and records the results. A failed query leaves the lag unknown: it
// counts neither as lag nor as none.
func (m *Monitor) Collect(run context.Context) {
	ctx, cancel := context.WithTimeout(run, requestTimeout)
	defer cancel()
	states := m.c.Roles()
	var roles []schemas.Role
	for _, s := range states {
		if !slices.Contains(roles, s.Role) {
			roles = append(roles, s.Role)
		}
	}
	var (
		wg        sync.WaitGroup
		lags      []admin.Lag
		lagErr    error
		engineErr error
	)
	wg.Go(func() { lags, lagErr = m.c.Lags(ctx, roles...) })
	if m.c.Ping != nil {
		wg.Go(func() { engineErr = m.c.Ping(ctx) })
	}
	wg.Wait()
	if run.Err() != nil {
		return
	}
	lagErr = m.limitStarting(lagErr)
	switch {
	case errors.Is(lagErr, client.ErrOffsetsNotReady):
		m.c.Log.Info("wait for Kafka to start", "err", lagErr)
	case lagErr != nil:
		m.c.Log.Warn("read the lag", "kafka", describeEngineError(lagErr), "err", lagErr)
	default:
		m.c.SetLags(lags)
	}
	if engineErr != nil {
		m.c.Log.Warn("ping ClickHouse", "clickhouse", describeEngineError(engineErr), "err", engineErr)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.collected
	m.collected, m.faults = time.Now(), map[string]error{engineKafka: lagErr}
	if m.c.Ping != nil {
		m.faults[engineClickHouse] = engineErr
	}
	if lagErr != nil {
		m.shiftDueSince(states, m.collected.Sub(before))
		return
	}
	m.due = map[roleClass]int64{}
	stopped := m.c.Stopped()
	for _, s := range states {
		due := dueInOwned(s, lags, stopped, m.c.TopicPrefix)
		if !readsTopics(s.Role) {
			due = s.Busy
		}
		m.due[roleClass{s.Role, s.Class}] = due
	}
	m.updateDueSince(states)
}

// updateDueSince records since when each role has had work that it could do.
func (m *Monitor) updateDueSince(states []metrics.RoleState) {
	since := m.dueSince
	m.dueSince = map[schemas.Role]time.Time{}
	for _, d := range m.roles(states) {
		if d.Able {
			m.dueSince[d.Role] = m.collected
			if at, ok := since[d.Role]; ok {
				m.dueSince[d.Role] = at
			}
		}
	}
}

// limitStarting returns errNoOffsets in place of client.ErrOffsetsNotReady when Kafka has been starting for
// startLimit.
func (m *Monitor) limitStarting(err error) error {
	switch {
	case !errors.Is(err, client.ErrOffsetsNotReady):
		m.starting = time.Time{}
	case m.starting.IsZero():
		m.starting = time.Now()
	case time.Since(m.starting) >= startLimit:
		return fmt.Errorf("%w: %v", errNoOffsets, err) //nolint:errorlint // it must not match client.ErrOffsetsNotReady
	}
	return err
}

// shiftDueSince keeps the due messages of the last collection, since the present ones are unknown,
// and does not count the time since then: a failed collection neither hides a stall nor causes one.
// m.mu is held.
func (m *Monitor) shiftDueSince(states []metrics.RoleState, unknown time.Duration) {
	for _, d := range m.roles(states) {
		if since, ok := m.dueSince[d.Role]; ok {
			if d.Active.After(since) {
				since = d.Active
			}
			if since = since.Add(unknown); since.After(m.collected) {
				since = m.collected
			}
			m.dueSince[d.Role] = since
		}
	}
}

// dueInOwned returns the number of due messages in the partitions of this process. A partition that
// it has stopped reading counts as 0, since another process would stop too.
func dueInOwned(s metrics.RoleState, lags []admin.Lag, stopped []client.UnreadableBatch, prefix string) (due int64) {
	for _, l := range lags {
		if l.Role != s.Role || l.Class != s.Class || l.Due() == 0 {
			continue
		}
		name, foreign := l.Topic.Foreign()
		if !foreign {
			name = prefix + string(l.Topic)
		}
		for id, n := range l.Partitions {
			halted := slices.ContainsFunc(stopped, func(b client.UnreadableBatch) bool {
				return b.Reader == l.Group && b.Topic == l.Topic && b.Partition == id
			})
			if s.Owned[name][id] && !halted {
				due += n
			}
		}
	}
	return due
}

// roles combines the classes of each role. m.mu is held.
func (m *Monitor) roles(states []metrics.RoleState) (all []roleHealth) {
	for _, s := range states {
		i := slices.IndexFunc(all, func(d roleHealth) bool { return d.Role == s.Role })
		if i < 0 {
			i = len(all)
			all = append(all, roleHealth{Role: s.Role, Member: true, DueSince: m.dueSince[s.Role]})
		}
		d := &all[i]
		d.Member = d.Member && s.Member
		for _, ids := range s.Owned {
			d.Partitions += len(ids)
		}
		d.InFlight += s.InFlight
		d.Busy += s.Busy
		d.Stuck += s.Stuck
		due := m.due[roleClass{s.Role, s.Class}]
		d.Due += due
		held := s.InFlight > 0 && s.Held >= s.InFlight && s.Busy == 0
		waits := needsClickHouse(s.Role) && m.faults[engineClickHouse] != nil
		if !s.Refused.IsZero() && (d.UnacknowledgedSince.IsZero() || s.Refused.Before(d.UnacknowledgedSince)) {
			d.UnacknowledgedSince = s.Refused
		}
		d.Able = d.Able || due > 0 && !held && !waits && s.Refused.IsZero()
		if s.Active.After(d.Active) {
			d.Active = s.Active
		}
	}
	slices.SortFunc(all, func(a, b roleHealth) int { return cmp.Compare(a.Role, b.Role) })
	return all
}

// needsClickHouse reports whether all work of a role needs ClickHouse, so that it waits while that is
// unavailable.
func needsClickHouse(role schemas.Role) bool {
	return role == schemas.RoleSink || role == schemas.RoleState || role == schemas.RoleSweeper
}

// readsTopics reports whether a role works on messages. The sweeper looks for work itself.
func readsTopics(role schemas.Role) bool { return role != schemas.RoleSweeper }

// A report is the answer of the health endpoints.
type report struct {
	status
	Engines  map[string]string `json:"engines"` // that the roles use: "ok", or the error
	Roles    []roleHealth      `json:"roles"`
	Breakers []breakerReport   `json:"breakers"` // of all stores, if a role uses stores
}

type breakerReport struct {
	Store string    `json:"store"`
	State string    `json:"state"`
	Since time.Time `json:"since"`
	Cause string    `json:"cause,omitempty"`
	// Waiting is the number of messages that this process has sent to delay lanes since the store
	// became unavailable, and that are not due.
	Waiting int `json:"waiting"`
}

// report returns the present report.
func (m *Monitor) report() report {
	states, stores, policies, unreadable := m.c.Roles(), m.c.Stores(), m.c.Policies(), m.c.Unreadable()
	m.mu.Lock()
	defer m.mu.Unlock()
	roles := m.roles(states)
	s := snapshot{
		now: time.Now(), collected: m.collected, maxAge: 4 * m.interval(), stall: m.c.StallAfter, faults: m.faults,
		roles: roles, stores: stores, policies: policies, unreadable: unreadable, ending: m.ending,
	}
	r := report{Engines: map[string]string{}, Roles: roles, Breakers: []breakerReport{}, status: evaluate(s)}
	m.started = m.started || r.Started
	r.Started = m.started
	for engine, err := range m.faults {
		r.Engines[engine] = "ok"
		if err != nil {
			r.Engines[engine] = err.Error()
		}
	}
	for _, b := range stores {
		one := breakerReport{Store: b.Account + "/" + b.Store, State: b.State.String(), Since: b.Since, Waiting: b.Waiting}
		if b.Cause != nil {
			one.Cause = b.Cause.Error()
		}
		r.Breakers = append(r.Breakers, one)
	}
	return r
}
