package duplicate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// markers reads the markers of stores, each reading on behalf of all who ask meanwhile.
// It is safe for concurrent use.
type markers struct {
	mu     sync.Mutex
	stores map[string]*reading // by account and store; the newest reading; guarded by mu
}

// A reading is one look at a marker. Its fields but done are set before done is closed.
type reading struct {
	began  time.Time
	done   chan struct{}
	err    error
	gaveUp bool // the one who read gave up, for reasons of his own
}

// confirm returns nil where the store's marker was read, and is its own, by a reading
// that began no earlier than since. Its error says that whatever the store lacks is unknown.
func (m *markers) confirm(ctx context.Context, at schemas.Copy, store storage.Store, since time.Time) error {
	key := schemas.Key(at.Account, at.Store)
	for {
		m.mu.Lock()
		r := m.stores[key]
		if r == nil || r.over() && (r.gaveUp || r.err != nil || r.began.Before(since)) {
			r = &reading{began: time.Now(), done: make(chan struct{})}
			m.stores[key] = r
			m.mu.Unlock()
			err := store.Marker(ctx)
			r.err, r.gaveUp = err, ctx.Err() != nil
			close(r.done)
			return markerError(at, err)
		}
		m.mu.Unlock()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.done:
		}
		if !r.gaveUp && !r.began.Before(since) {
			return markerError(at, r.err)
		}
	}
}

func (r *reading) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func markerError(at schemas.Copy, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("read marker of store %s/%s: %w", at.Account, at.Store, err)
	if retry.ClassOf(err) == retry.Transient {
		err = retry.Unavailable(err)
	}
	return err
}
