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

// A fate is what became of a delivery.
type fate uint8

// The fates. All but fateRetried settle the message.
const (
	fateDone        fate = iota
	fateRetried          // tried again in place
	fateTransient        // sent to a delay lane, by the class of the error
	fateUnavailable      // sent to a delay lane
	fateWait             // sent to a delay lane
	fatePaused           // sent to a delay lane
	fateMoved            // sent to a backlog topic
	fateDead             // became a dead letter
	fates
)

// String is the value of label outcome.
func (f fate) String() string {
	return [fates]string{"done", "retried", "transient", "unavailable", "wait", "paused", "moved", "dead"}[f]
}

// fateOf is the fate of a delivery that failed with an error of a class and will come back.
func fateOf(c retry.Class) fate {
	switch c {
	case retry.ClassUnavailable:
		return fateUnavailable
	case retry.ClassWait:
		return fateWait
	}
	return fateTransient
}

// A move is a way in which partitions come or go.
type move uint8

// The moves.
const (
	moveAssigned move = iota
	moveRevoked
	moveLost
	moves
)

// String is the value of label kind.
func (m move) String() string { return [moves]string{"assigned", "revoked", "lost"}[m] }

// Metrics counts what the parts of one process do. Nil counts nothing: all its methods
// may be called on it.
type Metrics struct {
	reg   prometheus.Registerer
	base  time.Time // what lastActive counts from
	vecs  vectors
	descs descriptions

	mu      sync.Mutex // guards the rest
	roles   map[roleClass]*roleMetrics
	clients map[string]bool      // values of label client that are taken
	sizes   map[string]topicSize // of records read, by topic
	lags    []Lag
	looked  time.Time // when lags were true
}

type roleClass struct {
	role  schemas.Role
	class schemas.Class
}

type vectors struct {
	messages, commits, publishFailures, moves, moveSeconds *prometheus.CounterVec
	handler                                                *prometheus.HistogramVec
}

// NewMetrics returns Metrics that are registered with reg. It panics where reg has them
// already: there is one in a process.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{reg: reg, base: time.Now(), roles: map[roleClass]*roleMetrics{}, clients: map[string]bool{}, sizes: map[string]topicSize{}, descs: newDescriptions()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "kafka", Name: name, Help: help},
			append([]string{"role", "class"}, labels...))
	}
	m.vecs = vectors{
		messages:        counter("messages_total", "Deliveries by what became of them; only retried ones are still to be settled.", "outcome"),
		commits:         counter("commits_total", "Commits of offsets.", "result"),
		publishFailures: counter("publish_failures_total", "Records, or batches of them, that were given up since the brokers did not acknowledge them."),
		moves:           counter("rebalances_total", "Times that partitions came or went.", "kind"),
		moveSeconds:     counter("rebalance_seconds_total", "Time spent while partitions came or went.", "kind"),
		handler: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "kafka", Name: "handler_seconds", Help: "How long calls of the handler took; one call may handle a batch.",
			Buckets: []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 30, 60, 300, 1800, 7200},
		}, []string{"role", "class"}),
	}
	reg.MustRegister(m.vecs.messages, m.vecs.commits, m.vecs.publishFailures, m.vecs.moves, m.vecs.moveSeconds, m.vecs.handler, m)
	m.vecs.publishFailures.WithLabelValues(producer, "")
	return m
}

// role returns the handle of a role's class, of which there is one however often it is
// asked for. What it counts is there from then on, at 0.
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

// A roleMetrics counts for one class of one role. Its methods may be called on nil and by many
// at a time.
type roleMetrics struct {
	at       roleClass
	base     time.Time
	messages [fates]prometheus.Counter
	handler  prometheus.Observer
	commits  [2]prometheus.Counter // ok, failed
	failures prometheus.Counter
	moves    [moves]prometheus.Counter
	seconds  [moves]prometheus.Counter

	records, bytes atomic.Int64 // in flight
	busy, held     atomic.Int64 // tasks at work, and kept back by a pause
	waiting        atomic.Int64 // tasks that are parked
	stuck          atomic.Int64
	success        atomic.Int64 // when one was last done, since base; 0: never
	active         atomic.Int64 // when one was last settled, or said that it gets on

	mu     sync.Mutex // guards the rest
	owned  map[partition]bool
	member bool // of the group, with partitions or without
	// refusals are outputs, or batches of them, that the brokers have not taken so far, and refused since when there are.
	refusals int
	refused  time.Time
	looks    []func() oldest
}

// An oldest says since when the oldest task is at work, and what the timestamp of the
// oldest unhandled message is; zero where there is none.
type oldest struct{ task, message time.Time }

