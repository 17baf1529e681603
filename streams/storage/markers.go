package storage

import (
	"context"
	"sync"
	"time"
)

// Markers reads the markers of stores, each reading on behalf of all who ask meanwhile:
// an absence is believed only where the marker was read after it, and thousands of
// absences must not be thousands of readings. The zero Markers is ready, and safe for
// concurrent use.
type Markers struct {
	mu       sync.Mutex
	readings map[string]*reading // by key; the newest; guarded by mu
}

// A reading is one look at a marker. Its fields but done are set before done is closed.
type reading struct {
	began  time.Time
	done   chan struct{}
	err    error
	gaveUp bool // the one who read gave up, for reasons of his own
}

// Confirm returns what s.Marker says, by a reading that began no earlier than since. An
// error means that whatever the store lacks is unknown. The key tells stores apart.
func (m *Markers) Confirm(ctx context.Context, key string, s Store, since time.Time) error {
	for {
		r, mine := m.join(key, since)
		if mine {
			return r.read(ctx, s)
		}
		select {
		case <-ctx.Done():
			return Ended(ctx)
		case <-r.done:
		}
		if !r.gaveUp && !r.began.Before(since) {
			return r.err
		}
	}
}

// join returns the reading to wait for, or a new one that is the caller's to do.
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

// read reads the marker for all who wait. If it panics they read it themselves.
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
