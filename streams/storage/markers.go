package storage

import (
	"context"
	"sync"
	"time"
)

// Markers reads the markers of stores; concurrent callers share a reading. An absence counts as a fact only
// if the marker was read after it, and thousands of absences must not cause thousands of readings. The zero
// Markers is ready for use; it is safe for concurrent use.
type Markers struct {
	mu       sync.Mutex
	readings map[string]*reading // by key; the newest of each
}

// A reading is one call of Store.Marker. Its fields except done are set before done is closed.
type reading struct {
	began  time.Time
	done   chan struct{}
	err    error
	gaveUp bool // the reader's context ended
}

// Confirm returns the result of s.Marker, from a reading that began at since or later. An error means that
// items missing from the store are unknown, not absent. key identifies the store.
func (m *Markers) Confirm(ctx context.Context, key string, s Store, since time.Time) error {
	for {
		r, mine := m.join(key, since)
		if mine {
			return r.read(ctx, s)
		}
		select {
		case <-ctx.Done():
			return ContextErr(ctx)
		case <-r.done:
		}
		if !r.gaveUp && !r.began.Before(since) {
			return r.err
		}
	}
}

// join returns the reading to wait for, or a new one that the caller must perform (mine).
func (m *Markers) join(key string, since time.Time) (r *reading, mine bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r = m.readings[key]
	if r != nil && (!r.over() || !r.gaveUp && r.err == nil && !r.began.Before(since)) {
		return r, false
	}
	if m.readings == nil {
		m.readings = map[string]*reading{}
	}
	r = &reading{began: time.Now(), done: make(chan struct{})}
	m.readings[key] = r
	return r, true
}

// read reads the marker for all waiting callers. If it panics, they read it themselves.
func (r *reading) read(ctx context.Context, s Store) error {
	r.gaveUp = true
	defer close(r.done)
	err := s.Marker(ctx)
	r.err, r.gaveUp = err, ctx.Err() != nil
	return err
}

func (r *reading) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}
