package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/limit"
)

const (
	healthInterval         = 15 * time.Second // or a quarter of health.stall_after, if that is shorter
	healthIntervalStarting = time.Second      // while Kafka is starting
	requestTimeout         = 10 * time.Second
	// startLimit is how long Kafka may be starting before that counts as an error.
	startLimit = time.Minute

	maxReasons = 20 // policies, and records, that a status names
)

// The engines, as named in reports.
const (
	engineKafka      = "kafka"
	engineClickHouse = "clickhouse"
)

// errNoOffsets reports that Kafka has been starting for longer than startLimit.
var errNoOffsets = errors.New("the brokers have not created the topic __consumer_offsets within a minute: " +
	"offsets.topic.replication.factor may be larger than the number of brokers")

// onlyWritesClickHouse reports whether all work of a role is writing to ClickHouse, so that it
// waits while that is unavailable.
func onlyWritesClickHouse(role schemas.Role) bool {
	return role == schemas.RoleSink || role == schemas.RoleState
}

// A roleHealth is the state of one role in this process.
type roleHealth struct {
	Role schemas.Role `json:"role"`
	// Member reports whether the role has joined all its groups, with or without partitions.
	Member     bool `json:"member"`
	Partitions int  `json:"partitions"`
	// Due is the number of messages of the partitions that could be handled now, without those that
	// are paused or in a delay lane.
	Due int64 `json:"due"`
	// Able reports whether some of them can be handled: not all messages in flight are paused, and the
	// engine that the role needs is available.
	Able     bool  `json:"able"`
	InFlight int64 `json:"in_flight"`
	Busy     int64 `json:"working"`
	Stuck    int64 `json:"stuck"` // tasks that did not end after they were cancelled
	// DueSince is the time since which the role has had due messages that it could handle; zero: it
	// has none.
	DueSince time.Time `json:"behind,omitzero"`
	Active   time.Time `json:"active,omitzero"` // of the last progress
	// Refused is the time since which the brokers have refused outputs; zero: they accept them.
	Refused time.Time `json:"refused,omitzero"`
}

// A snapshot is the state of the process at one time: all inputs of evaluate.
type snapshot struct {
	now       time.Time
	collected time.Time     // when the engines were asked; zero: not yet
	maxAge    time.Duration // of collected
	stall     time.Duration
	faults    map[string]error // by engine, of those that the roles use; nil: no error
	roles     []roleHealth     // Due is as of collected, the rest as of now
	stores    []BreakerState   // of the stores that the roles use
	// policies are the refused policies that the roles apply, with the reasons.
	policies []string
	// unreadable are the records of tables that cannot be read, with the action to take.
	unreadable []string
	ending     bool // the process is stopping
}

// A status is the health of the process, and the reasons why it is not better.
type status struct {
	Live    bool     `json:"live"`    // false: restart the process
	Ready   bool     `json:"ready"`   // false: some of its work cannot be done now
	Started bool     `json:"started"` // false: it is still starting
	Reasons []string `json:"reasons"`
}

// evaluate returns the status for a snapshot. A condition that a new process would find too, such
// as an unavailable engine, does not make this one not live.
func evaluate(s snapshot) status {
	v := status{Live: true, Ready: true, Reasons: []string{}}
	no := func(what *bool, format string, args ...any) {
		*what = false
		v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...))
	}
	known := !s.collected.IsZero() && s.now.Sub(s.collected) < s.maxAge
	if !known {
		no(&v.Ready, "the state of the engines is not known")
	}
	if s.ending {
		no(&v.Ready, "the process is stopping")
	}
	for _, engine := range []string{engineKafka, engineClickHouse} {
		if err := s.faults[engine]; known && err != nil {
			no(&v.Ready, "%s %s: %v", engine, describeEngineError(err), err)
		}
	}
	if names := unavailableStores(s.stores); len(names) > 0 && len(names) == len(s.stores) {
		no(&v.Ready, "every store is unavailable: %s", strings.Join(names, ", "))
	}
	for i, refused := range s.policies {
		if i == maxReasons {
			no(&v.Ready, "%d more policies are refused", len(s.policies)-i)
			break
		}
		no(&v.Ready, "policy refused: %s", refused)
	}
	for i, record := range s.unreadable {
		if i == maxReasons {
			no(&v.Ready, "%d more records cannot be read", len(s.unreadable)-i)
			break
		}
		no(&v.Ready, "record cannot be read: %s", record)
	}
	joined := true
	for _, d := range s.roles {
		if d.Stuck > 0 {
			no(&v.Live, "role %s: %d tasks have not ended after they were cancelled", d.Role, d.Stuck)
		}
		if !d.Refused.IsZero() {
			no(&v.Ready, "role %s: the brokers have refused its outputs for %v; publishing is retried",
				d.Role, s.now.Sub(d.Refused).Round(time.Second))
		}
		if !d.Member {
			joined = false
			no(&v.Ready, "role %s is not in its group", d.Role)
		}
		if d.DueSince.IsZero() || !d.Able || !known {
			continue
		}
		since := d.DueSince
		if d.Active.After(since) {
			since = d.Active
		}
		if idle := s.now.Sub(since); idle >= s.stall {
			no(&v.Live, "role %s: %d messages are due, and nothing was done for %v", d.Role, d.Due, idle.Round(time.Second))
		}
	}
	v.Ready, v.Started = v.Ready && v.Live, known && joined
	return v
}

