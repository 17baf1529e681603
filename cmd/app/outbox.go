package app

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/outbox"
)

// EmittingStore returns an account's store that publishes a Change for every mutation. Its outbox is below
// outbox.dir, which must be set, and contains the mutations that an earlier process could not publish: Run
// of the returned store publishes them. One process at a time can open the outbox; for another the error
// wraps precondition.Err.
func (a *App) EmittingStore(account, id, agent string) (*emit.Store, error) {
	st, ok := a.stores.Store(account, id)
	if !ok {
		return nil, fmt.Errorf("no store %s/%s", account, id)
	}
	if a.cfg.Outbox.Dir == "" {
		return nil, fmt.Errorf("%w: outbox.dir is not set", precondition.Err)
	}
	f, err := outbox.Open(outbox.Config{
		Dir: filepath.Join(a.cfg.Outbox.Dir, account, id), Limit: int64(a.cfg.Outbox.Limit),
	})
	switch {
	case errors.Is(err, outbox.ErrLocked), errors.Is(err, outbox.ErrDamaged), errors.Is(err, outbox.ErrFormat),
		errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: %w", precondition.Err, err)
	case err != nil:
		return nil, err
	}
	a.outboxes = append(a.outboxes, f)
	if a.registry != nil && a.emits == nil {
		a.emits = emit.NewMetrics(a.registry)
	}
	return emit.New(st, emit.Config{
		Account: account, Store: id, Agent: agent, Outbox: f, Metrics: a.emits, Log: a.log,
	}, a.producer)
}

// Unpublished returns the number of mutations in the outboxes: those in progress, and those that Kafka
// has not acknowledged.
func (a *App) Unpublished() (n int) {
	for _, f := range a.outboxes {
		n += f.Stats().Pending
	}
	return n
}

// closeOutboxes closes the outboxes. Call it after the last call of their stores.
func (a *App) closeOutboxes() {
	for _, f := range a.outboxes {
		if err := f.Close(); err != nil {
			a.log.Warn("close an outbox", "err", err)
		}
	}
}
