package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3"
)

// A StorageSide is what a process of its own does for a figure of stores: something with every item of a space,
// through the driver, as a worker does it.
type StorageSide struct {
	Do             string // hash, copy or list
	Endpoint       string
	Access         string
	Secret         string // passed on in SecretVariable
	Source, Target string // prefixes of buckets, each a store; the target is that of copies
	Space          string
	Workers        int
	Profile        string // a file for a CPU profile; empty: none
}

// SecretVariable is where a side's process finds the secret key.
const SecretVariable = "MILLRACE_BENCH_SECRET"

var errStorageSide = errors.New("wants --do hash, copy or list, --endpoint, --source, --space, --workers and, to copy, --target")

func (s StorageSide) check() error {
	known := s.Do == "hash" || s.Do == "list" || s.Do == "copy" && s.Target != ""
	if !known || s.Endpoint == "" || s.Source == "" || s.Space == "" || s.Workers <= 0 {
		return fmt.Errorf("%w: %w", ErrUsage, errStorageSide)
	}
	return nil
}

// Run does it. It returns the line that it is to print.
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
	source, err := s.store(ctx, s.Source)
	if err != nil {
		return nil, err
	}
	defer source.Close()
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
		var target *s3.Store
		if target, err = s.store(ctx, s.Target); err != nil {
			return nil, err
		}
		defer target.Close()
		n, err = s.copy(ctx, source, target)
	}
	if err != nil {
		return nil, err
	}
	most, err := mostMemory()
	if err != nil {
		return nil, err
	}
	return json.Marshal(sideResult{Records: n, Seconds: time.Since(start).Seconds(), Bytes: most})
}

// bucketStore is a store whose spaces are buckets with a prefix, which is its id.
func bucketStore(endpoint, access, secret, prefix string) (*s3.Store, error) {
	return s3.New(s3.Config{
		ID: prefix, Endpoint: endpoint, BucketPrefix: prefix + "-", PathStyle: true, Credentials: s3.Credentials{AccessKey: access, SecretKey: secret},
	})
}

// store opens a store, and reads from its marker what the service can do, as a worker does when it starts.
func (s StorageSide) store(ctx context.Context, prefix string) (*s3.Store, error) {
	store, err := bucketStore(s.Endpoint, s.Access, s.Secret, prefix)
	if err != nil {
		return nil, err
	}
	return store, store.Marker(ctx)
}

// each has the workers do something with every item of the space.
func (s StorageSide) each(ctx context.Context, source *s3.Store, do func(context.Context, storage.Object) error) (n int64, err error) {
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
	err = group.Wait() // before it n is the lister's
	return n, err
}

// hash reads items in the version that was listed, with md5 and sha256, and holds that against what the store itself says.
func (s StorageSide) hash(ctx context.Context, source *s3.Store) (int64, error) {
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
			err = fmt.Errorf("%w: %d of %d bytes, with %v where the store says %v", storage.ErrDigest, n, o.Size, h.Sum(), o.Digests)
		}
		return err
	})
}

// copy puts what it reads where nothing is, verified on the way, as the copier does.
func (s StorageSide) copy(ctx context.Context, source, target *s3.Store) (int64, error) {
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
