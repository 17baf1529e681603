package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/denied"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/limit"
)

// startCheckTimeout bounds the check of all stores at startup.
const startCheckTimeout = 5 * time.Second

// CheckStores opens the stores of cfg and reads their markers, so that their errors are reported
// before anything else starts.
func CheckStores(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	stores, err := newStores(cfg, log)
	if err != nil {
		return err
	}
	return errors.Join(stores.checkMarkers(ctx), stores.close())
}

// checkAtStart reads all markers once, so that the breakers of unavailable stores are open before
// the first task. Its error reports only stores that have the marker of another store or belong to
// another user, since waiting does not help there. It calls inForce for such stores, and does not report those that the
// accounts in force do not have in this place: the topic of accounts is not read yet.
func (s *Stores) checkAtStart(run context.Context, inForce func(context.Context) []config.Account) error {
	ctx, cancel := context.WithTimeout(run, startCheckTimeout)
	defer cancel()
	names := s.storeNames()
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		wg.Go(func() {
			err := s.of(n).Marker(ctx)
			switch {
			case err == nil, run.Err() != nil:
			case errors.Is(err, storage.ErrWrongMarker), errors.Is(err, file.ErrDenied):
				errs[i] = fmt.Errorf("store %s/%s: %w: %s", n.Account, n.Store, err, remedy(n, err))
			default:
				message := "wait for unavailable store"
				if errors.Is(err, storage.ErrCredentials) {
					message = "wait for store that refuses the credentials"
				}
				s.log.Warn(message, "account", n.Account, "store", n.Store, "err", err, "remedy", s.remedyFor(n, err))
			}
		})
	}
	wg.Wait()
	if errors.Join(errs...) == nil {
		return nil
	}
	accounts := inForce(run)
	for i, n := range names {
		if errs[i] != nil && !hasPlace(accounts, n, s.of(n).cfg.Place()) {
			s.log.Warn("ignore store of the configuration: the topic of accounts has another document",
				"account", n.Account, "store", n.Store, "err", errs[i])
			errs[i] = nil
		}
	}
	return precondition.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil }))
}

// hasPlace reports whether accounts have a store in a place.
func hasPlace(accounts []config.Account, n StoreName, place string) bool {
	return slices.ContainsFunc(accounts, func(a config.Account) bool {
		return a.ID == n.Account && slices.ContainsFunc(a.Stores, func(c config.Store) bool {
			return c.ID == n.Store && c.Place() == place
		})
	})
}

// run probes each unavailable store until it answers: at startup, when it is added, and whenever its
// breaker opens. It also reads the topic of accounts again for stores that are unknown.
func (s *Stores) run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.readForUnknown(ctx) })
	watched := map[*limit.Store]context.CancelFunc{}
	for ctx.Err() == nil {
		s.mu.Lock()
		changed, in := s.changed, s.current.Load()
		s.mu.Unlock()
		present := map[*limit.Store]bool{}
		for _, st := range in.byKey {
			present[st.Store] = true
			if watched[st.Store] == nil {
				watch, cancel := context.WithCancel(ctx)
				watched[st.Store] = cancel
				wg.Go(func() { st.Watch(watch, st.lazy.Opened) })
			}
		}
		for st, cancel := range watched {
			if !present[st] {
				cancel()
				delete(watched, st)
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	for _, cancel := range watched {
		cancel()
	}
	wg.Wait()
	return nil
}

// metrics returns the metrics of the breakers and throttles.
func (s *Stores) metrics() prometheus.Collector {
	return limit.NewMetrics(func() (all []*limit.Store) {
		for _, st := range s.current.Load().byKey {
			all = append(all, st.Store)
		}
		return all
	}, func(account, store string) int { return s.waiting.Count(schemas.Key(account, store)) })
}

// checkMarkers reads the markers of all stores for a command. An unmounted root must not look like
// a store that lost everything. It bypasses the breakers, since an error here is not a failure of a
// store in use.
func (s *Stores) checkMarkers(ctx context.Context) error {
	var errs []error
	for _, n := range s.storeNames() {
		if err := s.of(n).lazy.Marker(ctx); err != nil {
			errs = append(errs, fmt.Errorf("store %s/%s: %w: %s", n.Account, n.Store, err, s.remedyFor(n, err)))
		}
	}
	return precondition.Join(errs)
}

// remedy returns the remedy for a marker that could not be read.
func remedy(n StoreName, err error) string {
	if remedy := denied.RemedyOf(err); remedy != "" {
		return remedy
	}
	switch {
	case errors.Is(err, file.ErrFormat):
		return "use the version that made it, or mark it again: docs/stores.md, Metadata in a file store"
	case errors.Is(err, storage.ErrWrongMarker):
		return "check its location and id in the configuration"
	case errors.Is(err, fs.ErrNotExist):
		return "create or mount its root, or correct accounts in the configuration"
	case errors.Is(err, storage.ErrNoMarker):
		return fmt.Sprintf("if it is mounted and new to millrace, run: millrace store init %s/%s", n.Account, n.Store)
	}
	return remedyUnreachable
}

const remedyUnreachable = "check that it is running, mounted and reachable"

// remedyFor is remedy for a configured store, as its driver needs it.
func (s *Stores) remedyFor(n StoreName, err error) string {
	switch {
	case errors.Is(err, storage.ErrCredentials):
		return "check its credentials in the configuration"
	case s.of(n).cfg.Driver == "file", errors.Is(err, storage.ErrWrongMarker), errors.Is(err, storage.ErrNoMarker):
		return remedy(n, err)
	}
	return "check its settings in the configuration"
}
