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
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3"
)

// A StoreState is what a look at a store came to.
type StoreState string

// The states; empty if nobody has looked. Of a store that is not ok nothing is known: whatever it lacks is not absent.
const (
	StoreOK          StoreState = "ok"           // it is the one that it should be
	storeUnmarked    StoreState = "no-marker"    // not made known, or another disk or bucket
	storeOther       StoreState = "other-marker" // another store's
	storeUnavailable StoreState = "unavailable"  // nothing in it can be reached
	storeUnusable    StoreState = "unusable"     // it refuses for good
	storeError       StoreState = "error"        // this look failed; the next may not
)

// A StoreView is what a person is shown of a store.
type StoreView struct {
	Account string     `json:"account"`
	Store   string     `json:"store"`
	Driver  string     `json:"driver"`
	Place   string     `json:"place"`
	Primary bool       `json:"primary"`
	Read    string     `json:"read"`
	Repair  string     `json:"repair"`
	State   StoreState `json:"state,omitempty"`
	Error   string     `json:"error,omitempty"`
	Do      string     `json:"do,omitempty"` // what a person can do about it
	// Abilities are what the store can do, nil where nobody has looked.
	Abilities []Ability `json:"abilities,omitempty"`
}

// An Ability is one thing that stores may be able to do.
type Ability struct {
	Name   string `json:"name"`
	Is     string `json:"is"`     // yes, no, or a value
	Origin string `json:"origin"` // driver: it is so; marker: as probed once; probe: just now
}

// lookTime bounds one look of a person at a store.
const storeCheckTimeout = 30 * time.Second

// ListStores tells what the configuration says of the stores. It asks none of them.
func ListStores(cfg *config.Config) (all []StoreView) {
	for _, a := range cfg.Accounts {
		for _, c := range a.Stores {
			all = append(all, StoreView{Account: a.ID, Store: c.ID, Driver: c.Driver, Place: locationOf(c), Primary: c.Primary, Read: c.Read, Repair: c.Repair})
		}
	}
	return all
}

// placeOf says where a store is.
func locationOf(c config.Store) string {
	switch {
	case c.Driver != "s3":
		return c.Root
	case c.Bucket == "":
		return strings.TrimSuffix(c.Endpoint, "/") + "/" + c.BucketPrefix + "*"
	}
	return strings.TrimSuffix(c.Endpoint, "/") + "/" + c.Bucket + "/" + c.Prefix
}

// CheckStoresOf reads the markers of stores, all at a time, and writes nothing; no names are all stores.
func CheckStoresOf(ctx context.Context, cfg *config.Config, log *slog.Logger, names ...StoreName) ([]StoreView, error) {
	stores, err := newStores(cfg, log)
	if err != nil {
		return nil, err
	}
	views, err := selectStores(ListStores(cfg), names)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	for i := range views {
		wg.Go(func() { stores.observe(ctx, &views[i], storage.Store.Marker) })
	}
	wg.Wait()
	return views, errors.Join(context.Cause(ctx), stores.close())
}

// ProbeStore tries what a store can do, with things of its own that it removes. Where record is set, the marker
// says so from then on.
func ProbeStore(ctx context.Context, cfg *config.Config, log *slog.Logger, name StoreName, record bool) (StoreView, error) {
	stores, err := newStores(cfg, log)
	if err != nil {
		return StoreView{}, err
	}
	views, err := selectStores(ListStores(cfg), []StoreName{name})
	if err != nil {
		return StoreView{}, err
	}
	v := &views[0]
	stores.observe(ctx, v, func(st storage.Store, ctx context.Context) error {
		p, can := st.(interface{ Probe(context.Context) error })
		// Nothing is written where another store is.
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
	for i := range v.Abilities {
		if v.Abilities[i].Origin == originMarker {
			v.Abilities[i].Origin = originProbe
		}
	}
	return *v, errors.Join(context.Cause(ctx), stores.close())
}

// pick returns the views of the stores that are named, or all.
func selectStores(all []StoreView, names []StoreName) (some []StoreView, err error) {
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
			return nil, fmt.Errorf("%w: the configuration has no store %s/%s", ErrPrecondition, n.Account, n.Store)
		}
	}
	return some, nil
}

// view looks at a store, past its breaker, and fills in what came of it. It waits no longer than lookTime, whatever hangs.
func (s *Stores) observe(ctx context.Context, v *StoreView, look func(storage.Store, context.Context) error) {
	ctx, cancel := context.WithTimeoutCause(ctx, storeCheckTimeout, fmt.Errorf("no answer within %v", storeCheckTimeout))
	defer cancel()
	m := s.byKey[schemas.Key(v.Account, v.Store)].lazy
	type seen struct {
		d    storage.Store
		open bool
		err  error
	}
	came := make(chan seen, 1)
	go func() { // a mount that hangs is left to the end of the process
		d, err := m.open(ctx)
		open := err == nil
		if open {
			err = look(d, ctx)
		}
		came <- seen{d, open, err}
	}()
	var got seen
	select {
	case got = <-came:
	case <-ctx.Done():
		got.err = retry.Unavailable(context.Cause(ctx))
	}
	v.State = stateOf(got.err)
	if got.err != nil {
		if !got.open { // its root, or what it needs of the configuration, is not there
			v.State = storeUnavailable
		}
		v.Error, v.Do = strings.Join(strings.Fields(got.err.Error()), " "), s.remedyFor(StoreName{v.Account, v.Store}, got.err)
		return
	}
	v.Abilities = abilities(got.d)
}

// stateOf says what an error of a look means.
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

// Where abilities are known from.
const (
	originDriver = "driver"
	originMarker = "marker"
	originProbe  = "probe"
)

// abilities are what a store can do.
func abilities(st storage.Store) []Ability {
	c := st.Capabilities()
	var all []Ability
	add := func(origin, name string, is any) {
		switch v := is.(type) {
		case bool:
			is = map[bool]string{true: "yes", false: "no"}[v]
		case int64:
			if is = fmt.Sprint(v) + " bytes"; v == 0 {
				is = "no bound"
			}
		}
		all = append(all, Ability{name, fmt.Sprint(is), origin})
	}
	probed := originDriver
	if f, ok := st.(interface{ Facts() s3.Facts }); ok {
		probed = originMarker
		f := f.Facts()
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
