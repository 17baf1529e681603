package hint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Stores returns the store of an account, or false if there is none with that id.
type Stores interface {
	Store(account, id string) (storage.Store, bool)
}

// An Observer queries stores for the state of copies. It is safe for concurrent use.
type Observer struct {
	stores  Stores
	settle  time.Duration
	markers storage.Markers
}

// NewObserver returns an Observer. settle is Observation.Settle.
func NewObserver(stores Stores, settle time.Duration) *Observer {
	return &Observer{stores: stores, settle: settle}
}

// Observe returns the state of a copy. It reports a copy as absent only if it could read the store's marker afterwards.
// An unknown store is a permanent error; other errors have the class that the store returned.
func (l *Observer) Observe(ctx context.Context, c schemas.Copy) (Observation, error) {
	store, ok := l.stores.Store(c.Account, c.Store)
	if !ok {
		return Observation{}, retry.Permanent(fmt.Errorf("observe %s: account %q has no store %q", c, c.Account, c.Store))
	}
	o, err := store.Stat(ctx, c.Space, c.Item)
	now := time.Now()
	s := Observation{Present: err == nil, Object: o, Resolution: store.Capabilities().TimeResolution,
		Settle: l.settle, Now: now}
	switch {
	case err == nil:
		return s, nil
	case !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrNoSpace):
		return Observation{}, fmt.Errorf("observe %s: %w", c, err)
	}
	if err := l.markers.Confirm(ctx, schemas.Key(c.Account, c.Store), store, now); err != nil {
		err = fmt.Errorf("confirm that %s is absent: %w", c, err)
		if retry.ClassOf(err) == retry.Transient {
			err = retry.Unavailable(err)
		}
		return Observation{}, err
	}
	return s, nil
}
