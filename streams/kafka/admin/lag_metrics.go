package admin

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// lagTTL is how long lags are exported after Set. Lags that are not updated become absent instead of stale.
const lagTTL = time.Minute

// LagMetrics exports the lags of groups. It is safe for concurrent use.
type LagMetrics struct {
	records, due, open, bytes, seconds *prometheus.Desc

	mu   sync.Mutex // guards the rest
	lags []Lag
	at   time.Time // when lags was set
}

// NewLagMetrics returns LagMetrics that are registered with reg.
func NewLagMetrics(reg prometheus.Registerer) *LagMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_kafka_"+name, help, []string{"role", "class", "topic"}, nil)
	}
	m := &LagMetrics{
		records: desc("lag_records", "Records not handled by the role's group; in delay lanes, only due ones."),
		due:     desc("lag_due_records", "lag_records without paused ones."),
		open:    desc("lag_open_transaction_records", "Records after the start of an open transaction."),
		bytes:   desc("lag_bytes", "Bytes of lag_records; absent if unknown."),
		seconds: desc("lag_seconds", "Estimated time until lag_records are handled; absent without progress."),
	}
	reg.MustRegister(m)
	return m
}

// Set sets the lags to export. They expire after a minute.
func (m *LagMetrics) Set(lags []Lag) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lags, m.at = slices.Clone(lags), time.Now()
}

// Describe implements prometheus.Collector.
func (m *LagMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.records, m.due, m.open, m.bytes, m.seconds} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *LagMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	lags, at := m.lags, m.at
	m.mu.Unlock()
	if time.Since(at) > lagTTL {
		return
	}
	for _, l := range lags {
		gauge := func(desc *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, string(l.Role), string(l.Class), string(l.Topic))
		}
		gauge(m.records, float64(l.Records))
		gauge(m.due, float64(l.Due()))
		gauge(m.open, float64(l.Uncommitted))
		if l.Bytes != nil {
			gauge(m.bytes, float64(*l.Bytes))
		}
		if l.Seconds != nil {
			gauge(m.seconds, *l.Seconds)
		}
	}
}
