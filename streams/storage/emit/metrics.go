package emit

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what the Stores of one process publish. A nil Metrics counts nothing.
type Metrics struct {
	publishes, resolved *prometheus.CounterVec
	rejections          *prometheus.CounterVec
	fsync               *prometheus.HistogramVec
	descs               descriptions

	mu     sync.Mutex // guards stores
	stores []*Store
}

type descriptions struct{ depth, bytes, oldest, undecided, rejected *prometheus.Desc }

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns Metrics registered with reg. It panics if reg already has them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	labels := []string{"account", "store"}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		o := prometheus.CounterOpts{Namespace: "millrace", Subsystem: "emit", Name: name, Help: help}
		return prometheus.NewCounterVec(o, append(labels[:2:2], more...))
	}
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("millrace", "emit", name), help, labels, nil)
	}
	m := &Metrics{
		publishes:  counter("publishes_total", "Attempts to publish a Change.", "result"),
		resolved:   counter("resolved_total", "Mutations of unknown outcome that were resolved.", "outcome"),
		rejections: counter("rejected_total", "Changes that the publisher rejected permanently."),
		fsync: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "emit", Name: "fsync_seconds",
			Help:    "Duration of the outbox's fsyncs.",
			Buckets: []float64{.0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
		}, labels),
		descs: descriptions{
			depth: desc("outbox_depth", "Mutations in the outbox, including those in progress."),
			bytes: desc("outbox_bytes", "Bytes of mutations in the outbox."),
			oldest: desc("outbox_oldest_seconds",
				"Age of the oldest pending mutation without a call in progress; 0 if there is none."),
			undecided: desc("outbox_undecided",
				"Reports of mutations for which the store's state proves neither that they were applied nor that they were not."),
			rejected: desc("outbox_rejected", "Reports of Changes that the publisher rejected permanently."),
		},
	}
	reg.MustRegister(m.publishes, m.resolved, m.rejections, m.fsync, m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	d := m.descs
	for _, desc := range []*prometheus.Desc{d.depth, d.bytes, d.oldest, d.undecided, d.rejected} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.stores {
		st := s.cfg.Outbox.Stats()
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, s.cfg.Account, s.cfg.Store)
		}
		gauge(m.descs.depth, float64(st.Pending))
		gauge(m.descs.bytes, float64(st.Bytes))
		gauge(m.descs.oldest, s.oldestAge().Seconds())
		gauge(m.descs.undecided, float64(st.Undecided))
		gauge(m.descs.rejected, float64(st.Rejected))
	}
}

// oldestAge returns the age of the oldest mutation without an active call.
func (s *Store) oldestAge() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest time.Time
	first := func(t time.Time) {
		if oldest.IsZero() || t.Before(oldest) {
			oldest = t
		}
	}
	for _, q := range s.queues {
		if len(q.queued) > 0 {
			first(q.queued[0].began)
		}
		if len(q.orphans) > 0 {
			first(q.orphans[0].began)
		}
	}
	if oldest.IsZero() {
		return 0
	}
	return max(0, s.cfg.Now().Sub(oldest))
}

// counters are the metrics of one Store. Its methods accept a nil receiver.
type counters struct {
	publishOK, publishFailed, rejections prometheus.Counter
	verdicts                             [verdicts]prometheus.Counter
}

// add registers a Store and initialises its counters to 0.
func (m *Metrics) add(s *Store) *counters {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	account, store := s.cfg.Account, s.cfg.Store
	m.stores = slices.DeleteFunc(m.stores, func(x *Store) bool { return x.cfg.Account == account && x.cfg.Store == store })
	m.stores = append(m.stores, s)
	c := &counters{
		publishOK:     m.publishes.WithLabelValues(account, store, "ok"),
		publishFailed: m.publishes.WithLabelValues(account, store, "failed"),
		rejections:    m.rejections.WithLabelValues(account, store),
	}
	for v := range verdicts {
		c.verdicts[v] = m.resolved.WithLabelValues(account, store, v.String())
	}
	fsync := m.fsync.WithLabelValues(account, store)
	if o, ok := s.cfg.Outbox.(interface{ ObserveSync(func(time.Duration)) }); ok {
		o.ObserveSync(func(d time.Duration) { fsync.Observe(d.Seconds()) })
	}
	return c
}

func (c *counters) countPublished() {
	if c != nil {
		c.publishOK.Inc()
	}
}

func (c *counters) countFailed() {
	if c != nil {
		c.publishFailed.Inc()
	}
}

func (c *counters) countRejected() {
	if c != nil {
		c.rejections.Inc()
	}
}

func (c *counters) countResolved(v verdict) {
	if c != nil {
		c.verdicts[v].Inc()
	}
}
