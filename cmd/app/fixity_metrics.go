package app

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
)

// copyMetrics exports how many copies there are, and how sure it is that they are intact. The labels are the configured
// stores and the kinds of incidents. Before the first reading, after one that failed, and while another process reads,
// all is unknown and absent. It is safe for concurrent use.
type copyMetrics struct {
	copies, bytes, verified, overdue, failing, unknown, oldest, burn *prometheus.Desc
	incidents, waiting                                               *prometheus.Desc

	mu    sync.Mutex // guards the rest
	known *copyReading
}

// A copyReading is what was read at a time.
type copyReading struct {
	at        time.Time
	stores    []StoreOverview
	oldest    map[StoreName]time.Time // the oldest of the last passes
	incidents []read.IncidentCount
}

var _ prometheus.Collector = (*copyMetrics)(nil)

func newCopyMetrics() *copyMetrics {
	of := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_copies"+name, help, []string{"account", "store"}, nil)
	}
	return &copyMetrics{
		copies:   of("", "Live copies on record."),
		bytes:    of("_bytes", "Bytes of the live copies with a known size."),
		verified: of("_verified", "Copies that have passed a check within fixity.period."),
		overdue:  of("_overdue", "Copies that have not."),
		failing:  of("_failing", "Copies whose last conclusive check failed."),
		unknown:  of("_unknown", "Copies whose newest check had no answer."),
		oldest:   of("_oldest_pass_seconds", "Age of the oldest of the last passes; absent if no copy has passed."),
		burn: of("_burn_rate",
			"Share of the copies that are overdue, in relation to the share that fixity.objective allows."),
		incidents: prometheus.NewDesc("millrace_incidents_open", "Open incidents; absent if there are none of the kind.",
			[]string{"kind"}, nil),
		waiting: prometheus.NewDesc("millrace_incidents_awaiting_approval", "Open incidents that wait for an operator.",
			[]string{"kind"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *copyMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.copies, m.bytes, m.verified, m.overdue, m.failing, m.unknown, m.oldest,
		m.burn, m.incidents, m.waiting} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *copyMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	r := m.known
	m.mu.Unlock()
	if r == nil {
		return
	}
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range r.stores {
		for desc, n := range map[*prometheus.Desc]float64{m.copies: float64(s.Copies), m.bytes: float64(s.Bytes),
			m.verified: float64(s.Verified), m.overdue: float64(s.Overdue), m.failing: float64(s.Failing),
			m.unknown: float64(s.Unknown), m.burn: s.Burn} {
			gauge(desc, n, s.Account, s.Store)
		}
		if oldest := r.oldest[s.StoreName]; !oldest.IsZero() {
			gauge(m.oldest, r.at.Sub(oldest).Seconds(), s.Account, s.Store)
		}
	}
	for _, i := range r.incidents {
		gauge(m.incidents, float64(i.Open), i.Kind)
		gauge(m.waiting, float64(i.Waiting), i.Kind)
	}
}

// watchCopies reads the state of the copies again and again, until ctx is done. One of the processes does it.
func (a *App) watchCopies(ctx context.Context, m *copyMetrics, owns func(sweep, split string) bool) error {
	for a.waitUntilResumed(ctx, "copies") {
		begun := time.Now()
		var r *copyReading
		if owns("metrics", "copies") {
			var err error
			if r, err = a.readCopies(ctx, a.kafka.Clock.Now()); err != nil && ctx.Err() == nil {
				a.log.Warn("read the state of the copies", "err", err)
			}
		}
		m.mu.Lock()
		m.known = r
		m.mu.Unlock()
		_ = retry.Sleep(ctx, max(pairInterval, pairIdleFactor*time.Since(begun))) // only ctx ends it early
	}
	return nil
}

// readCopies returns the state of the copies; nil if it is unknown.
func (a *App) readCopies(ctx context.Context, now time.Time) (*copyReading, error) {
	spaces, err := a.countCopies(ctx, schemas.Copy{}, now)
	if err != nil {
		return nil, err
	}
	r := &copyReading{at: now, stores: sumByStore(spaces, a.cfg.Fixity.Objective), oldest: map[StoreName]time.Time{}}
	for _, s := range spaces {
		n := StoreName{s.Account, s.Store}
		if last := r.oldest[n]; !s.Oldest.IsZero() && (last.IsZero() || s.Oldest.Before(last)) {
			r.oldest[n] = s.Oldest
		}
	}
	r.incidents, err = read.CountIncidents(ctx, a.db, "")
	if err != nil {
		return nil, err
	}
	return r, nil
}

// workMetrics counts what this process has copied and checked.
type workMetrics struct{ copied, checked *prometheus.CounterVec }

func newWorkMetrics(reg prometheus.Registerer) *workMetrics {
	of := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_" + name, Help: help},
			[]string{"account", "store"})
	}
	m := &workMetrics{of("copied_bytes_total", "Bytes of copies that were written to a store."),
		of("checked_bytes_total", "Bytes of a store that checks have read.")}
	reg.MustRegister(m.copied, m.checked)
	return m
}

// counting returns handle, and counts the results that it returns.
func (m *workMetrics) counting(
	handle func(context.Context, *schemas.Delivery) ([]schemas.Message, error),
) kafka.Handler {
	return func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
		out, err := handle(ctx, d)
		for _, o := range out {
			switch r := o.Body.(type) {
			case *pb.FixityResult:
				m.checked.WithLabelValues(r.GetAccount(), r.GetStore()).Add(float64(r.GetBytesRead()))
			case *pb.DuplicationResult:
				if r.GetOutcome() == pb.Outcome_OUTCOME_DONE {
					m.copied.WithLabelValues(r.GetAccount(), r.GetDestinationStore()).Add(float64(r.GetBytes()))
				}
			}
		}
		return out, err
	}
}