func newRoleMetrics(m *Metrics, at roleClass) *roleMetrics {
	role, class := string(at.role), string(at.class)
	r := &roleMetrics{at: at, base: m.base, owned: map[partition]bool{}}
	for f := range fates {
		r.messages[f] = m.vecs.messages.WithLabelValues(role, class, f.String())
	}
	r.handler = m.vecs.handler.WithLabelValues(role, class)
	for i, result := range []string{"ok", "failed"} {
		r.commits[i] = m.vecs.commits.WithLabelValues(role, class, result)
	}
	r.failures = m.vecs.publishFailures.WithLabelValues(role, class)
	for k := range moves {
		r.moves[k] = m.vecs.moves.WithLabelValues(role, class, k.String())
		r.seconds[k] = m.vecs.moveSeconds.WithLabelValues(role, class, k.String())
	}
	return r
}

// handled says what became of n deliveries, and how long the one call of the handler
// took that decided it; d is negative where there was none, or it was told already.
func (r *roleMetrics) handled(f fate, n int, d time.Duration) {
	if r == nil || n == 0 {
		return
	}
	r.messages[f].Add(float64(n))
	if d >= 0 {
		r.called(d)
	}
	if f == fateRetried {
		return
	}
	now := int64(time.Since(r.base))
	r.active.Store(now)
	if f == fateDone {
		r.success.Store(now)
	}
}

// settled is handled for letters whose calls were told of.
func (r *roleMetrics) settled(records []inflightRecord) {
	if r == nil {
		return
	}
	var n [fates]int
	for i := range records {
		n[records[i].disposition]++
	}
	for f := range fates {
		r.handled(f, n[f], -1)
	}
}

// called says how long a call of the handler took.
func (r *roleMetrics) called(d time.Duration) {
	if r != nil {
		r.handler.Observe(d.Seconds())
	}
}

// progressed says that a task at work gets on, though it is not done.
func (r *roleMetrics) progressed() {
	if r != nil {
		r.active.Store(int64(time.Since(r.base)))
	}
}

// inFlight adds to what is read and not settled.
func (r *roleMetrics) inFlight(records int, bytes int64) {
	if r != nil {
		r.records.Add(int64(records))
		r.bytes.Add(bytes)
	}
}

// working adds to the calls of the handler that are under way.
func (r *roleMetrics) working(delta int) {
	if r != nil {
		r.busy.Add(int64(delta))
	}
}

// parking adds to the calls of the handler that wait without a worker.
func (r *roleMetrics) parking(delta int) {
	if r != nil {
		r.waiting.Add(int64(delta))
	}
}

// holding adds to the messages in flight that a pause keeps from being handled.
func (r *roleMetrics) holding(delta int) {
	if r != nil {
		r.held.Add(int64(delta))
	}
}

// ignoring adds to the tasks that ignore that they were cancelled.
func (r *roleMetrics) ignoring(delta int) {
	if r != nil {
		r.stuck.Add(int64(delta))
	}
}

// rebalanced says that partitions came or went, which took from began until now. It is
// meant for defer, whose arguments are evaluated at once.
func (r *roleMetrics) rebalanced(k move, parts map[string][]int32, began time.Time) {
	if r == nil {
		return
	}
	r.moves[k].Inc()
	r.seconds[k].Add(time.Since(began).Seconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.member = k == moveAssigned || r.member && k == moveRevoked
	eachPartition(parts, func(at partition) {
		if k == moveAssigned {
			r.owned[at] = true
		} else {
			delete(r.owned, at)
		}
	})
}

// committed says how a commit went.
func (r *roleMetrics) committed(err error) {
	if r == nil {
		return
	}
	if err != nil {
		r.commits[1].Inc()
	} else {
		r.commits[0].Inc()
	}
}

// unpublished says that records were given up.
func (r *roleMetrics) unpublished(n int) {
	if r != nil {
		r.failures.Add(float64(n))
	}
}

// refusing adds to the outputs that the brokers do not take for now, and reports whether there were none before.
func (r *roleMetrics) refusing(delta int) (first bool) {
	if r == nil {
		return delta > 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first = r.refusals == 0
	if r.refusals += delta; r.refusals == 0 {
		r.refused = time.Time{}
	} else if first {
		r.refused = time.Now()
	}
	return first
}

// producer is the value of label role for what no role publishes.
const producer = "producer"

// unpublished says that a Producer gave up messages.
func (m *Metrics) unpublished() {
	if m != nil {
		m.vecs.publishFailures.WithLabelValues(producer, "").Inc()
	}
}

// look has f asked how old things are, whenever somebody wants to know.
func (r *roleMetrics) look(f func() oldest) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks = append(r.looks, f)
}

// oldest is the oldest of all that f's of look know.
func (r *roleMetrics) oldest() (o oldest) {
	r.mu.Lock()
	looks := slices.Clone(r.looks)
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
