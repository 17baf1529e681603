package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/file"
)

// UpgradeStore upgrades a store of driver file to the newest layout. It returns precondition.Err if
// another process uses the store, or if the store has no layout version.
func UpgradeStore(
	ctx context.Context, cfg *config.Config, log *slog.Logger, name StoreName, o file.UpgradeOptions,
) (done file.Upgraded, err error) {
	stores, err := newStores(cfg, log)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, stores.close()) }()
	st, err := stores.configured(name)
	if err != nil {
		return done, err
	}
	d, err := st.lazy.Driver(ctx)
	if err != nil {
		return done, fmt.Errorf("%w: open store %s/%s: %w: %s",
			precondition.Err, name.Account, name.Store, err, stores.remedyFor(name, err))
	}
	f, ok := d.(*file.Store)
	if !ok {
		return done, fmt.Errorf("%w: store %s/%s has no layout to upgrade: only driver file with layout millrace has one",
			precondition.Err, name.Account, name.Store)
	}
	done, err = f.Upgrade(ctx, o)
	switch class := retry.ClassOf(err); {
	case errors.Is(err, file.ErrInUse):
		err = fmt.Errorf("%w: %w: stop the processes that use it, and run this again", precondition.Err, err)
	case err != nil && (class == retry.ClassUnavailable || class == retry.ClassPermanent):
		err = fmt.Errorf("%w: %w", precondition.Err, err)
	}
	return done, err
}
