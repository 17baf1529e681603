package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/s3"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

const (
	itemBytes = 10 << 10
	sideWork  = 16 // concurrent items of each side
	largeWork = 4  // concurrent large items of each side
	space     = "photos"
	fromStore = "source" // id of the source store, and the prefix of its bucket
	toStore   = "copied" // our target store, and the peer's target directory
)

// storage returns the figures of the stores.
func (r *runner) storage() ([]figure, error) {
	a := r.amounts
	items := fmt.Sprintf("s3 in memory: %s x 10 KiB", count(a.objects))
	return []figure{
		{items + " read, md5 and sha256", "items/s", "rclone hashsum md5 --download", ratioAtLeast(2.5), r.readObjects},
		{items + " copied from store to store, both look at what they wrote", "items/s", "rclone copy, its default",
			ratioAtLeast(2), r.copyObjects},
		{fmt.Sprintf("files: %d x %s MiB copied from store to store, then a sync", a.hugeItems,
			count(int(a.hugeSize>>20))), "MiB/s", "rclone copy, then a sync", ratioAtLeast(1), r.copyHuge},
		{fmt.Sprintf("files: %s x 10 KiB put with properties and digests, %d at once", count(a.written), sideWork), "s",
			"write, fsync, rename, fsync of the directory", ratioAtMost(1.8), r.filePuts},
	}, nil
}

// objectsGC leaves the processors to the clients; the heap is mostly bytes of objects.
const objectsGC = 400

// serveObjects runs an S3 server in memory whose source bucket has the given number of objects.
func serveObjects(options string, in io.Reader, out io.Writer) error {
	var n int
	if err := json.Unmarshal([]byte(options), &n); err != nil {
		return fmt.Errorf("options of objects: %w", err)
	}
	debug.SetGCPercent(objectsGC)
	s := s3test.New(s3test.Options{Unverified: true})
	defer s.Close()
	const step = 8 // bytes between the starts of two objects, which overlap
	all := make([]byte, itemBytes+step*n)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(all) // the same in each run
	for i := range n {
		s.Put(fromStore+"-"+space, key(i), all[i*step:][:itemBytes:itemBytes])
	}
	return serve(s.URL(), in, out)
}

// key returns the name of item i. Names sort like their numbers.
func key(i int) string { return fmt.Sprintf("2026/%05d/img-%08d.tif", i/1000, i) }

// withObjects starts an S3 server with amounts.objects objects and an empty target store, for one side and one round,
// and returns the items per second of do.
func (r *runner) withObjects(
	ctx context.Context, do func(url string) (seconds float64, err error),
) (rate float64, err error) {
	s, err := r.startServer(ctx, "objects", fmt.Sprint(r.amounts.objects))
	if err != nil {
		return 0, err
	}
	defer s.close()
	for _, id := range []string{fromStore, toStore} {
		store, err := openS3(s.addr, id)
		if err != nil {
			return 0, err
		}
		if err := store.WriteMarker(ctx); err != nil {
			return 0, err
		}
		if err := store.CreateSpace(ctx, storage.Space{Name: space}); err != nil && !errors.Is(err, storage.ErrExists) {
			return 0, err
		}
	}
	seconds, err := do(s.addr)
	return float64(r.amounts.objects) / seconds, err
}

// openS3 returns a store with the prefix as its id and as the prefix of its buckets.
func openS3(url, prefix string) (*s3.Store, error) {
	return s3.New(s3.Config{
		ID: schemas.Key(mainAccount, prefix), Endpoint: url, BucketPrefix: prefix + "-", PathStyle: true,
		Credentials: s3.Credentials{AccessKey: objectsKey, SecretKey: objectsKey},
	})
}

// readObjects reads all objects in turns with the peer.
func (r *runner) readObjects(ctx context.Context) (measurement, error) {
	n := r.amounts.objects
	return r.besideRclone(r.amounts.rounds, func(int) (float64, error) {
		return r.withObjects(ctx, func(url string) (float64, error) {
			_, seconds, err := r.runSide(ctx, "stores", &storesSide{Do: "hash", Endpoint: url, Workers: sideWork})
			return seconds, err
		})
	}, func(program string) (float64, error) {
		return r.withObjects(ctx, func(url string) (float64, error) {
			seconds, out, err := rclone(ctx, program, url, sideWork, "hashsum", "md5", "--download",
				"SOURCE:"+fromStore+"-"+space)
			if printed := bytes.Count(out, []byte("\n")); err == nil && printed != n {
				err = fmt.Errorf("rclone printed digests of %d of %d items", printed, n)
			}
			return seconds, err
		})
	})
}

