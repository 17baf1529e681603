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
	healthInterval         = 15 * time.Second // or four times in the time after which a stall is one
	healthIntervalStarting = time.Second
	requestTimeout         = 10 * time.Second // of one look
	// startLimit is how long Kafka may be starting before something is wrong with it.
	startLimit = time.Minute

	maxReasons = 20 // policies, and records, that a verdict names
)

// The engines, as reports name them.
const (
	engineKafka      = "kafka"
	engineClickHouse = "clickhouse"
)

// errNoOffsets says that Kafka has been starting for longer than startLimit.
var errNoOffsets = errors.New("the brokers have not made their topic of offsets for a minute: " +
	"offsets.topic.replication.factor may be more than there are brokers")

// stores says whether a role does nothing but write to ClickHouse: it waits while that is away.
func onlyWritesClickHouse(role schemas.Role) bool {
	return role == schemas.RoleSink || role == schemas.RoleState
}

// A duty is what one role has to do in this process, and how it does.
type roleHealth struct {
	Role schemas.Role `json:"role"`
	// Member says that it is in all its groups, with partitions or waiting for some.
	Member     bool `json:"member"`
	Partitions int  `json:"partitions"`
	// Due messages of these could be handled now; what is paused, or waits in a lane, is none.
	Due int64 `json:"due"`
	// Able says that some of them can be: no pause keeps back all that a class has in flight, and the
	// engine that the role needs is there.
	Able     bool  `json:"able"`
	InFlight int64 `json:"in_flight"`
	Busy     int64 `json:"working"`
	Stuck    int64 `json:"stuck"` // tasks that ignore that they were cancelled
	// Behind is since when it has been able to do something that is due; zero: it is not.
	DueSince time.Time `json:"behind,omitzero"`
	Active   time.Time `json:"active,omitzero"` // when something was last done, or got on
	// Refused is since when the brokers do not take outputs; zero: they do.
	Refused time.Time `json:"refused,omitzero"`
}

// A sight is what is known at one time, and all that a verdict depends on.
type snapshot struct {
	now       time.Time
	collected time.Time     // zero: not yet
	maxAge    time.Duration // for how long that counts
	stall     time.Duration
	faults    map[string]error // what is wrong with each engine that the roles use; nil: nothing
	roles     []roleHealth     // as of looked, but for what the process itself knows
	stores    []BreakerState   // those that the roles touch
	// policies are those that the roles apply and that are refused, with the reason.
	policies []string
	// unread are the records of tables that cannot be read, with what to do.
	unreadable []string
	ending     bool // somebody has asked the process to end
}

// A verdict says how the process is, and why it is not better.
type status struct {
	Live    bool     `json:"live"`    // or: end it, and start another
	Ready   bool     `json:"ready"`   // or: it cannot do all of its work now
	Started bool     `json:"started"` // or: it is still starting
	Reasons []string `json:"reasons"`
}

// judge turns what is known into a verdict. What a new process would find the same, such as an
// engine that is away, is no reason to end this one.
func evaluate(s snapshot) status {
	v := status{Live: true, Ready: true, Reasons: []string{}}
	no := func(what *bool, format string, args ...any) {
		*what = false
		v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...))
	}
	known := !s.collected.IsZero() && s.now.Sub(s.collected) < s.maxAge
	if !known {
		no(&v.Ready, "nothing is known of the engines yet, or any more")
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
		no(&v.Ready, "every store is away: %s", strings.Join(names, ", "))
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
			no(&v.Live, "role %s: %d tasks ignore that they were cancelled", d.Role, d.Stuck)
		}
		if !d.Refused.IsZero() {
			no(&v.Ready, "role %s: the brokers have not taken its outputs for %v; they are published until they do",
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

// trouble says in words what keeps an engine from being used.
func describeEngineError(err error) string {
	switch {
	case errors.Is(err, kafka.ErrStarting):
		return "is starting"
	case errors.Is(err, errNoOffsets):
		return "cannot keep offsets"
	case errors.Is(err, kafka.ErrLogin), errors.Is(err, clickhouse.ErrAccess):
		return "refuses access"
	}
	return "is away"
}

// away are the names of the stores that are.
func unavailableStores(stores []BreakerState) (names []string) {
	for _, b := range stores {
		if b.State != limit.Closed {
			names = append(names, b.Account+"/"+b.Store)
		}
	}
	return names
}

// health looks at how the process does.
type health struct {
	log    *slog.Logger
	stall  time.Duration
	prefix string // of topics
	// What it looks at.
	states     func() []kafka.RoleState
	lags       func(context.Context, ...schemas.Role) ([]kafka.Lag, error)
	ping       func(context.Context) error // ClickHouse; nil: no role here uses it
	breakers   func() []BreakerState       // of the stores that roles here touch
	policies   func() []string             // that are refused, and that roles here apply
	unreadable func() []string             // records of tables on which roles here depend
	stopped    func() []kafka.UnreadableBatch
	publish    func([]kafka.Lag) // of metrics

	// starting is since when Kafka has been starting; zero: it is not. Only look uses it.
	starting time.Time

	mu        sync.Mutex // guards the rest
	collected time.Time
	faults    map[string]error
	due       map[roleClass]int64
	dueSince  map[schemas.Role]time.Time
	started   bool
	ending    bool
}

// A group is one class of a role.
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

// stop says that the process has been asked to end.
func (h *health) stop() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ending = true
}

// run looks now and then, until ctx is done.
func (h *health) run(ctx context.Context) error {
	for ctx.Err() == nil {
		h.collect(ctx)
		_ = retry.Sleep(ctx, h.nextInterval()) // only ctx ends it early
	}
	return nil
}

func (h *health) interval() time.Duration { return min(healthInterval, h.stall/4) }

// next is the time to the next look. While Kafka is starting it is short: that takes seconds.
func (h *health) nextInterval() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(h.faults[engineKafka], kafka.ErrStarting) {
		return min(healthIntervalStarting, h.interval())
	}
	return h.interval()
}

