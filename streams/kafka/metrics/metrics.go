// Package metrics counts what the roles and the Kafka clients of a process do, and exports the counts to Prometheus.
// Counting never blocks and, per message, allocates nothing.
package metrics

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A Disposition is the result of a delivery.
type Disposition uint8

// The dispositions. All but DispositionRetried settle the message.
const (
	DispositionDone        Disposition = iota
	DispositionRetried                 // will be retried in place
	DispositionTransient               // sent to a delay lane after a transient error
	DispositionUnavailable             // sent to a delay lane: a store or engine is unavailable
	DispositionWait                    // sent to a delay lane: not due yet
	DispositionPaused                  // sent to a delay lane by a pause
	DispositionMoved                   // sent to a backlog topic
	DispositionDead                    // sent to topic dead
	Dispositions
)

// String returns the value of label disposition.
func (f Disposition) String() string {
	return [Dispositions]string{"done", "retried", "transient", "unavailable", "wait", "paused", "moved", "dead"}[f]
}

// DispositionOf returns the disposition of a delivery that failed with an error of class c and goes to a delay lane.
func DispositionOf(c retry.Class) Disposition {
	switch c {
	case retry.ClassUnavailable:
		return DispositionUnavailable
	case retry.ClassWait:
		return DispositionWait
	}
	return DispositionTransient
}

// A RebalanceKind is a kind of change in the assigned partitions.
type RebalanceKind uint8

// The rebalance kinds.
const (
	PartitionsAssigned RebalanceKind = iota
	PartitionsRevoked
	PartitionsLost
	rebalanceKinds
)

// String returns the value of label kind.
func (m RebalanceKind) String() string {
	return [rebalanceKinds]string{"assigned", "revoked", "lost"}[m]
}

// Metrics holds the metrics of all parts of one process. All its methods may be called on nil, and then do nothing.
type Metrics struct {
	reg   prometheus.Registerer
	base  time.Time // start of lastSuccess and lastActive
	vecs  vectors
	descs descriptions
	clock prometheus.Gauge

	clockWrong atomic.Bool // at the last comparison

	mu      sync.Mutex // guards the rest
	roles   map[roleClass]*Role
	clients map[string]bool      // values of label client in use
	sizes   map[string]topicSize // of records read, by topic name
}

type roleClass struct {
	role  schemas.Role
	class schemas.Class
}

type vectors struct {
	messages, commits, publishFailures, rebalances, rebalanceSeconds *prometheus.CounterVec
	handler                                                          *prometheus.HistogramVec
}

// New returns Metrics that are registered with reg. It panics if reg has them already: a process has only one.
func New(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		reg: reg, base: time.Now(), roles: map[roleClass]*Role{}, clients: map[string]bool{},
		sizes: map[string]topicSize{}, descs: newDescriptions(),
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		opts := prometheus.CounterOpts{Namespace: "millrace", Subsystem: "kafka", Name: name, Help: help}
		return prometheus.NewCounterVec(opts, append([]string{"role", "class"}, labels...))
	}
	m.vecs = vectors{
		messages: counter("messages_total", "Deliveries; all but retried ones settle the message.", "disposition"),
		commits:  counter("commits_total", "Commits of offsets.", "result"),
		publishFailures: counter("publish_failures_total",
			"Records or batches that were given up because the brokers did not acknowledge them."),
		rebalances:       counter("rebalances_total", "Rebalances that assigned, revoked or lost partitions.", "kind"),
		rebalanceSeconds: counter("rebalance_seconds_total", "Time spent in rebalances.", "kind"),
		handler: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "kafka", Name: "handler_seconds",
			Help:    "Duration of handler calls; one call may handle a batch.",
			Buckets: []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 30, 60, 300, 1800, 7200},
		}, []string{"role", "class"}),
	}
	m.clock = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "millrace", Subsystem: "kafka", Name: "clock_offset_seconds",
		Help: "By how much the clock of this process is ahead of Kafka's; compared once a minute, after a publication.",
	})
	reg.MustRegister(m.clock, m.vecs.messages, m.vecs.commits, m.vecs.publishFailures,
		m.vecs.rebalances, m.vecs.rebalanceSeconds, m.vecs.handler, m)
	m.vecs.publishFailures.WithLabelValues(producerRole, "")
	return m
}

// SetClockOffset records by how much the clock of the process is ahead of Kafka's. It reports whether that has become
// more than a minute, either way.
func (m *Metrics) SetClockOffset(ahead time.Duration) (wrong bool) {
	if m == nil {
		return false
	}
	m.clock.Set(ahead.Seconds())
	wrong = ahead.Abs() > time.Minute
	return !m.clockWrong.Swap(wrong) && wrong
}