// copyObjects copies all objects to another store in turns with the peer.
func (r *runner) copyObjects(ctx context.Context) (measurement, error) {
	return r.besideRclone(r.amounts.rounds, func(int) (float64, error) {
		return r.withObjects(ctx, func(url string) (float64, error) {
			_, seconds, err := r.runSide(ctx, "stores", &storesSide{Do: "copy", Endpoint: url, Workers: sideWork})
			return seconds, err
		})
	}, func(program string) (float64, error) {
		return r.withObjects(ctx, func(url string) (float64, error) {
			seconds, _, err := rclone(ctx, program, url, sideWork, "--no-traverse", "--ignore-times", "--use-server-modtime",
				"copy", "SOURCE:"+fromStore+"-"+space, "TARGET:"+toStore+"-"+space)
			if err != nil {
				return 0, err
			}
			store, err := openS3(url, toStore)
			if err != nil {
				return 0, err
			}
			copied := 0
			for _, err := range store.List(ctx, space, "") {
				if err != nil {
					return 0, err
				}
				copied++
			}
			if copied != r.amounts.objects {
				return 0, fmt.Errorf("rclone copied %d of %d items", copied, r.amounts.objects)
			}
			return seconds, nil
		})
	})
}

// fileStore creates a file store with the space.
func fileStore(ctx context.Context, dir, id string) (*file.Store, error) {
	store, err := file.Open(file.Config{ID: schemas.Key(mainAccount, id), Root: filepath.Join(dir, id), Create: true})
	if err != nil {
		return nil, err
	}
	if err := store.WriteMarker(ctx); err != nil {
		return nil, err
	}
	return store, store.CreateSpace(ctx, storage.Space{Name: space})
}

// copyHuge copies large files in turns with the peer.
func (r *runner) copyHuge(ctx context.Context) (m measurement, err error) {
	n := r.amounts.hugeItems
	return m, inTemp(func(dir string) error {
		from, err := fileStore(ctx, dir, fromStore)
		if err != nil {
			return err
		}
		defer from.Close()
		group, gctx := errgroup.WithContext(ctx)
		group.SetLimit(2 * runtime.NumCPU())
		for i := range n {
			group.Go(func() error {
				var seed [32]byte
				binary.LittleEndian.PutUint64(seed[:], uint64(i)) //nolint:gosec // an index
				content := io.LimitReader(rand.NewChaCha8(seed), r.amounts.hugeSize)
				_, err := from.Put(gctx, space, key(i), content, storage.PutOptions{Size: r.amounts.hugeSize})
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		to := filepath.Join(dir, toStore)
		m, err = r.besideRclone(r.amounts.fewRounds(), func(int) (rate float64, err error) {
			store, err := fileStore(ctx, dir, toStore)
			if err != nil {
				return 0, err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(to)) }()
			if err := store.Close(); err != nil {
				return 0, err
			}
			return r.syncedRate(func() error {
				_, _, err := r.runSide(ctx, "stores", &storesSide{Do: "copy", Root: dir, Workers: largeWork})
				return err
			})
		}, func(program string) (rate float64, err error) {
			defer func() { err = errors.Join(err, os.RemoveAll(to)) }()
			rate, err = r.syncedRate(func() error {
				_, _, err := rclone(ctx, program, "", largeWork, "copy", filepath.Join(dir, fromStore, space), to)
				return err
			})
			return rate, errors.Join(err, wantFiles(to, n))
		})
		return err
	})
}

// syncedRate returns the rate in MiB per second at which do copies the large items, including the sync to disk. It
// syncs earlier writes before the measurement.
func (r *runner) syncedRate(do func() error) (rate float64, err error) {
	unix.Sync()
	start := time.Now()
	err = do()
	unix.Sync()
	return float64(r.amounts.hugeItems) * float64(r.amounts.hugeSize>>20) / time.Since(start).Seconds(), err
}

// filePuts puts small items with properties. The peer writes the same files and also syncs each file and its directory.
func (r *runner) filePuts(ctx context.Context) (measurement, error) {
	content := bytes.Repeat([]byte("millrace"), itemBytes/8)
	properties := storage.Properties{
		MediaType: "image/tiff", User: map[string]string{"title": "a small item", "rights": "open"},
	}
	return inTurns(r.amounts.rounds, "", func(int) (seconds float64, err error) {
		return seconds, inTemp(func(dir string) error {
			store, err := fileStore(ctx, dir, fromStore)
			if err != nil {
				return err
			}
			defer store.Close()
			seconds, err = timeConcurrent(r.amounts.written, func(i int) error {
				_, err := store.Put(ctx, space, key(i), bytes.NewReader(content), storage.PutOptions{
					Size: itemBytes, Properties: properties, Condition: storage.Condition{Absent: true},
				})
				return err
			})
			return err
		})
	}, func(int) (seconds float64, err error) {
		return seconds, inTemp(func(dir string) error {
			seconds, err = timeConcurrent(r.amounts.written, func(i int) error {
				return plainPut(filepath.Join(dir, key(i)), content)
			})
			return err
		})
	})
}

// timeConcurrent calls do for 0 to n-1 from sideWork goroutines and returns the elapsed seconds.
func timeConcurrent(n int, do func(i int) error) (seconds float64, err error) {
	start := time.Now()
	var group errgroup.Group
	for w := range sideWork {
		group.Go(func() error {
			for i := w; i < n; i += sideWork {
				if err := do(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = group.Wait()
	return time.Since(start).Seconds(), err
}

// plainPut writes a temporary file, syncs it, renames it to path and syncs the directory.
func plainPut(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close(), os.Rename(f.Name(), path)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
