package limit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// An unavailable store is probed until it answers, and again when its breaker opens later; one that is in use is not
// probed.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Account: "acme", Store: "1"})
		away := func() {
			w.faulty.Script(storagetest.Fault{Method: "Marker", Err: retry.Unavailable(errDown), Times: 20})
		}
		away()
		var inUse atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.Watch(ctx, inUse.Load); close(ended) }()
		check := func(when string, want State) {
			t.Helper()
			synctest.Wait()
			if got := w.breaker.state(); got != want {
				t.Errorf("%s: the breaker is %v, want %v", when, got, want)
			}
		}
		check("at the start", Open)
		time.Sleep(30 * time.Second)
		check("while it is away", Open)
		inUse.Store(true)
		time.Sleep(5 * time.Minute)
		check("when it is back", Closed)
		away()
		time.Sleep(time.Hour)
		check("without a task", Closed)
		if err := w.Marker(t.Context()); err == nil {
			t.Error("it answered while it is away")
		}
		time.Sleep(30 * time.Second)
		check("while it is away again", Open)
		time.Sleep(5 * time.Minute)
		check("when it is back again", Closed)
		if got, want := metrics(t, w.Store), []string{
			"millrace_limit_breaker_state account=acme state=closed store=1: 1",
			"millrace_limit_breaker_state account=acme state=open store=1: 0",
			"millrace_limit_breaker_changes_total account=acme state=closed store=1: 2",
			"millrace_limit_requests_per_second account=acme store=1: 0",
			"millrace_limit_slow_downs_total account=acme store=1: 0",
			"millrace_limit_waiting_messages account=acme store=1: 7",
		}; slices.ContainsFunc(want, func(line string) bool { return !slices.Contains(got, line) }) {
			t.Errorf("got %s\nwant each of %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		cancel()
		<-ended
	})
}

// metrics returns the metrics of a store for which 7 messages wait.
func metrics(t *testing.T, s *Store) (all []string) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewMetrics(func() []*Store { return []*Store{s} }, func(string, string) int { return 7 }))
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			line := f.GetName()
			for _, l := range m.GetLabel() {
				line += " " + l.GetName() + "=" + l.GetValue()
			}
			all = append(all, fmt.Sprint(line, ": ", m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
	}
	return all
}
