package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3proc"
)

const (
	otherServer = "minio" // the second S3 server, built by make servers
	fewWorkers  = 8
)

// copyFigures returns the figures of multipart copies.
func (r *runner) copyFigures() []figure {
	a := r.amounts
	size, mixed := fmt.Sprintf("%d x %s MiB", a.hugeItems, count(int(a.hugeSize>>20))), sizesOf(a.mixedItems,
		a.hugeSize>>7)
	atLeast := func(bound float64) target { return target{op: ">=", bound: bound, ratio: true} }
	const peer = "rclone copy, then a sync"
	var all []figure
	for _, server := range []string{realServer, otherServer} {
		all = append(all, figure{fmt.Sprintf("%s: %s copied from store to store, then a sync", server, size), "MiB/s",
			peer, atLeast(1), r.hugeCopies(server)})
	}
	return append(all,
		figure{fmt.Sprintf("files: %s copied from store to store, then a sync", size), "MiB/s",
			peer, atLeast(1), r.hugeFiles},
		figure{fmt.Sprintf("%s: %d x %d to %d MiB copied, the slowest of 16, 32 and 48 workers", realServer, len(mixed),
			slices.Min(mixed)>>20, slices.Max(mixed)>>20), "MiB/s",
			fmt.Sprintf("%d workers", fewWorkers), atLeast(0.8), r.workers(mixed)})
}

// sizesOf returns the sizes of n items, which cycle from least to eight times least.
func sizesOf(n int, least int64) []int64 {
	sizes := make([]int64, n)
	for i := range sizes {
		sizes[i] = least * int64(i%8+1)
	}
	return sizes
}

// mib returns the sum of sizes in MiB.
func mib(sizes []int64) (all float64) {
	for _, size := range sizes {
		all += float64(size) / (1 << 20)
	}
	return all
}

// hugeCopies returns a figure in which both sides copy multipart items on a server in turns.
func (r *runner) hugeCopies(program string) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		sizes := slices.Repeat([]int64{r.amounts.hugeSize}, r.amounts.hugeItems)
		s, err := r.serveSizes(ctx, program, sizes)
		if errors.Is(err, s3proc.ErrNotInstalled) {
			return measurement{absent: "make servers"}, nil
		}
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, s.close()) }()
		peer, err := r.peerProgram()
		if err != nil {
			return m, err
		}
		if peer == "" {
			m.absent = "make peers"
		}
		for i := range min(2, r.amounts.rounds) {
			rate, err := syncedRate(mib(sizes), func() (cost, error) {
				return r.side(ctx, s, "copy", fmt.Sprint("ours", i), largeWork)
			})
			if err != nil {
				return m, err
			}
			m.ours = append(m.ours, rate)
			if peer == "" {
				continue
			}
			rate, err = syncedRate(mib(sizes), func() (cost, error) {
				return r.peerCopy(ctx, peer, s, fmt.Sprint("peer", i), largeWork)
			})
			if err != nil {
				return m, err
			}
			m.peers = append(m.peers, rate)
		}
		return m, nil
	}
}

// syncedRate returns the rate in MiB per second at which do writes amount MiB, including the sync to disk. It syncs
// earlier writes before the measurement.
func syncedRate(amount float64, do func() (cost, error)) (rate float64, err error) {
	unix.Sync()
	u, err := do()
	start := time.Now()
	unix.Sync()
	return amount / (u.seconds + time.Since(start).Seconds()), err
}