// describeEngineError returns the kind of an engine's error as text.
func describeEngineError(err error) string {
	switch {
	case errors.Is(err, kafka.ErrOffsetsNotReady):
		return "is starting"
	case errors.Is(err, errNoOffsets):
		return "cannot keep offsets"
	case errors.Is(err, kafka.ErrLoginRejected), errors.Is(err, clickhouse.ErrAccess):
		return "refuses access"
	}
	return "is unavailable"
}

// unavailableStores returns the names of the unavailable stores: their breakers are not closed.
func unavailableStores(stores []BreakerState) (names []string) {
	for _, b := range stores {
		if b.State != limit.Closed {
			names = append(names, b.Account+"/"+b.Store)
		}
	}
	return names
}

// health collects the state of the process.
type health struct {
	log    *slog.Logger
	stall  time.Duration
	prefix string // of topics
	// Sources of the state.
	states     func() []kafka.RoleState
	lags       func(context.Context, ...schemas.Role) ([]kafka.Lag, error)
	ping       func(context.Context) error // of ClickHouse; nil: no role of this process uses it
	breakers   func() []BreakerState       // of the stores that roles here touch
	policies   func() []string             // that are refused, and that roles here apply
	unreadable func() []string             // records of tables on which roles here depend
	stopped    func() []kafka.UnreadableBatch
	publish    func([]kafka.Lag) // of metrics

	// starting is the time since which Kafka has been starting; zero: it is not. Only collect uses it.
	starting time.Time

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

func (a *App) newHealth(n needs, s *schema) *health {
	m := a.kafka.Metrics
	h := &health{
		log: a.log, stall: a.cfg.Health.StallAfter, prefix: a.cfg.Kafka.TopicPrefix,
		states: m.State, lags: a.admin.Lags, breakers: func() []BreakerState { return nil }, publish: m.SetLags,
		policies: func() []string { return nil }, unreadable: func() []string { return a.unreadableRecords(n) },
		stopped: a.unreadable.Batches,
	}
	if n.clickhouse {
		h.ping = s.ping
	}
	if n.stores {
		h.breakers = a.stores.Breakers
	}
	if n.policies {
		h.policies = a.folder.refused
	}
	return h
}

// stop records that the process was asked to stop.
func (h *health) stop() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ending = true
}

// run collects the state periodically, until ctx is done.
func (h *health) run(ctx context.Context) error {
	for ctx.Err() == nil {
		h.collect(ctx)
		_ = retry.Sleep(ctx, h.nextInterval()) // only ctx ends it early
	}
	return nil
}

func (h *health) interval() time.Duration { return min(healthInterval, h.stall/4) }

// nextInterval returns the time until the next collection. While Kafka is starting it is short,
// since that takes seconds.
func (h *health) nextInterval() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(h.faults[engineKafka], kafka.ErrOffsetsNotReady) {
		return min(healthIntervalStarting, h.interval())
	}
	return h.interval()
}

