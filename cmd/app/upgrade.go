package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/file"
)

// UpgradeStore brings a store of driver file to the newest layout. A store that another process uses, or that has no
// layouts, is refused with ErrPrecondition.
func UpgradeStore(
	ctx context.Context, cfg *config.Config, log *slog.Logger, name StoreName, o file.UpgradeOptions,
) (done file.Upgraded, err error) {
	stores, err := newStores(cfg, log)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, stores.close()) }()
	st, ok := stores.byKey[schemas.Key(name.Account, name.Store)]
	if !ok {
		return done, fmt.Errorf("%w: the configuration has no store %s/%s", ErrPrecondition, name.Account, name.Store)
	}
	d, err := st.lazy.open(ctx)
	if err != nil {
		return done, fmt.Errorf("%w: open store %s/%s: %w: %s", ErrPrecondition, name.Account, name.Store, err, stores.remedyFor(name, err))
	}
	f, ok := d.(*file.Store)
	if !ok {
		return done, fmt.Errorf("%w: store %s/%s has no layout to upgrade: that is for driver file, layout millrace",
			ErrPrecondition, name.Account, name.Store)
	}
	done, err = f.Upgrade(ctx, o)
	switch class := retry.ClassOf(err); {
	case errors.Is(err, file.ErrInUse):
		err = fmt.Errorf("%w: %w: end the processes that use it, and run this again", ErrPrecondition, err)
	case err != nil && (class == retry.ClassUnavailable || class == retry.ClassPermanent):
		err = fmt.Errorf("%w: %w", ErrPrecondition, err)
	}
	return done, err
}