// serveSizes starts a server on disk with a source store of items of the given sizes.
func (r *runner) serveSizes(ctx context.Context, program string, sizes []int64) (*server, error) {
	s, err := r.startReal(ctx, program)
	if err != nil {
		return nil, err
	}
	s.items, s.dropBucket = len(sizes), s.emptyBucket
	store, err := s.createStore(ctx, fromStore)
	if err == nil {
		err = fill(ctx, store, sizes)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// emptyBucket deletes a bucket and its items.
func (s *server) emptyBucket(ctx context.Context, bucket string) error {
	store, err := s.open(strings.TrimSuffix(bucket, "-"+space))
	if err != nil {
		return err
	}
	for o, err := range store.List(ctx, space, "") {
		if err == nil {
			_, err = store.Delete(ctx, space, o.Item, storage.DeleteOptions{})
		}
		if err != nil {
			return err
		}
	}
	return store.DeleteSpace(ctx, space)
}

// hugeFiles is hugeCopies for file stores.
func (r *runner) hugeFiles(ctx context.Context) (m measurement, err error) {
	peer, err := r.peerProgram()
	if err != nil {
		return m, err
	}
	if peer == "" {
		m.absent = "make peers"
	}
	sizes := slices.Repeat([]int64{r.amounts.hugeSize}, r.amounts.hugeItems)
	return m, inTemp(func(dir string) error {
		source, err := fileStore(ctx, dir, fromStore)
		if err != nil {
			return err
		}
		defer source.Close()
		if err := fill(ctx, source, sizes); err != nil {
			return err
		}
		for range min(2, r.amounts.rounds) {
			rate, err := syncedRate(mib(sizes), func() (cost, error) { return r.copyFiles(ctx, dir) })
			if err != nil {
				return err
			}
			m.ours = append(m.ours, rate)
			if peer == "" {
				continue
			}
			rate, err = syncedRate(mib(sizes), func() (cost, error) { return r.peerFiles(ctx, peer, dir, len(sizes)) })
			if err != nil {
				return err
			}
			m.peers = append(m.peers, rate)
		}
		return nil
	})
}

const copyTarget = "copied" // our target store, and the peer's target directory

func (r *runner) copyFiles(ctx context.Context, dir string) (u cost, err error) {
	store, err := fileStore(ctx, dir, copyTarget)
	if err != nil {
		return u, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(filepath.Join(dir, copyTarget))) }()
	if err := store.Close(); err != nil {
		return u, err
	}
	u, _, err = runMeasured(ctx, nil, r.cfg.Self, "storageside", "--root", dir, "--do", "copy",
		"--source", fromStore, "--target", copyTarget, "--space", space, "--workers", fmt.Sprint(largeWork))
	return u, err
}

func (r *runner) peerFiles(ctx context.Context, program, dir string, n int) (u cost, err error) {
	to := filepath.Join(dir, copyTarget)
	defer func() { err = errors.Join(err, os.RemoveAll(to)) }()
	u, _, err = runMeasured(ctx, []string{"RCLONE_CONFIG=" + os.DevNull}, program,
		append(peerSettings(largeWork), "copy", filepath.Join(dir, fromStore, space), to)...)
	if err != nil {
		return u, err
	}
	if all, err := filesBelow(to); err != nil || len(all) != n {
		return u, errors.Join(err, fmt.Errorf("%s copied %d of %d files", rclone, len(all), n))
	}
	return u, nil
}

// workers returns a figure that compares the slowest of three large numbers of workers with a small one. The large
// numbers exceed the number of parts that a store buffers in memory.
func (r *runner) workers(sizes []int64) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		s, err := r.serveSizes(ctx, realServer, sizes)
		if errors.Is(err, s3proc.ErrNotInstalled) {
			return measurement{absent: "make servers"}, nil
		}
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, s.close()) }()
		rate := func(workers int) (float64, error) {
			return syncedRate(mib(sizes), func() (cost, error) {
				return r.side(ctx, s, "copy", fmt.Sprint("workers", workers), workers)
			})
		}
		rates := map[int][]float64{}
		for range r.amounts.fewRounds() {
			for _, workers := range []int{fewWorkers, 16, 32, 48} {
				one, err := rate(workers)
				if err != nil {
					return m, err
				}
				rates[workers] = append(rates[workers], one)
			}
		}
		m.peers = rates[fewWorkers]
		m.ours = slices.MinFunc([][]float64{rates[16], rates[32], rates[48]}, func(a, b []float64) int {
			return cmp.Compare(median(a), median(b))
		})
		return m, nil
	}
}