// look asks the engines, and notes what they say. What they do not say is not known: it is
// neither lag nor none.
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
	case errors.Is(lagErr, kafka.ErrStarting):
		h.log.Info("Kafka is starting", "err", lagErr)
	case lagErr != nil:
		h.log.Warn("the lag is not known", "kafka", describeEngineError(lagErr), "err", lagErr)
	default:
		h.publish(lags)
	}
	if engineErr != nil {
		h.log.Warn("ClickHouse cannot be used", "clickhouse", describeEngineError(engineErr), "err", engineErr)
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

// sinceBehind notes since when roles have had work that they could do.
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

// overdue returns errNoOffsets in place of kafka.ErrStarting when that has been the error for startLimit.
func (h *health) limitStarting(err error) error {
	switch {
	case !errors.Is(err, kafka.ErrStarting):
		h.starting = time.Time{}
	case h.starting.IsZero():
		h.starting = time.Now()
	case time.Since(h.starting) >= startLimit:
		return fmt.Errorf("%w: %v", errNoOffsets, err) //nolint:errorlint // it is no longer taken for a start
	}
	return err
}

// hold leaves what was due as it was, since it is not known what is now, and does not count the time
// since the last look: so a look that fails neither hides a stall nor makes one. h.mu is held.
func (h *health) shiftDueSince(states []kafka.RoleState, unseen time.Duration) {
	for _, d := range h.roles(states) {
		if since, ok := h.dueSince[d.Role]; ok {
			if d.Active.After(since) {
				since = d.Active
			}
			if since = since.Add(unseen); since.After(h.collected) {
				since = h.collected
			}
			h.dueSince[d.Role] = since
		}
	}
}

// owned returns how much is due of the partitions that this process owns. A partition that it has stopped reading counts
// as nothing: another process would stop as well.
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

// duties puts together what the classes of each role do. h.mu is held.
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

// A report is what the process says of itself.
type report struct {
	status
	Engines  map[string]string `json:"engines"` // that the roles use: "ok", or what is wrong
	Roles    []roleHealth      `json:"roles"`
	Breakers []breakerReport   `json:"breakers"` // of all stores, where a role touches them
}

type breakerReport struct {
	Store string    `json:"store"`
	State string    `json:"state"`
	Since time.Time `json:"since"`
	Cause string    `json:"cause,omitempty"`
	// Waiting messages were sent to delay lanes by this process since the store is away, and are not due.
	Waiting int `json:"waiting"`
}

// report judges what is known now.
func (h *health) report() report {
	states, breakers, policies, unread := h.states(), h.breakers(), h.policies(), h.unreadable()
	h.mu.Lock()
	defer h.mu.Unlock()
	duties := h.roles(states)
	r := report{Engines: map[string]string{}, Roles: duties, Breakers: []breakerReport{},
		status: evaluate(snapshot{now: time.Now(), collected: h.collected, maxAge: 4 * h.interval(), stall: h.stall, faults: h.faults,
			roles: duties, stores: breakers, policies: policies, unreadable: unread, ending: h.ending})}
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
