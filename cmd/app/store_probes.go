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

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/limit"
)

const (
	startCheckTimeout = 5 * time.Second // for all stores, when the process starts
	probeInterval     = 10 * time.Second
)

// names are all stores, by account and in the order of IDs.
func (s *Stores) storeNames() (all []StoreName) {
	for _, account := range slices.Sorted(maps.Keys(s.accounts)) {
		for _, id := range s.accounts[account] {
			all = append(all, StoreName{account, id})
		}
	}
	return all
}

func (s *Stores) of(n StoreName) store { return s.byKey[schemas.Key(n.Account, n.Store)] }

// look reads all markers once, so that the breakers of stores that are not there are open before
// the first task. It refuses only what no waiting mends: a root that is another store's.
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
				message := "store is not there: it is looked for again, and what needs it waits"
				if errors.Is(err, storage.ErrCredentials) {
					message = "store refuses the credentials: it is asked again, and what needs it waits"
				}
				s.log.Warn(message, "account", n.Account, "store", n.Store, "err", err, "do", s.remedyFor(n, err))
			}
		})
	}
	wg.Wait()
	return precondition(slices.DeleteFunc(errs, func(err error) bool { return err == nil }))
}

// run looks for each store that is away until it answers, when the process starts and whenever its breaker opens: no
// message need come for it to be found, and what waits for it goes on when it is due.
func (s *Stores) run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, n := range s.storeNames() {
		wg.Go(func() { s.of(n).watch(ctx) })
	}
	wg.Wait()
	return nil
}

// watch looks for the store whenever it is away, until ctx is done.
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

// there says whether the store has been found, and is not away.
func (st store) available() bool {
	is, _, _ := st.breaker.State()
	return is == limit.Closed && st.lazy.opened.Load() != nil
}

// probe looks for the store if its breaker lets it, and returns how long to wait for the next look. A store whose
// streams hung answers a look, and is half-open until a task's stream does not hang.
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

// turns count how often a breaker came into each state.
type transitions struct {
	count  [limit.Open + 1]atomic.Int64
	opened chan struct{} // holds one if it has opened since somebody looked
}

func newTransitions() *transitions { return &transitions{opened: make(chan struct{}, 1)} }

// changed is a limit.Config's Changed.
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

// A breakerMetrics tells of the breakers and throttles of all stores. Its label values are the stores of the
// configuration and the states.
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
			"1 for the state that the breaker of a store is in, 0 for the others; a store is away unless it is closed.", labels, nil),
		prometheus.NewDesc("millrace_limit_breaker_changes_total", "Times that the breaker of a store came into a state.", labels, nil),
		prometheus.NewDesc("millrace_limit_requests_per_second",
			"Requests that a store may get in a second now; 0: no limit. It falls where the store asks for fewer.", labels[:2], nil),
		prometheus.NewDesc("millrace_limit_slow_downs_total", "Answers of a store that asked for fewer requests.", labels[:2], nil),
		prometheus.NewDesc("millrace_limit_waiting_messages",
			"Messages that this process has sent to delay lanes since a store is away, and that are not due.", labels[:2], nil)}
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
		waiting := m.stores.waiting.Of(schemas.Key(n.Account, n.Store))
		to <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(waiting), n.Account, n.Store)
		to <- prometheus.MustNewConstMetric(m.slowed, prometheus.CounterValue, float64(slowed), n.Account, n.Store)
		for state := range limit.Open + 1 {
			in := 0.0
			if state == is {
				in = 1
			}
			to <- prometheus.MustNewConstMetric(m.state, prometheus.GaugeValue, in, n.Account, n.Store, state.String())
			to <- prometheus.MustNewConstMetric(m.changes, prometheus.CounterValue, float64(st.transitions.count[state].Load()), n.Account, n.Store, state.String())
		}
	}
}
