package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// storesSide processes every item of the space of a store. It opens stores as the roles do: the driver behind the
// limits and the breaker.
type storesSide struct {
	Do       string // hash, or copy to the target store
	Endpoint string // URL of an S3 server, whose buckets have the ids of the stores as prefixes
	Root     string // directory with a subdirectory per file store, instead of an S3 server
	Workers  int
}

func (s *storesSide) run(ctx context.Context) (res sideResult, err error) {
	start := time.Now()
	a, err := openApp(ctx,
		func(cfg *settings.Config) { cfg.Accounts = []settings.Account{{ID: mainAccount, Stores: s.stores()}} })
	if err != nil {
		return res, err
	}
	defer a.Close()
	source, err := openMarked(ctx, a, fromStore)
	if err != nil {
		return res, err
	}
	digests, err := digest.NewPool(digest.MD5, digest.SHA256)
	if err != nil {
		return res, err
	}
	do := func(ctx context.Context, o storage.Object) error { return readItem(ctx, source, o, digests) }
	if s.Do == "copy" {
		target, err := openMarked(ctx, a, toStore)
		if err != nil {
			return res, err
		}
		do = func(ctx context.Context, o storage.Object) error { return copyItem(ctx, source, target, o) }
	}
	n, err := s.each(ctx, source, do)
	return sideResult{Records: n, Seconds: time.Since(start).Seconds()}, err
}

// stores returns the settings of the source and of the target, if there is one.
func (s *storesSide) stores() (all []settings.Store) {
	for _, id := range []string{fromStore, toStore} {
		switch {
		case id == toStore && s.Do != "copy":
		case s.Root != "":
			all = append(all, settings.Store{ID: id, Driver: "file", Root: filepath.Join(s.Root, id)})
		default:
			key, _ := settings.ParseSecret("env:" + objectsVariable) // it is valid
			keys := settings.Credentials{AccessKey: key, SecretKey: key}
			all = append(all, settings.Store{
				ID: id, Driver: "s3", Endpoint: s.Endpoint, BucketPrefix: id + "-", PathStyle: true, Credentials: keys,
			})
		}
	}
	return all
}

// openMarked returns a store after reading its marker, as a worker does at start.
func openMarked(ctx context.Context, a *app.App, id string) (storage.Store, error) {
	store, ok := a.Stores().Store(mainAccount, id)
	if !ok {
		return nil, fmt.Errorf("no store %q", id)
	}
	return store, store.Marker(ctx)
}

// each calls do for every item of the space, with Workers concurrent calls.
func (s *storesSide) each(
	ctx context.Context, source storage.Store, do func(context.Context, storage.Object) error,
) (n int64, err error) {
	items := make(chan storage.Object, 2*s.Workers)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(items)
		for o, err := range source.List(ctx, space, "") {
			if err != nil {
				return err
			}
			select {
			case items <- o:
				n++
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range s.Workers {
		group.Go(func() error {
			for o := range items {
				if err := do(ctx, o); err != nil {
					return fmt.Errorf("item %q: %w", o.Item, err)
				}
			}
			return nil
		})
	}
	err = group.Wait() // only the lister writes n before Wait returns
	return n, err
}

// readItem reads an item in the listed version, digests it with md5 and sha256, and compares the result with the
// store's own digests.
func readItem(ctx context.Context, source storage.Store, o storage.Object, digests *digest.Pool) error {
	body, o, err := source.Open(ctx, space, o.Item, o.Version)
	if err != nil {
		return err
	}
	defer body.Close()
	h, err := digests.Get()
	if err != nil {
		return err
	}
	defer digests.Put(h)
	n, err := h.ReadFrom(body)
	if err == nil && (n != o.Size || o.Digests.Compare(h.Sum()) == digest.Disagree) {
		err = fmt.Errorf("%w: read %d of %d bytes with digests %v, the store has %v",
			storage.ErrDigest, n, o.Size, h.Sum(), o.Digests)
	}
	return err
}

// copyItem copies an item to the target on the condition that it is absent there, and verifies the digests, as the
// copier does.
func copyItem(ctx context.Context, source, target storage.Store, o storage.Object) error {
	body, o, err := source.Open(ctx, space, o.Item, o.Version)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = target.Put(ctx, space, o.Item, body, storage.PutOptions{
		Condition: storage.Condition{Absent: true}, Properties: o.Properties, Digests: o.Digests,
		Compute: []string{digest.MD5, digest.SHA256}, Size: o.Size,
	})
	return err
}
