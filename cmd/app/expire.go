package app

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage"
)

// expireLogInterval is the time between two log lines about the progress in a store.
const expireLogInterval = 30 * time.Second

// expirer returns the work of one cleanup: it cleans up the stores, one after the other, except the
// paused ones. Several processes can do so concurrently.
func (a *App) expirer() func(context.Context) {
	m := newExpireMetrics(a.registry, a.stores)
	return func(ctx context.Context) {
		for _, n := range a.stores.storeNames() {
			if ctx.Err() == nil && !a.controls.Paused(schemas.RoleSweeper, n.Account, n.Store) {
				a.expire(ctx, n, m)
			}
		}
	}
}

// expire removes the expired content of one store.
func (a *App) expire(ctx context.Context, n StoreName, m *expireMetrics) {
	a.runJob(ctx, schemas.Key("expire", n.Account, n.Store), func(id string) (map[string]int64, error) {
		log := a.log.With("account", n.Account, "store", n.Store, "job", id)
		done, is, err := a.expireStore(ctx, n, func(sum storage.Expired) {
			log.Info("remove expired content", "uploads", sum.Uploads, "kept", sum.Retained, "bytes", sum.Bytes)
		}, m)
		switch {
		case ctx.Err() != nil, !is && err == nil:
			return nil, err
		case err != nil:
			m.failed(n)
			log.Warn("remove expired content: continue in the next run",
				"uploads", done.Uploads, "kept", done.Retained, "err", err)
		case done != storage.Expired{}:
			log.Info("removed expired content", "uploads", done.Uploads, "kept", done.Retained, "bytes", done.Bytes)
		}
		return map[string]int64{"uploads": done.Uploads, "kept": done.Retained, "bytes": done.Bytes}, err
	})
}

// expireStore cleans up a store if its marker can be read. It calls progress periodically with the
// total so far. is reports whether the store has anything to clean up.
func (a *App) expireStore(
	ctx context.Context, n StoreName, progress func(storage.Expired), m *expireMetrics,
) (done storage.Expired, is bool, err error) {
	st := a.stores.of(n)
	if st.cfg.Layout == "plain" { // read only
		return done, false, nil
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
	if keep := a.cfg.Replaced.Keep; keep > 0 {
		o.RetainedBefore = time.Now().Add(-keep)
	}
	o.Each = func(more storage.Expired) {
		m.removed(n, more)
		sum.Add(storage.ExpireOptions{}, more)
		if now := time.Now(); now.Sub(last) >= expireLogInterval {
			last = now
			progress(sum)
		}
	}
	done, err = t.Expire(ctx, o)
	return done, true, err
}

// expireMetrics counts the objects and bytes removed from the configured stores. A nil *expireMetrics
// counts nothing.
type expireMetrics struct{ things, bytes, failures *prometheus.CounterVec }

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
	}
	for _, n := range stores.storeNames() {
		for _, kind := range []string{"uploads", "kept"} {
			m.things.WithLabelValues(n.Account, n.Store, kind)
		}
		m.bytes.WithLabelValues(n.Account, n.Store)
		m.failures.WithLabelValues(n.Account, n.Store)
	}
	reg.MustRegister(m.things, m.bytes, m.failures)
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
