package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/limit"
)

const (
	startCheckTimeout = 5 * time.Second // of all stores together, at startup
	probeInterval     = 10 * time.Second
)

// storeNames returns all stores, by account and in the order of IDs.
func (s *Stores) storeNames() (all []StoreName) {
	for _, account := range slices.Sorted(maps.Keys(s.accounts)) {
		for _, id := range s.accounts[account] {
			all = append(all, StoreName{account, id})
		}
	}
	return all
}

func (s *Stores) of(n StoreName) store { return s.byKey[schemas.Key(n.Account, n.Store)] }

// checkAtStart reads all markers once, so that the breakers of unavailable stores are open before
// the first task. Its error reports only stores that have the marker of another store, since
// waiting does not help there.
func (s *Stores) checkAtStart(run context.Context) error {
	ctx, cancel := context.WithTimeout(run, startCheckTimeout)
	defer cancel()
	names := s.storeNames()
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		wg.Go(func() {
			err := s.of(n).Marker(ctx)
			switch {
			case err == nil, run.Err() != nil:
			case errors.Is(err, storage.ErrWrongMarker):
				errs[i] = fmt.Errorf("store %s/%s: %w: %s", n.Account, n.Store, err, remedy(n, err))
			default:
				message := "wait for unavailable store"
				if errors.Is(err, storage.ErrCredentials) {
					message = "wait for store that refuses the credentials"
				}
				s.log.Warn(message, "account", n.Account, "store", n.Store, "err", err, "advice", s.remedyFor(n, err))
			}
		})
	}
	wg.Wait()
	return precondition.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil }))
}

// run probes each unavailable store until it answers: at startup, and whenever its breaker opens.
// So a store is found to be available again without a message for it, and the tasks that wait for
// it continue when they are due.
func (s *Stores) run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, n := range s.storeNames() {
		wg.Go(func() { s.of(n).watch(ctx) })
	}
	wg.Wait()
	return nil
}

// watch probes the store whenever it is unavailable, until ctx is done.
func (st store) watch(ctx context.Context) {
	for {
		for !st.available() {
			if retry.Sleep(ctx, st.probe(ctx)) != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-st.transitions.opened:
		}
	}
}

// available reports whether the store was opened and its breaker is closed.
func (st store) available() bool {
	is, _, _ := st.breaker.State()
	return is == limit.Closed && st.lazy.Opened()
}

// probe reads the marker if the breaker admits it, and returns the wait before the next probe.
// After hung streams, a store answers probes and stays half-open until a stream of a task succeeds.
func (st store) probe(run context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(run, probeInterval)
	defer cancel()
	const least = 100 * time.Millisecond
	var open *limit.OpenError
	err := st.Marker(ctx)
	is, _, _ := st.breaker.State()
	switch {
	case errors.As(err, &open):
		return max(time.Until(open.Until), least)
	case is == limit.HalfOpen:
		return probeInterval
	}
	return least
}

// transitions counts how often a breaker entered each state.
type transitions struct {
	count  [limit.Open + 1]atomic.Int64
	opened chan struct{} // has an element if the breaker opened since the last receive
}

func newTransitions() *transitions { return &transitions{opened: make(chan struct{}, 1)} }

// changed is the callback limit.Config.Changed.
func (t *transitions) changed(_, to limit.State) {
	t.count[to].Add(1)
	if to != limit.Open {
		return
	}
	select {
	case t.opened <- struct{}{}:
	default:
	}
}

// breakerMetrics collects the metrics of the breakers and throttles of all stores. Its label values
// are the configured stores and the states.
type breakerMetrics struct {
	stores          *Stores
	state, changes  *prometheus.Desc
	allowed, slowed *prometheus.Desc
	waiting         *prometheus.Desc
}

var _ prometheus.Collector = (*breakerMetrics)(nil)

func newBreakerMetrics(s *Stores) *breakerMetrics {
	labels := []string{"account", "store", "state"}
	return &breakerMetrics{s,
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
func (m *breakerMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.state
	to <- m.changes
	to <- m.allowed
	to <- m.slowed
	to <- m.waiting
}

// Collect implements prometheus.Collector.
func (m *breakerMetrics) Collect(to chan<- prometheus.Metric) {
	for _, n := range m.stores.storeNames() {
		st := m.stores.of(n)
		is, _, _ := st.breaker.State()
		rate, slowed := st.throttle.Allowed()
		to <- prometheus.MustNewConstMetric(m.allowed, prometheus.GaugeValue, rate, n.Account, n.Store)
		waiting := m.stores.waiting.Count(schemas.Key(n.Account, n.Store))
		to <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(waiting), n.Account, n.Store)
		to <- prometheus.MustNewConstMetric(m.slowed, prometheus.CounterValue, float64(slowed), n.Account, n.Store)
		for state := range limit.Open + 1 {
			in := 0.0
			if state == is {
				in = 1
			}
			to <- prometheus.MustNewConstMetric(m.state, prometheus.GaugeValue, in, n.Account, n.Store, state.String())
			changes := float64(st.transitions.count[state].Load())
			to <- prometheus.MustNewConstMetric(m.changes, prometheus.CounterValue, changes, n.Account, n.Store, state.String())
		}
	}
}
