package kafka

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A disposition is the result of a delivery.
type disposition uint8

// The dispositions. All but dispositionRetried settle the message.
const (
	dispositionDone        disposition = iota
	dispositionRetried                 // will be retried in place
	dispositionTransient               // sent to a delay lane after a transient error
	dispositionUnavailable             // sent to a delay lane: a store or engine is unavailable
	dispositionWait                    // sent to a delay lane: not due yet
	dispositionPaused                  // sent to a delay lane by a pause
	dispositionMoved                   // sent to a backlog topic
	dispositionDead                    // sent to topic dead
	dispositions
)

// String returns the value of label outcome.
func (f disposition) String() string {
	return [dispositions]string{"done", "retried", "transient", "unavailable", "wait", "paused", "moved", "dead"}[f]
}

// dispositionOf returns the disposition of a delivery that failed with an error of class c and goes to a delay lane.
func dispositionOf(c retry.Class) disposition {
	switch c {
	case retry.ClassUnavailable:
		return dispositionUnavailable
	case retry.ClassWait:
		return dispositionWait
	}
	return dispositionTransient
}

// A rebalanceKind is a kind of change in the assigned partitions.
type rebalanceKind uint8

// The rebalance kinds.
const (
	partitionsAssigned rebalanceKind = iota
	partitionsRevoked
	partitionsLost
	rebalanceKinds
)

// String returns the value of label kind.
func (m rebalanceKind) String() string {
	return [rebalanceKinds]string{"assigned", "revoked", "lost"}[m]
}

// Metrics holds the metrics of all parts of one process. All its methods may be called on nil, and then do nothing.
type Metrics struct {
	reg   prometheus.Registerer
	base  time.Time // start of lastSuccess and lastActive
	vecs  vectors
	descs descriptions

	mu      sync.Mutex // guards the rest
	roles   map[roleClass]*roleMetrics
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

// NewMetrics returns Metrics that are registered with reg. It panics if reg has them already: a process has only one.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		reg: reg, base: time.Now(), roles: map[roleClass]*roleMetrics{}, clients: map[string]bool{},
		sizes: map[string]topicSize{}, descs: newDescriptions(),
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		opts := prometheus.CounterOpts{Namespace: "millrace", Subsystem: "kafka", Name: name, Help: help}
		return prometheus.NewCounterVec(opts, append([]string{"role", "class"}, labels...))
	}
	m.vecs = vectors{
		messages: counter("messages_total", "Deliveries by outcome; all but retried ones settle the message.", "outcome"),
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
	reg.MustRegister(m.vecs.messages, m.vecs.commits, m.vecs.publishFailures,
		m.vecs.rebalances, m.vecs.rebalanceSeconds, m.vecs.handler, m)
	m.vecs.publishFailures.WithLabelValues(producerRole, "")
	return m
}

// role returns the metrics of a role's class, always the same ones. Their counters are exported from the first call on.
func (m *Metrics) role(role schemas.Role, class schemas.Class) *roleMetrics {
	if m == nil {
		return nil
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

// A roleMetrics holds the metrics of one class of one role. Its methods may be called on nil, and are safe for
// concurrent use.
type roleMetrics struct {
	at               roleClass
	base             time.Time
	messages         [dispositions]prometheus.Counter
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
	oldestFuncs  []func() oldest
}

// An oldest holds the start of the oldest running task and the timestamp of the oldest unhandled message; zero if
// there is none.
type oldest struct{ task, message time.Time }

func newRoleMetrics(m *Metrics, at roleClass) *roleMetrics {
	role, class := string(at.role), string(at.class)
	r := &roleMetrics{at: at, base: m.base, owned: map[string]map[int32]bool{}}
	for f := range dispositions {
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

// countHandled counts n deliveries that ended in f after a handler call of d. A negative d means that there was
// no call, or that it was observed already.
func (r *roleMetrics) countHandled(f disposition, n int, d time.Duration) {
	if r == nil || n == 0 {
		return
	}
	r.messages[f].Add(float64(n))
	if d >= 0 {
		r.observeCall(d)
	}
	if f == dispositionRetried {
		return
	}
	now := int64(time.Since(r.base))
	r.lastActive.Store(now)
	if f == dispositionDone {
		r.lastSuccess.Store(now)
	}
}

// observeCall records the duration of a handler call.
func (r *roleMetrics) observeCall(d time.Duration) {
	if r != nil {
		r.handler.Observe(d.Seconds())
	}
}

// markProgress records that a running task has made progress.
func (r *roleMetrics) markProgress() {
	if r != nil {
		r.lastActive.Store(int64(time.Since(r.base)))
	}
}

// addInFlight adds to the records that are read and not settled.
func (r *roleMetrics) addInFlight(records int, bytes int64) {
	if r != nil {
		r.records.Add(int64(records))
		r.bytes.Add(bytes)
	}
}

// addBusy adds to the running handler calls.
func (r *roleMetrics) addBusy(delta int) {
	if r != nil {
		r.busy.Add(int64(delta))
	}
}

// addParked adds to the parked tasks.
func (r *roleMetrics) addParked(delta int) {
	if r != nil {
		r.parked.Add(int64(delta))
	}
}

// addHeld adds to the messages in flight that a pause holds back.
func (r *roleMetrics) addHeld(delta int) {
	if r != nil {
		r.held.Add(int64(delta))
	}
}

// addStuck adds to the tasks that have not returned after they were cancelled.
func (r *roleMetrics) addStuck(delta int) {
	if r != nil {
		r.stuck.Add(int64(delta))
	}
}

// countRebalance counts a rebalance that took from began until now. With defer, began is evaluated at once.
func (r *roleMetrics) countRebalance(k rebalanceKind, parts map[string][]int32, began time.Time) {
	if r == nil {
		return
	}
	r.rebalances[k].Inc()
	r.rebalanceSeconds[k].Add(time.Since(began).Seconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.member = k == partitionsAssigned || r.member && k == partitionsRevoked
	for topic, ids := range parts {
		for _, id := range ids {
			if k != partitionsAssigned {
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

// countCommit counts a commit.
func (r *roleMetrics) countCommit(err error) {
	if r == nil {
		return
	}
	if err != nil {
		r.commits[1].Inc()
	} else {
		r.commits[0].Inc()
	}
}

// countPublishFailures counts n records that were given up.
func (r *roleMetrics) countPublishFailures(n int) {
	if r != nil {
		r.failures.Add(float64(n))
	}
}

// addRefused adds to the outputs that the brokers refuse at present. It reports whether there were none before.
func (r *roleMetrics) addRefused(delta int) (first bool) {
	if r == nil {
		return delta > 0
	}
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

// countPublishFailure counts messages that a Producer gave up.
func (m *Metrics) countPublishFailure() {
	if m != nil {
		m.vecs.publishFailures.WithLabelValues(producerRole, "").Inc()
	}
}

// addOldest adds a function that oldest calls.
func (r *roleMetrics) addOldest(f func() oldest) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.oldestFuncs = append(r.oldestFuncs, f)
}

// oldest returns the oldest times that the functions of addOldest return.
func (r *roleMetrics) oldest() (o oldest) {
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
		first(&o.task, got.task)
		first(&o.message, got.message)
	}
	return o
}