// collect queries the engines and records the results. A failed query leaves the lag unknown: it
// counts neither as lag nor as none.
func (h *health) collect(run context.Context) {
	ctx, cancel := context.WithTimeout(run, requestTimeout)
	defer cancel()
	states := h.states()
	var roles []schemas.Role
	for _, s := range states {
		if !slices.Contains(roles, s.Role) {
			roles = append(roles, s.Role)
		}
	}
	var (
		wg        sync.WaitGroup
		lags      []kafka.Lag
		lagErr    error
		engineErr error
	)
	wg.Go(func() { lags, lagErr = h.lags(ctx, roles...) })
	if h.ping != nil {
		wg.Go(func() { engineErr = h.ping(ctx) })
	}
	wg.Wait()
	if run.Err() != nil {
		return
	}
	lagErr = h.limitStarting(lagErr)
	switch {
	case errors.Is(lagErr, kafka.ErrOffsetsNotReady):
		h.log.Info("wait for Kafka to start", "err", lagErr)
	case lagErr != nil:
		h.log.Warn("read the lag", "kafka", describeEngineError(lagErr), "err", lagErr)
	default:
		h.publish(lags)
	}
	if engineErr != nil {
		h.log.Warn("ping ClickHouse", "clickhouse", describeEngineError(engineErr), "err", engineErr)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.collected
	h.collected, h.faults = time.Now(), map[string]error{engineKafka: lagErr}
	if h.ping != nil {
		h.faults[engineClickHouse] = engineErr
	}
	if lagErr != nil {
		h.shiftDueSince(states, h.collected.Sub(before))
		return
	}
	h.due = map[roleClass]int64{}
	stopped := h.stopped()
	for _, s := range states {
		h.due[roleClass{s.Role, s.Class}] = dueInOwned(s, lags, stopped, h.prefix)
	}
	h.updateDueSince(states)
}

// updateDueSince records since when each role has had work that it could do.
func (h *health) updateDueSince(states []kafka.RoleState) {
	since := h.dueSince
	h.dueSince = map[schemas.Role]time.Time{}
	for _, d := range h.roles(states) {
		if d.Able {
			h.dueSince[d.Role] = h.collected
			if at, ok := since[d.Role]; ok {
				h.dueSince[d.Role] = at
			}
		}
	}
}

// limitStarting returns errNoOffsets in place of kafka.ErrOffsetsNotReady when Kafka has been starting for
// startLimit.
func (h *health) limitStarting(err error) error {
	switch {
	case !errors.Is(err, kafka.ErrOffsetsNotReady):
		h.starting = time.Time{}
	case h.starting.IsZero():
		h.starting = time.Now()
	case time.Since(h.starting) >= startLimit:
		return fmt.Errorf("%w: %v", errNoOffsets, err) //nolint:errorlint // it must not match kafka.ErrOffsetsNotReady
	}
	return err
}

// shiftDueSince keeps the due messages of the last collection, since the present ones are unknown,
// and does not count the time since then: a failed collection neither hides a stall nor causes one.
// h.mu is held.
func (h *health) shiftDueSince(states []kafka.RoleState, unknown time.Duration) {
	for _, d := range h.roles(states) {
		if since, ok := h.dueSince[d.Role]; ok {
			if d.Active.After(since) {
				since = d.Active
			}
			if since = since.Add(unknown); since.After(h.collected) {
				since = h.collected
			}
			h.dueSince[d.Role] = since
		}
	}
}

// dueInOwned returns the number of due messages in the partitions of this process. A partition that
// it has stopped reading counts as 0, since another process would stop too.
func dueInOwned(s kafka.RoleState, lags []kafka.Lag, stopped []kafka.UnreadableBatch, prefix string) (due int64) {
	for _, l := range lags {
		if l.Role != s.Role || l.Class != s.Class || l.Due() == 0 {
			continue
		}
		name, foreign := l.Topic.Foreign()
		if !foreign {
			name = prefix + string(l.Topic)
		}
		for id, n := range l.Partitions {
			halted := slices.ContainsFunc(stopped, func(b kafka.UnreadableBatch) bool {
				return b.Reader == l.Group && b.Topic == l.Topic && b.Partition == id
			})
			if s.Owned[name][id] && !halted {
				due += n
			}
		}
	}
	return due
}

// roles combines the classes of each role. h.mu is held.
func (h *health) roles(states []kafka.RoleState) (all []roleHealth) {
	for _, s := range states {
		i := slices.IndexFunc(all, func(d roleHealth) bool { return d.Role == s.Role })
		if i < 0 {
			i = len(all)
			all = append(all, roleHealth{Role: s.Role, Member: true, DueSince: h.dueSince[s.Role]})
		}
		d := &all[i]
		d.Member = d.Member && s.Member
		for _, ids := range s.Owned {
			d.Partitions += len(ids)
		}
		d.InFlight += s.InFlight
		d.Busy += s.Busy
		d.Stuck += s.Stuck
		due := h.due[roleClass{s.Role, s.Class}]
		d.Due += due
		held := s.InFlight > 0 && s.Held >= s.InFlight && s.Busy == 0
		waits := onlyWritesClickHouse(s.Role) && h.faults[engineClickHouse] != nil
		if !s.Refused.IsZero() && (d.Refused.IsZero() || s.Refused.Before(d.Refused)) {
			d.Refused = s.Refused
		}
		d.Able = d.Able || due > 0 && !held && !waits && s.Refused.IsZero()
		if s.Active.After(d.Active) {
			d.Active = s.Active
		}
	}
	slices.SortFunc(all, func(a, b roleHealth) int { return cmp.Compare(a.Role, b.Role) })
	return all
}

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
func (h *health) report() report {
	states, breakers, policies, unreadable := h.states(), h.breakers(), h.policies(), h.unreadable()
	h.mu.Lock()
	defer h.mu.Unlock()
	roles := h.roles(states)
	s := snapshot{
		now: time.Now(), collected: h.collected, maxAge: 4 * h.interval(), stall: h.stall, faults: h.faults, roles: roles,
		stores: breakers, policies: policies, unreadable: unreadable, ending: h.ending,
	}
	r := report{Engines: map[string]string{}, Roles: roles, Breakers: []breakerReport{}, status: evaluate(s)}
	h.started = h.started || r.Started
	r.Started = h.started
	for engine, err := range h.faults {
		r.Engines[engine] = "ok"
		if err != nil {
			r.Engines[engine] = err.Error()
		}
	}
	for _, b := range breakers {
		one := breakerReport{Store: b.Account + "/" + b.Store, State: b.State.String(), Since: b.Since, Waiting: b.Waiting}
		if b.Cause != nil {
			one.Cause = b.Cause.Error()
		}
		r.Breakers = append(r.Breakers, one)
	}
	return r
}
