package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3"
)

// A StoreState is the result of checking a store.
type StoreState string

// The states; empty if the store was not checked. A store in a state other than ok says nothing
// about its items: an item that it does not show is not absent.
const (
	StoreOK          StoreState = "ok"           // it has the expected marker
	storeUnmarked    StoreState = "no-marker"    // not initialised, or another disk or bucket
	storeOther       StoreState = "other-marker" // the marker of another store, or the format of another version
	storeUnavailable StoreState = "unavailable"  // not reachable
	storeUnusable    StoreState = "unusable"     // permanent error
	storeError       StoreState = "error"        // transient error
)

// A StoreInfo is the description of a store that the CLI prints.
type StoreInfo struct {
	Account  string     `json:"account"`
	Store    string     `json:"store"`
	Driver   string     `json:"driver"`
	Location string     `json:"location"`
	Primary  bool       `json:"primary"`
	Read     string     `json:"read"`
	Repair   string     `json:"repair"`
	Source   string     `json:"source"` // where its account comes from: configuration, or revision N of the topic
	State    StoreState `json:"state,omitempty"`
	Error    string     `json:"error,omitempty"`
	Remedy   string     `json:"remedy,omitempty"` // for the operator
	// Capabilities are the capabilities of the store; nil if it was not checked.
	Capabilities []Capability `json:"capabilities,omitempty"`
}

// A Capability is one capability of a store.
type Capability struct {
	Name   string `json:"name"`
	Value  string `json:"value"`  // yes, no, or a value
	Origin string `json:"origin"` // driver: always so; marker: recorded by a probe; probe: probed now
}

// storeCheckTimeout bounds one check of a store by a command.
const storeCheckTimeout = 30 * time.Second

// ListStores returns the stores of the configuration. It does not access them.
func ListStores(cfg *config.Config) (all []StoreInfo) {
	for _, a := range cfg.Accounts {
		source := "configuration"
		if a.Revision > 0 {
			source = fmt.Sprintf("revision %d", a.Revision)
		}
		for _, c := range a.Stores {
			all = append(all, StoreInfo{Account: a.ID, Store: c.ID, Driver: c.Driver, Location: locationOf(c),
				Primary: c.Primary, Read: c.Read, Repair: c.Repair, Source: source})
		}
	}
	return all
}

// locationOf returns the root directory or the URL of a store.
func locationOf(c config.Store) string {
	switch {
	case c.Driver != "s3":
		return c.Root
	case c.Bucket == "":
		return strings.TrimSuffix(c.Endpoint, "/") + "/" + c.BucketPrefix + "*"
	}
	return strings.TrimSuffix(c.Endpoint, "/") + "/" + c.Bucket + "/" + c.Prefix
}

// InspectStores reads the markers of the named stores concurrently; without names, of all stores.
// It writes nothing.
func InspectStores(ctx context.Context, cfg *config.Config, log *slog.Logger, names ...StoreName) ([]StoreInfo, error) {
	return observeStores(ctx, cfg, log, names, storage.Store.Marker)
}

func observeStores(
	ctx context.Context, cfg *config.Config, log *slog.Logger, names []StoreName,
	look func(storage.Store, context.Context) error,
) ([]StoreInfo, error) {
	views, err := selectStores(ListStores(cfg), names)
	if err != nil {
		return nil, err
	}
	stores, err := newStores(cfg, log)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	for i := range views {
		wg.Go(func() { stores.observe(ctx, &views[i], look) })
	}
	wg.Wait()
	return views, errors.Join(context.Cause(ctx), stores.close())
}

// ProbeStore tests the capabilities of a store with temporary objects, which it removes. If record
// is set, it writes the results to the marker.
func ProbeStore(
	ctx context.Context, cfg *config.Config, log *slog.Logger, name StoreName, record bool,
) (StoreInfo, error) {
	views, err := observeStores(ctx, cfg, log, []StoreName{name}, func(st storage.Store, ctx context.Context) error {
		p, can := st.(interface{ Probe(context.Context) error })
		// Nothing is written to a store that has another marker.
		if err := st.Marker(ctx); err != nil && (!errors.Is(err, storage.ErrNoMarker) || record) {
			return err
		}
		if !can {
			return nil
		}
		if record {
			return st.WriteMarker(ctx)
		}
		return p.Probe(ctx)
	})
	if len(views) == 0 {
		return StoreInfo{}, err
	}
	for i := range views[0].Capabilities {
		if views[0].Capabilities[i].Origin == originMarker {
			views[0].Capabilities[i].Origin = originProbe
		}
	}
	return views[0], err
}

// selectStores returns the views of the named stores; without names, all.
func selectStores(all []StoreInfo, names []StoreName) (some []StoreInfo, err error) {
	if len(names) == 0 {
		return all, nil
	}
	for _, n := range names {
		before := len(some)
		for _, v := range all {
			if v.Account == n.Account && v.Store == n.Store {
				some = append(some, v)
			}
		}
		if len(some) == before {
			return nil, missingStore(n)
		}
	}
	return some, nil
}

// RequireStore returns an error that wraps precondition.Err if the configuration does not have a store.
func RequireStore(cfg *config.Config, name StoreName) error {
	_, err := selectStores(ListStores(cfg), []StoreName{name})
	return err
}

