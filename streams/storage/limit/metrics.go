package limit

import "github.com/prometheus/client_golang/prometheus"

// Metrics collects the metrics of the breakers and throttles of stores. Its label values are the stores and the states.
type Metrics struct {
	stores          func() []*Store
	count           func(account, store string) int
	state, changes  *prometheus.Desc
	allowed, slowed *prometheus.Desc
	waiting         *prometheus.Desc
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns the metrics of the stores that stores returns when they are collected. waiting returns the number
// of messages that wait for a store.
func NewMetrics(stores func() []*Store, waiting func(account, store string) int) *Metrics {
	labels := []string{"account", "store", "state"}
	return &Metrics{stores, waiting,
		prometheus.NewDesc("millrace_limit_breaker_state",
			"1 for the present state of a store's breaker, 0 for the others; a store is available if it is closed.",
			labels, nil),
		prometheus.NewDesc("millrace_limit_breaker_changes_total",
			"Transitions of a store's breaker into a state.", labels, nil),
		prometheus.NewDesc("millrace_limit_requests_per_second",
			"Present limit of requests to a store per second; 0: no limit. It falls when the store throttles.", labels[:2], nil),
		prometheus.NewDesc("millrace_limit_slow_downs_total",
			"Responses with which a store asked for fewer requests.", labels[:2], nil),
		prometheus.NewDesc("millrace_limit_waiting_messages",
			"Messages that this process sent to delay lanes since a store became unavailable, and that are not due.",
			labels[:2], nil)}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.state
	to <- m.changes
	to <- m.allowed
	to <- m.slowed
	to <- m.waiting
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, s := range m.stores() {
		account, store := s.breaker.cfg.Account, s.breaker.cfg.Store
		rate, slowed := s.throttle.allowed()
		to <- prometheus.MustNewConstMetric(m.allowed, prometheus.GaugeValue, rate, account, store)
		waiting := float64(m.count(account, store))
		to <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, waiting, account, store)
		to <- prometheus.MustNewConstMetric(m.slowed, prometheus.CounterValue, float64(slowed), account, store)
		now, entered := s.breaker.counts()
		for state := range Open + 1 {
			in := 0.0
			if state == now {
				in = 1
			}
			to <- prometheus.MustNewConstMetric(m.state, prometheus.GaugeValue, in, account, store, state.String())
			to <- prometheus.MustNewConstMetric(m.changes, prometheus.CounterValue, float64(entered[state]), account, store,
				state.String())
		}
	}
}
