package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/bench/s3bench"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
)

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

// timeConcurrent calls do for 0 to n-1 from the given number of goroutines and returns the elapsed seconds.
func timeConcurrent(workers, n int, do func(i int) error) (seconds float64, err error) {
	start := time.Now()
	var group errgroup.Group
	for w := range workers {
		group.Go(func() error {
			for i := w; i < n; i += workers {
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

// filePuts puts small items with properties. The peer writes the same files and also syncs each file and its directory.
// The sides run in turns.
func (r *runner) filePuts(ctx context.Context) (m measurement, err error) {
	content := bytes.Repeat([]byte("millrace"), itemBytes/8)
	properties := storage.Properties{
		MediaType: "image/tiff", User: map[string]string{"title": "a small item", "rights": "open"},
	}
	n := r.amounts.written
	for range r.amounts.rounds {
		err := inTemp(func(dir string) error {
			store, err := fileStore(ctx, dir, fromStore)
			if err != nil {
				return err
			}
			defer store.Close()
			ours, err := timeConcurrent(sideWork, n, func(i int) error {
				_, err := store.Put(ctx, space, s3bench.Key(i), bytes.NewReader(content), storage.PutOptions{
					Size: itemBytes, Properties: properties, Condition: storage.Condition{Absent: true},
				})
				return err
			})
			if err != nil {
				return err
			}
			peers, err := timeConcurrent(sideWork, n, func(i int) error {
				return plainPut(filepath.Join(dir, "peer", s3bench.Key(i)), content)
			})
			m.ours, m.peers = append(m.ours, ours), append(m.peers, peers)
			return err
		})
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// plainPut writes a temporary file, syncs it, renames it to path and syncs the directory.
func plainPut(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	f, err := os.CreateTemp(dir, ".tmp")
	if err != nil {
		return fmt.Errorf("make a file: %w", err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("write a file: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync a file: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("rename a file: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open a directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync a directory: %w", err)
	}
	return nil
}

// fileStats calls Stat repeatedly on one item with digests and properties. The peer calls lstat on its file. The sides
// run in turns.
func (r *runner) fileStats(ctx context.Context) (m measurement, err error) {
	err = inTemp(func(dir string) error {
		store, err := fileStore(ctx, dir, fromStore)
		if err != nil {
			return err
		}
		defer store.Close()
		item := s3bench.Key(1)
		_, err = store.Put(ctx, space, item, bytes.NewReader(make([]byte, itemBytes)), storage.PutOptions{
			Size: itemBytes, Properties: storage.Properties{MediaType: "image/tiff"},
		})
		if err != nil {
			return err
		}
		path := filepath.Join(dir, fromStore, space, item)
		for range 10 * r.amounts.rounds {
			ours, err := microsPerCall(r.amounts.callTime/10,
				func() error { _, err := store.Stat(ctx, space, item); return err })
			if err != nil {
				return err
			}
			peers, err := microsPerCall(r.amounts.callTime/10, func() error { _, err := os.Lstat(path); return err })
			if err != nil {
				return err
			}
			m.ours, m.peers = append(m.ours, ours), append(m.peers, peers)
		}
		return nil
	})
	return m, err
}

// microsPerCall repeats a call for the given time and returns the microseconds per call.
func microsPerCall(long time.Duration, call func() error) (float64, error) {
	n, start := 0, time.Now()
	for {
		for range 100 {
			if err := call(); err != nil {
				return 0, err
			}
		}
		n += 100
		if took := time.Since(start); took >= long {
			return float64(took.Microseconds()) / float64(n), nil
		}
	}
}
