package sweep

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what happens in the rounds of a process. Its only label is the sweep. A nil *Metrics counts nothing.
type Metrics struct {
	labels                              map[string]string
	emitted, failures, stalls, overruns *prometheus.CounterVec
}

// NewMetrics returns metrics that are registered with reg. labels maps the names of sweeps to the values of the label;
// other sweeps are not counted.
func NewMetrics(reg *prometheus.Registry, labels map[string]string) *Metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_sweep_" + name, Help: help}, []string{"sweep"})
		for _, label := range labels {
			c.WithLabelValues(label)
		}
		reg.MustRegister(c)
		return c
	}
	return &Metrics{labels,
		counter("emitted_total", "Messages of sweeps that ask for work, or report a finding."),
		counter("failures_total", "Attempts of rounds, or of iterations of jobs, that have failed."),
		counter("stalls_total", "Pages that were cancelled because they made no progress. They are failures, too."),
		counter("overruns_total", "Rounds that ended after the next one was due."),
	}
}

// label returns the value of the label for a sweep; false if the sweep is not counted.
func (m *Metrics) label(sweep string) (label string, ok bool) {
	if m != nil {
		label, ok = m.labels[sweep]
	}
	return label, ok
}

func (m *Metrics) published(sweep string, n int64) {
	if label, ok := m.label(sweep); ok {
		m.emitted.WithLabelValues(label).Add(float64(n))
	}
}

func (m *Metrics) failed(sweep string, err error) {
	label, ok := m.label(sweep)
	if !ok {
		return
	}
	m.failures.WithLabelValues(label).Inc()
	if errors.Is(err, errStalled) {
		m.stalls.WithLabelValues(label).Inc()
	}
}

func (m *Metrics) overran(sweep string) {
	if label, ok := m.label(sweep); ok {
		m.overruns.WithLabelValues(label).Inc()
	}
}
