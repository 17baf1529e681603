package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// StorageSide is the job of one child process in the storage figures: process every item of a space. It opens stores as
// the roles do: the driver behind the limits and the breaker.
type StorageSide struct {
	Do             string // hash, copy or list
	Endpoint       string // URL of an S3 server; its credentials are in the environment
	Root           string // directory with a subdirectory per file store, instead of an S3 server
	Source, Target string // store ids, also bucket prefixes; Target is only for copy
	Space          string
	Workers        int
	Profile        string // file for a CPU profile; empty: none
}

// Environment variables with the credentials of the S3 server, for the child process.
const (
	accessVariable = "MILLRACE_BENCH_ACCESS"
	secretVariable = "MILLRACE_BENCH_SECRET"
)

var errStorageSide = errors.New(
	"required: --do hash, copy or list, --endpoint or --root, --source, --space, --workers and, for copy, --target")

func (s StorageSide) check() error {
	known := s.Do == "hash" || s.Do == "list" || s.Do == "copy" && s.Target != ""
	if !known || (s.Endpoint == "") == (s.Root == "") || s.Source == "" || s.Space == "" || s.Workers <= 0 {
		return fmt.Errorf("%w: %w", usage.Err, errStorageSide)
	}
	return nil
}

// Run does the job and returns the line to print.
func (s StorageSide) Run(ctx context.Context) (line []byte, err error) {
	if s.Profile != "" {
		f, err := os.Create(s.Profile)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, err
		}
		defer pprof.StopCPUProfile()
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	start := time.Now()
	a, err := openApp(ctx,
		func(cfg *settings.Config) { cfg.Accounts = []settings.Account{{ID: mainAccount, Stores: s.stores()}} })
	if err != nil {
		return nil, err
	}
	defer a.Close()
	source, err := openMarked(ctx, a, s.Source)
	if err != nil {
		return nil, err
	}
	var n int64
	switch s.Do {
	case "list":
		for _, err := range source.List(ctx, s.Space, "") {
			if err != nil {
				return nil, err
			}
			n++
		}
	case "hash":
		n, err = s.hash(ctx, source)
	case "copy":
		var target storage.Store
		if target, err = openMarked(ctx, a, s.Target); err != nil {
			return nil, err
		}
		n, err = s.copy(ctx, source, target)
	}
	if err != nil {
		return nil, err
	}
	most, err := peakMemory()
	if err != nil {
		return nil, err
	}
	return json.Marshal(sideResult{Records: n, Seconds: time.Since(start).Seconds(), Bytes: most})
}

// stores returns the settings of the source and of the target, if there is one.
func (s StorageSide) stores() (all []settings.Store) {
	for _, id := range []string{s.Source, s.Target} {
		switch {
		case id == "":
		case s.Root != "":
			all = append(all, settings.Store{ID: id, Driver: "file", Root: filepath.Join(s.Root, id)})
		default:
			keys := settings.Credentials{
				AccessKey: settings.EnvSecret(accessVariable), SecretKey: settings.EnvSecret(secretVariable),
			}
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
func (s StorageSide) each(
	ctx context.Context, source storage.Store, do func(context.Context, storage.Object) error,
) (n int64, err error) {
	items := make(chan storage.Object, 2*s.Workers)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(items)
		for o, err := range source.List(ctx, s.Space, "") {
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

// hash reads each item in the listed version, digests it with md5 and sha256, and compares the result with the store's
// own digests.
func (s StorageSide) hash(ctx context.Context, source storage.Store) (int64, error) {
	pool, err := digest.NewPool(digest.MD5, digest.SHA256)
	if err != nil {
		return 0, err
	}
	return s.each(ctx, source, func(ctx context.Context, o storage.Object) error {
		body, o, err := source.Open(ctx, s.Space, o.Item, o.Version)
		if err != nil {
			return err
		}
		defer body.Close()
		h, err := pool.Get()
		if err != nil {
			return err
		}
		defer pool.Put(h)
		n, err := h.ReadFrom(body)
		if err == nil && (n != o.Size || o.Digests.Compare(h.Sum()) == digest.Disagree) {
			err = fmt.Errorf("%w: read %d of %d bytes with digests %v, the store has %v",
				storage.ErrDigest, n, o.Size, h.Sum(), o.Digests)
		}
		return err
	})
}

// copy copies each item to the target on the condition that it is absent there, and verifies the digests, as the copier
// does.
func (s StorageSide) copy(ctx context.Context, source, target storage.Store) (int64, error) {
	return s.each(ctx, source, func(ctx context.Context, o storage.Object) error {
		body, o, err := source.Open(ctx, s.Space, o.Item, o.Version)
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = target.Put(ctx, s.Space, o.Item, body, storage.PutOptions{
			Condition: storage.Condition{Absent: true}, Properties: o.Properties, Digests: o.Digests,
			Compute: []string{digest.MD5, digest.SHA256}, Size: o.Size,
		})
		return err
	})
}