// Role returns the metrics of a role's class, always the same ones. Their counters are exported from the first call on.
// Those of a nil *Metrics are exported nowhere.
func (m *Metrics) Role(role schemas.Role, class schemas.Class) *Role {
	if m == nil {
		m = New(prometheus.NewRegistry())
	}
	if class == "" {
		class = schemas.High
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := roleClass{role, class}
	r := m.roles[at]
	if r == nil {
		r = newRoleMetrics(m, at)
		m.roles[at] = r
	}
	return r
}

// A Role holds the metrics of one class of one role. It is safe for concurrent use.
type Role struct {
	at               roleClass
	base             time.Time
	messages         [Dispositions]prometheus.Counter
	handler          prometheus.Observer
	commits          [2]prometheus.Counter // ok, failed
	failures         prometheus.Counter
	rebalances       [rebalanceKinds]prometheus.Counter
	rebalanceSeconds [rebalanceKinds]prometheus.Counter

	records, bytes atomic.Int64 // in flight
	busy, held     atomic.Int64 // tasks running, and messages held back by a pause
	parked         atomic.Int64 // parked tasks
	stuck          atomic.Int64
	lastSuccess    atomic.Int64 // last success, in ns since base; 0: none
	lastActive     atomic.Int64 // last message settled or progress reported, in ns since base

	mu     sync.Mutex                // guards the rest
	owned  map[string]map[int32]bool // by topic name
	member bool                      // of the consumer group, with or without partitions
	// refusals counts outputs, or batches of them, that the brokers refuse at present; refusedSince is when the
	// first one was refused.
	refusals     int
	refusedSince time.Time
	oldestFuncs  []func() Oldest
}

// An Oldest holds the start of the oldest running task and the timestamp of the oldest unhandled message; zero if
// there is none.
type Oldest struct{ Task, Message time.Time }

func newRoleMetrics(m *Metrics, at roleClass) *Role {
	role, class := string(at.role), string(at.class)
	r := &Role{at: at, base: m.base, owned: map[string]map[int32]bool{}}
	for f := range Dispositions {
		r.messages[f] = m.vecs.messages.WithLabelValues(role, class, f.String())
	}
	r.handler = m.vecs.handler.WithLabelValues(role, class)
	for i, result := range []string{"ok", "failed"} {
		r.commits[i] = m.vecs.commits.WithLabelValues(role, class, result)
	}
	r.failures = m.vecs.publishFailures.WithLabelValues(role, class)
	for k := range rebalanceKinds {
		r.rebalances[k] = m.vecs.rebalances.WithLabelValues(role, class, k.String())
		r.rebalanceSeconds[k] = m.vecs.rebalanceSeconds.WithLabelValues(role, class, k.String())
	}
	return r
}

// CountHandled counts n deliveries that ended in f after a handler call of d. A negative d means that there was
// no call, or that it was observed already.
func (r *Role) CountHandled(f Disposition, n int, d time.Duration) {
	if n == 0 {
		return
	}
	r.messages[f].Add(float64(n))
	if d >= 0 {
		r.ObserveCall(d)
	}
	if f == DispositionRetried {
		return
	}
	now := int64(time.Since(r.base))
	r.lastActive.Store(now)
	if f == DispositionDone {
		r.lastSuccess.Store(now)
	}
}

// ObserveCall records the duration of a handler call.
func (r *Role) ObserveCall(d time.Duration) { r.handler.Observe(d.Seconds()) }

// MarkProgress records that a running task has made progress.
func (r *Role) MarkProgress() { r.lastActive.Store(int64(time.Since(r.base))) }

// AddInFlight adds to the records that are read and not settled.
func (r *Role) AddInFlight(records int, bytes int64) {
	r.records.Add(int64(records))
	r.bytes.Add(bytes)
}

// AddBusy adds to the running handler calls.
func (r *Role) AddBusy(delta int) { r.busy.Add(int64(delta)) }

// AddParked adds to the parked tasks.
func (r *Role) AddParked(delta int) { r.parked.Add(int64(delta)) }

// AddHeld adds to the messages in flight that a pause holds back.
func (r *Role) AddHeld(delta int) { r.held.Add(int64(delta)) }

// AddStuck adds to the tasks that have not returned after they were cancelled.
func (r *Role) AddStuck(delta int) { r.stuck.Add(int64(delta)) }

// CountRebalance counts a rebalance that took from began until now. With defer, began is evaluated at once.
func (r *Role) CountRebalance(k RebalanceKind, parts map[string][]int32, began time.Time) {
	r.rebalances[k].Inc()
	r.rebalanceSeconds[k].Add(time.Since(began).Seconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.member = k == PartitionsAssigned || r.member && k == PartitionsRevoked
	for topic, ids := range parts {
		for _, id := range ids {
			if k != PartitionsAssigned {
				delete(r.owned[topic], id)
				continue
			}
			if r.owned[topic] == nil {
				r.owned[topic] = map[int32]bool{}
			}
			r.owned[topic][id] = true
		}
	}
}

// CountCommit counts a commit.
func (r *Role) CountCommit(err error) {
	if err != nil {
		r.commits[1].Inc()
	} else {
		r.commits[0].Inc()
	}
}

// CountPublishFailures counts n records that were given up.
func (r *Role) CountPublishFailures(n int) { r.failures.Add(float64(n)) }

// AddRefused adds to the outputs that the brokers refuse at present. It reports whether there were none before.
func (r *Role) AddRefused(delta int) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = r.refusals == 0
	if r.refusals += delta; r.refusals == 0 {
		r.refusedSince = time.Time{}
	} else if first {
		r.refusedSince = time.Now()
	}
	return first
}

// producerRole is the value of label role for messages that no role publishes.
const producerRole = "producer"

// CountPublishFailure counts messages that a Producer gave up.
func (m *Metrics) CountPublishFailure() {
	if m != nil {
		m.vecs.publishFailures.WithLabelValues(producerRole, "").Inc()
	}
}

// AddOldest adds a function that oldest calls.
func (r *Role) AddOldest(f func() Oldest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.oldestFuncs = append(r.oldestFuncs, f)
}

// oldest returns the oldest times that the functions of AddOldest return.
func (r *Role) oldest() (o Oldest) {
	r.mu.Lock()
	looks := slices.Clone(r.oldestFuncs)
	r.mu.Unlock()
	first := func(a *time.Time, b time.Time) {
		if a.IsZero() || !b.IsZero() && b.Before(*a) {
			*a = b
		}
	}
	for _, f := range looks {
		got := f()
		first(&o.Task, got.Task)
		first(&o.Message, got.Message)
	}
	return o
}
