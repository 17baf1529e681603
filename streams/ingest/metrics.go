package ingest

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/streams/ingest/hint"
)

// The outcomes of events.
const (
	outcomeWritten = "written" // acknowledged by Kafka
	outcomeRefused = "refused" // rejected because of a fault
	outcomeFailed  = "failed"  // not acknowledged by Kafka
)

// The ways in which events arrive.
const (
	wayHTTP    = "http"
	wayWebhook = "webhook"
)

// Metrics count requests, events and hints. Nil Metrics count nothing.
type Metrics struct {
	requests         *prometheus.CounterVec
	outcomes         *prometheus.CounterVec
	hints            *prometheus.CounterVec
	requestsInFlight prometheus.Gauge
}

// NewMetrics returns Metrics that are registered with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_ingest_requests_total", Help: "Requests, by path and status."}, []string{"path", "status"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_ingest_events_total", Help: "Events received over HTTP, by outcome."}, []string{"way", "outcome"}),
		hints: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_ingest_hints_total", Help: "Hints handled, by row of the decision table."}, []string{"way", "row"}),
		requestsInFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_ingest_requests_in_flight", Help: "Requests in progress."}),
	}
	for _, way := range []string{wayHTTP, wayWebhook} {
		for _, o := range []string{outcomeWritten, outcomeRefused, outcomeFailed} {
			m.outcomes.WithLabelValues(way, o)
		}
	}
	for _, way := range []string{"notification", "watch"} {
		for _, r := range hint.Rows() {
			m.hints.WithLabelValues(way, string(r))
		}
	}
	for _, path := range []string{pathChanges, pathNotifications} {
		m.requests.WithLabelValues(path, "202")
	}
	reg.MustRegister(m.requests, m.outcomes, m.hints, m.requestsInFlight)
	return m
}

// Hints returns a function that counts the hints of a way: notification or watch.
func (m *Metrics) Hints(way string) func(hint.Row) {
	return func(r hint.Row) {
		if m != nil {
			m.hints.WithLabelValues(way, string(r)).Inc()
		}
	}
}

func (m *Metrics) request(path string, status int) {
	if m == nil {
		return
	}
	if path != pathChanges && path != pathNotifications {
		path = "other"
	}
	m.requests.WithLabelValues(path, strconv.Itoa(status)).Inc()
}

func (m *Metrics) events(way, outcome string, n int) {
	if m != nil {
		m.outcomes.WithLabelValues(way, outcome).Add(float64(n))
	}
}

func (m *Metrics) inFlight(n float64) {
	if m != nil {
		m.requestsInFlight.Add(n)
	}
}
