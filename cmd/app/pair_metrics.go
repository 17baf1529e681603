package app

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/streams/retry"
)

const (
	// pairInterval is the time between two readings of the state of pairs. If a reading takes long, the time after it is
	// pairIdleFactor times as long, so that readings take at most a twentieth of the time.
	pairInterval   = time.Minute
	pairIdleFactor = 19
	// pairWindow is the window of the delays.
	pairWindow = time.Hour
)

// pairMetrics exports the state of the pairs of policies. The labels are the pairs of the policies in force. Before the
// first reading, and after one that failed, the state of an account is unknown and absent. It is safe for concurrent
// use.
type pairMetrics struct {
	delay, oldest, items, bytes, unmanaged *prometheus.Desc

	mu    sync.Mutex // guards the rest
	known map[string]*PolicyStatus
}

var _ prometheus.Collector = (*pairMetrics)(nil)

func newPairMetrics() *pairMetrics {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_policy_"+name, help, append([]string{"account"}, more...), nil)
	}
	return &pairMetrics{
		delay: desc("copy_delay_seconds",
			"Time from the record of a Change to the end of its copy, by quantile, of the last hour; absent without copies.",
			"source", "destination", "quantile"),
		oldest: desc("oldest_pending_seconds", "Age of the oldest pending content; 0 if none is pending.",
			"source", "destination"),
		items: desc("pending_items", "Items with a newer content at the source than on record at the destination.",
			"source", "destination"),
		bytes:     desc("pending_bytes", "Bytes of pending_items with a known size.", "source", "destination"),
		unmanaged: desc("unmanaged_items", "Live copies that no policy manages."),
		known:     map[string]*PolicyStatus{},
	}
}

// set replaces the state of an account; nil: it is unknown.
func (m *pairMetrics) set(account string, s *PolicyStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s == nil {
		delete(m.known, account)
		return
	}
	m.known[account] = s
}

// Describe implements prometheus.Collector.
func (m *pairMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.delay, m.oldest, m.items, m.bytes, m.unmanaged} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *pairMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	known := maps.Clone(m.known)
	m.mu.Unlock()
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	for account, s := range known {
		gauge(m.unmanaged, float64(s.Unmanaged.Items), account)
		for _, p := range s.Pairs {
			gauge(m.items, float64(p.Pending.Items), account, p.Source, p.Destination)
			gauge(m.bytes, float64(p.Pending.Bytes), account, p.Source, p.Destination)
			age := 0.0
			if p.Oldest != nil {
				age = max(s.AsOf.Sub(*p.Oldest).Seconds(), 0)
			}
			gauge(m.oldest, age, account, p.Source, p.Destination)
			if p.P50 != nil && p.P99 != nil {
				gauge(m.delay, *p.P50, account, p.Source, p.Destination, "0.5")
				gauge(m.delay, *p.P99, account, p.Source, p.Destination, "0.99")
			}
		}
	}
}

// watchPairs reads the state of the pairs of all policies in force, again and again, until ctx is done.
func (a *App) watchPairs(ctx context.Context, m *pairMetrics) error {
	for a.waitUntilResumed(ctx, "policy pairs") {
		begun := time.Now()
		for _, account := range a.policyRegistry.Accounts() {
			var s *PolicyStatus
			if _, ok := a.policyRegistry.Document(account); ok && len(a.stores.IDs(account)) > 0 {
				var err error
				if s, err = a.policyStatus(ctx, a.policyRegistry, account, pairWindow); err != nil && ctx.Err() == nil {
					a.log.Warn("read the state of the pairs of a policy", "account", account, "err", err)
				}
			}
			m.set(account, s)
		}
		_ = retry.Sleep(ctx, max(pairInterval, pairIdleFactor*time.Since(begun))) // only ctx ends it early
	}
	return nil
}
