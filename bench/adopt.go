package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// adoptLive is the job that imports files while a client writes others.
const adoptLive = "adopt-live"

// adoptSettle is reconcile.settle of the job adopt.
const adoptSettle = 500 * time.Millisecond

// adopt writes files into the first store without a report, and returns when a reconcile round has found all and each
// is recorded.
func (j *job) adopt(ctx context.Context) (res sideResult, err error) {
	if err := fillFiles(filepath.Join(j.Dir, "store-"+primary, space), j.Items, nil); err != nil {
		return res, err
	}
	if err := j.app.CatchUp(ctx); err != nil { // the record of the space
		return res, err
	}
	start := time.Now()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return j.reconcile(gctx, start) })
	group.Go(func() error {
		_, err := j.waitRecorded(gctx, j.Items, 0, func(_ string, n copyCounts) int { return int(n.Live) })
		res = sideResult{Records: int64(j.Items), Seconds: time.Since(start).Seconds()}
		return err
	})
	return res, group.Wait()
}

// reconcile runs a round over the space, which adopts all files.
func (j *job) reconcile(ctx context.Context, start time.Time) error {
	rounds, err := j.app.SweepReconcile(ctx, app.ReconcileRequest{SpacesRequest: app.SpacesRequest{
		Account: mainAccount, Store: primary, Space: space, Begun: start.UTC().Truncate(time.Millisecond),
	}})
	if err == nil && (len(rounds) != 1 || rounds[0].Emitted != int64(j.Items)) {
		err = fmt.Errorf("the sweep adopted other than %d files: %v", j.Items, rounds)
	}
	return err
}

const (
	// liveSpace is the space into which the client writes during an import.
	liveSpace = "live"
	// liveInterval is the time between two writes.
	liveInterval = 100 * time.Millisecond
	// copyPoll is the time between two looks for a copy.
	copyPoll = 5 * time.Millisecond
)

// adoptLive imports files of a space that has a policy, and measures the p99 from the end of a client's write into
// another space until its copy is there, for as long as the import takes.
func (j *job) adoptLive(ctx context.Context) (res sideResult, err error) {
	if err := fillFiles(filepath.Join(j.Dir, "store-"+primary, space), j.Items, nil); err != nil {
		return res, err
	}
	if err := j.client.CreateSpace(ctx, storage.Space{Name: liveSpace}); err != nil {
		return res, err
	}
	if _, err := j.writeLive(ctx, "first"); err != nil { // with the copy of the space
		return res, err
	}
	var (
		mu   sync.Mutex // guards took
		took []float64
	)
	group, gctx := errgroup.WithContext(ctx)
	ended := make(chan struct{})
	group.Go(func() error {
		defer close(ended)
		return j.reconcile(gctx, time.Now())
	})
	group.Go(func() error {
		tick := time.NewTicker(liveInterval)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ended:
				return nil
			case <-gctx.Done():
				return context.Cause(gctx)
			case <-tick.C:
			}
			group.Go(func() error {
				seconds, err := j.writeLive(gctx, fmt.Sprintf("item-%06d", n))
				mu.Lock()
				defer mu.Unlock()
				took = append(took, seconds)
				return err
			})
		}
	})
	if err := group.Wait(); err != nil {
		return res, err
	}
	return sideResult{Records: int64(len(took)), Seconds: percentile(took, 99)}, nil
}

// writeLive writes an item as the client, and returns the seconds until its copy is there.
func (j *job) writeLive(ctx context.Context, item string) (seconds float64, err error) {
	if _, err := j.client.Put(ctx, liveSpace, item, strings.NewReader("live"), storage.PutOptions{Size: 4}); err != nil {
		return 0, err
	}
	start := time.Now()
	for {
		_, err := os.Stat(filepath.Join(j.Dir, "store-2", liveSpace, item))
		if err == nil {
			return time.Since(start).Seconds(), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		if time.Since(start) > progressTimeout {
			return 0, fmt.Errorf("the copy of %s is not there after %v", item, progressTimeout)
		}
		if err := retry.Sleep(ctx, copyPoll); err != nil {
			return 0, err
		}
	}
}
