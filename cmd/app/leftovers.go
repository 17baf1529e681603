package app

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// leftoversEvery is how often stores are swept of what writers that died have left. What is left is days old before it goes.
const leftoversEvery = 24 * time.Hour

// leaves is a store in which writers that died leave what costs and is no item, such as uploads in parts.
type leaves interface {
	// Sweep ends what is old of it in a space, and returns how many.
	Sweep(ctx context.Context, space string) (ended int, err error)
}

// leftovers sweeps stores, at once and then now and then, but not while the sweeper or everything is paused.
func (a *App) leftovers() part {
	return part{"leftovers", func(ctx context.Context) error {
		for a.leave(ctx) {
			for _, acc := range a.cfg.Accounts {
				for _, c := range acc.Stores {
					a.sweepLeftovers(ctx, StoreName{acc.ID, c.ID})
				}
			}
			_ = retry.Sleep(ctx, leftoversEvery) // only ctx ends it early
		}
		return nil
	}}
}

// sweepLeftovers sweeps one store. What failed is left to the next time.
func (a *App) sweepLeftovers(ctx context.Context, name StoreName) {
	log := a.log.With("account", name.Account, "store", name.Store)
	ended, err := a.stores.endLeftovers(ctx, name)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		log.Error("what dead writers left was not all ended", "ended", ended, "err", err)
	case ended > 0:
		log.Info("ended what dead writers left", "ended", ended)
	}
}

// endLeftovers is for the stores that were opened: one that is away has time.
func (s *Stores) endLeftovers(ctx context.Context, name StoreName) (ended int, err error) {
	st, ok := s.byKey[schemas.Key(name.Account, name.Store)]
	if !ok {
		return 0, nil
	}
	d, err := st.mount.reach(ctx)
	if err != nil {
		return 0, fmt.Errorf("open store %s/%s: %w", name.Account, name.Store, err)
	}
	swept, ok := d.(leaves)
	if !ok || d.Capabilities().ReadOnly {
		return 0, nil
	}
	return endLeftovers(ctx, d, swept)
}

// endLeftovers sweeps every space of a store that is the one that it should be.
func endLeftovers(ctx context.Context, d storage.Store, swept leaves) (ended int, err error) {
	if err := d.Marker(ctx); err != nil {
		return 0, err
	}
	for space, err := range d.Spaces(ctx) {
		if err != nil {
			return ended, err
		}
		n, err := swept.Sweep(ctx, space)
		if ended += n; err != nil {
			return ended, err
		}
	}
	return ended, nil
}
