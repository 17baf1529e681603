package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
)

const (
	// expireLogInterval is the time between two log lines about the progress in a store.
	expireLogInterval = 30 * time.Second
	// incidentsTimeout bounds the wait for the newest incidents before a store is cleaned up.
	incidentsTimeout = 30 * time.Second
	// loggedHolds is the number of incidents that a log line names as reasons why bytes do not expire.
	loggedHolds = 5
)

// newExpiry returns what cleans up the stores.
func (a *App) newExpiry() *expiry {
	return &expiry{app: a, metrics: newExpireMetrics(a.registry, a.stores), incidents: a.readIncidents}
}

// readIncidents returns when the incidents that were open at the time of the call have been read.
func (a *App) readIncidents(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, incidentsTimeout)
	defer cancel()
	return a.incidents.CatchUp(ctx)
}

// An expiry removes kept objects from stores when they have expired. Those of a space stay while an incident of the
// space is open, and if it is unknown whether one is.
type expiry struct {
	app       *App
	metrics   *expireMetrics
	incidents func(context.Context) error // reads the open incidents into App.spaceHolds
}

// splits returns the splits of the cleanup: the stores that are not only read.
func (e *expiry) splits() (all []sweep.Split) {
	for _, n := range e.app.stores.storeNames() {
		if st, err := e.app.stores.configured(n); err == nil && st.cfg.Layout != "plain" {
			all = append(all, e.app.job(expireJob, schemas.Key(n.Account, n.Store), n,
				func(ctx context.Context, log *slog.Logger) (map[string]int64, error) { return e.expire(ctx, log, n) }))
		}
	}
	return all
}

// expire removes the expired content of one store, and returns what it has removed.
func (e *expiry) expire(ctx context.Context, log *slog.Logger, n StoreName) (map[string]int64, error) {
	log = log.With("account", n.Account, "store", n.Store)
	done, is, err := e.expireStore(ctx, n, func(sum storage.Expired) {
		log.Info("remove expired content", "uploads", sum.Uploads, "kept", sum.Retained, "bytes", sum.Bytes)
	})
	if is && ctx.Err() == nil {
		e.metrics.held(n, done.Held)
	}
	if done.Held > 0 {
		log.Info("retain expired content of spaces with open incidents", "held", done.Held,
			"incidents", e.app.spaceHolds.reasons(n.Account, loggedHolds))
	}
	switch {
	case err != nil && ctx.Err() == nil:
		e.metrics.failed(n)
	case err == nil && done != storage.Expired{Held: done.Held}:
		log.Info("removed expired content", "uploads", done.Uploads, "kept", done.Retained, "bytes", done.Bytes)
	}
	return map[string]int64{
		"uploads": done.Uploads, "kept": done.Retained, "bytes": done.Bytes, "held": done.Held,
	}, err
}

// expireStore cleans up a store if its marker can be read. It calls progress periodically with the
// total so far. is reports whether the store has anything to clean up.
func (e *expiry) expireStore(
	ctx context.Context, n StoreName, progress func(storage.Expired),
) (done storage.Expired, is bool, err error) {
	st, err := e.app.stores.configured(n)
	if err != nil { // it was removed
		return done, false, err
	}
	if err := st.Marker(ctx); err != nil {
		return done, true, fmt.Errorf("read the store's marker: %w", err)
	}
	d, err := st.lazy.Available(ctx)
	if err != nil {
		return done, true, err
	}
	t, is := d.(storage.Expirer)
	if !is {
		return done, false, nil
	}
	o, sum, last := storage.ExpireOptions{Shared: st.cfg.ExternalWrites == "expected"}, storage.Expired{}, time.Now()
	var unknown error // the open incidents are: only uploads are removed
	if keep := e.app.cfg.Replaced.Keep; keep > 0 {
		if unknown = e.incidents(ctx); unknown == nil {
			o.RetainedBefore = e.app.kafka.Clock.Now().Add(-keep)
		} else {
			unknown = fmt.Errorf("keep what has expired: read the open incidents: %w", unknown)
		}
	}
	o.Hold = func(space string) bool { return e.app.spaceHolds.holds(n.Account, space) }
	o.Each = func(more storage.Expired) {
		retry.Alive(ctx)
		e.metrics.removed(n, more)
		sum.Add(storage.ExpireOptions{}, more)
		if now := time.Now(); now.Sub(last) >= expireLogInterval {
			last = now
			progress(sum)
		}
	}
	done, err = t.Expire(ctx, o)
	return done, true, errors.Join(err, unknown)
}

// expireMetrics counts the objects and bytes removed from the configured stores. A nil *expireMetrics
// counts nothing.
type expireMetrics struct {
	things, bytes, failures *prometheus.CounterVec
	retained                *prometheus.GaugeVec
}

func newExpireMetrics(reg *prometheus.Registry, stores *Stores) *expireMetrics {
	if reg == nil {
		return nil
	}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		opts := prometheus.CounterOpts{Namespace: "millrace", Subsystem: "expire", Name: name, Help: help}
		return prometheus.NewCounterVec(opts, append([]string{"account", "store"}, more...))
	}
	m := &expireMetrics{
		counter("removed_total", "Incomplete uploads, and replaced items after their retention, that were removed.", "what"),
		counter("removed_bytes_total", "Replaced bytes that were removed from a store after their retention."),
		counter("failures_total", "Cleanups of a store that failed."),
		prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "millrace", Subsystem: "expire", Name: "held_objects",
			Help: "Replaced items that the last cleanup left after their retention, because of open incidents.",
		}, []string{"account", "store"}),
	}
	for _, n := range stores.storeNames() {
		for _, kind := range []string{"uploads", "kept"} {
			m.things.WithLabelValues(n.Account, n.Store, kind)
		}
		m.bytes.WithLabelValues(n.Account, n.Store)
		m.failures.WithLabelValues(n.Account, n.Store)
		m.retained.WithLabelValues(n.Account, n.Store)
	}
	reg.MustRegister(m.things, m.bytes, m.failures, m.retained)
	return m
}

func (m *expireMetrics) removed(n StoreName, t storage.Expired) {
	if m == nil {
		return
	}
	m.things.WithLabelValues(n.Account, n.Store, "uploads").Add(float64(t.Uploads))
	m.things.WithLabelValues(n.Account, n.Store, "kept").Add(float64(t.Retained))
	m.bytes.WithLabelValues(n.Account, n.Store).Add(float64(t.Bytes))
}

func (m *expireMetrics) failed(n StoreName) {
	if m != nil {
		m.failures.WithLabelValues(n.Account, n.Store).Inc()
	}
}

func (m *expireMetrics) held(n StoreName, objects int64) {
	if m != nil {
		m.retained.WithLabelValues(n.Account, n.Store).Set(float64(objects))
	}
}