// inTime returns what do returns, or an error of class unavailable after storeCheckTimeout even if do hangs.
func inTime[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, storeCheckTimeout, fmt.Errorf("no answer within %v", storeCheckTimeout))
	defer cancel()
	type result struct {
		got T
		err error
	}
	results := make(chan result, 1)
	go func() { // one that hangs stays until the process ends
		got, err := do(ctx)
		results <- result{got, err}
	}()
	select {
	case r := <-results:
		return r.got, r.err
	case <-ctx.Done():
		var none T
		return none, retry.Unavailable(context.Cause(ctx))
	}
}

// observe checks a store without its breaker, and sets the result in v.
func (s *Stores) observe(ctx context.Context, v *StoreInfo, look func(storage.Store, context.Context) error) {
	m := s.of(StoreName{v.Account, v.Store}).lazy
	d, err := inTime(ctx, func(ctx context.Context) (storage.Store, error) {
		d, err := m.Driver(ctx)
		if err != nil { // its root is missing, or a secret or file that the configuration names
			return nil, retry.Unavailable(err)
		}
		return d, look(d, ctx)
	})
	if v.State = stateOf(err); err != nil {
		v.Error = strings.Join(strings.Fields(err.Error()), " ")
		v.Remedy = s.remedyFor(StoreName{v.Account, v.Store}, err)
		return
	}
	v.Capabilities = capabilities(d)
}

// stateOf returns the state for the error of a check.
func stateOf(err error) StoreState {
	switch {
	case err == nil:
		return StoreOK
	case errors.Is(err, storage.ErrNoMarker):
		return storeUnmarked
	case errors.Is(err, storage.ErrWrongMarker):
		return storeOther
	}
	switch retry.ClassOf(err) {
	case retry.ClassUnavailable:
		return storeUnavailable
	case retry.ClassPermanent:
		return storeUnusable
	}
	return storeError
}

// The origins of capabilities.
const (
	originDriver = "driver"
	originMarker = "marker"
	originProbe  = "probe"
)

// capabilities returns the capabilities of a store.
func capabilities(st storage.Store) []Capability {
	c := st.Capabilities()
	var all []Capability
	add := func(origin, name string, is any) {
		switch v := is.(type) {
		case bool:
			is = map[bool]string{true: "yes", false: "no"}[v]
		case int64:
			if is = fmt.Sprint(v) + " bytes"; v == 0 {
				is = "no bound"
			}
		}
		all = append(all, Capability{name, fmt.Sprint(is), origin})
	}
	probed := originDriver
	if f, ok := st.(interface{ Features() s3.Features }); ok {
		probed = originMarker
		f := f.Features()
		add(probed, "conditional end of uploads in parts", f.Complete)
		add(probed, "ETag is the MD5", f.ETagIsMD5)
		add(probed, "verifies sha256", f.SHA256)
		add(probed, "verifies crc64nvme", f.CRC64NVME)
		add(probed, "copies parts by itself", f.CopiesParts)
	}
	add(probed, "conditional put", c.ConditionalPut)
	add(probed, "conditional delete", c.ConditionalDelete)
	add(probed, "versions", c.UniqueVersions)
	add(originDriver, "keeps what is replaced", c.KeepsReplaced)
	add(originDriver, "read only", c.ReadOnly)
	add(originDriver, "digests", strings.Join(c.Digests, ", "))
	add(originDriver, "largest item", c.MaxItemBytes)
	add(originDriver, "properties of an item", int64(c.MaxPropertyBytes))
	add(originDriver, "resolution of times", c.TimeResolution)
	return all
}

// InitStore writes the marker with the store's id into a store that has none. It needs neither Kafka nor ClickHouse.
func InitStore(ctx context.Context, cfg *config.Config, log *slog.Logger, name StoreName) error {
	stores, err := newStores(cfg, log)
	if err != nil {
		return err
	}
	return errors.Join(stores.init(ctx, name), stores.close())
}

// init writes the marker of a store that has none.
func (s *Stores) init(ctx context.Context, name StoreName) error {
	d, err := s.open(ctx, name)
	if err != nil {
		return err
	}
	if err = d.Marker(ctx); errors.Is(err, storage.ErrNoMarker) {
		err = d.WriteMarker(ctx)
	}
	switch state := stateOf(err); {
	case state == storeOther, state == storeUnavailable, state == storeUnusable: // a retry does not help
		return fmt.Errorf("%w: mark store %s/%s: %w: %s",
			precondition.Err, name.Account, name.Store, err, s.remedyFor(name, err))
	case err != nil:
		return fmt.Errorf("mark store %s/%s: %w", name.Account, name.Store, err)
	}
	return nil
}

// open opens the driver of a store for a command, without its breaker.
func (s *Stores) open(ctx context.Context, name StoreName) (storage.Store, error) {
	st, err := s.configured(name)
	if err != nil {
		return nil, err
	}
	d, err := st.lazy.Driver(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: open store %s/%s: %w: %s",
			precondition.Err, name.Account, name.Store, err, s.remedyFor(name, err))
	}
	return d, nil
}
