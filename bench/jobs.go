package bench

import (
	"context"
	"crypto/md5" //nolint:gosec // a checksum, not a signature
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/inventory"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// adoptSettle is reconcile.settle of the job import.
const adoptSettle = 500 * time.Millisecond

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

// importLive writes files into the first store without a report, which a reconcile round finds and adopts, and measures
// the p99 from the end of a client's write into another space until its copy is there, for as long as the round takes.
func (j *job) importLive(ctx context.Context) (res sideResult, err error) {
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

// check puts the files of the first store on record with their digests, and returns when a fixity round has checked
// each and every result is recorded. What precedes the round is not counted.
func (j *job) check(ctx context.Context) (res sideResult, err error) {
	if err := j.recordFiles(ctx); err != nil {
		return res, err
	}
	if err := j.app.CatchUp(ctx); err != nil {
		return res, err
	}
	start := time.Now()
	rounds, err := j.app.SweepFixity(ctx, app.FixityRequest{Account: mainAccount, Store: primary,
		Begun: start.UTC().Truncate(time.Millisecond), AnyAge: true, Detach: true})
	if err != nil {
		return res, err
	}
	if len(rounds) != 1 || rounds[0].Emitted != int64(j.Items) {
		return res, fmt.Errorf("the round requested other than %d checks: %v", j.Items, rounds)
	}
	// The polls cost little: one of the verified copies costs as much as two thousand checks.
	_, err = waitCount(ctx, j.Items, 0, func() (int, error) {
		r := rounds[0]
		p, err := read.SpaceRoundProgress(ctx, j.app.DB(), read.SpaceRound{Round: r.ID, Since: r.Started,
			Space: schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space}})
		return int(p.Final), err
	})
	if err != nil {
		return res, err
	}
	_, err = waitCount(ctx, j.Items, 0, func() (int, error) { // another group writes the state
		n, err := j.app.Lag(ctx, schemas.RoleState)
		return j.Items - int(n), err
	})
	if err != nil {
		return res, err
	}
	res = sideResult{Records: int64(j.Items), Seconds: time.Since(start).Seconds()}
	_, err = j.waitRecorded(ctx, j.Items, 0, func(n read.CopyCount) uint64 { return n.Verified })
	return res, err
}

// recordFiles publishes a Change with digests for each file.
func (j *job) recordFiles(ctx context.Context) error {
	producer, err := app.OpenProducer(ctx, j.cfg, slog.New(slog.DiscardHandler), "bench")
	if err != nil {
		return err
	}
	defer producer.Close()
	target := inventory.Target{Account: mainAccount, Store: primary, Space: space}
	var changes []schemas.Message
	for i := range j.Items {
		name := filepath.Join(j.Dir, "store-"+primary, item(i))
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		bytes, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		m, s := md5.Sum(bytes), sha256.Sum256(bytes) //nolint:gosec // a checksum, not a signature
		c, err := target.Change(inventory.Entry{Item: item(i), Key: true, Size: info.Size(), Time: info.ModTime(),
			Digests: digest.Set{digest.MD5: hex.EncodeToString(m[:]), digest.SHA256: hex.EncodeToString(s[:])}})
		if err != nil {
			return err
		}
		changes = append(changes, schemas.Message{Topic: schemas.Changes, Body: c})
	}
	if err := producer.Publish(ctx, changes...); err != nil {
		return err
	}
	_, err = j.waitRecorded(ctx, j.Items, 0, func(n read.CopyCount) uint64 { return n.Live })
	return err
}

// change stores the items at changeRate, each with two copies, and returns the p99 delay of the copies as the result's
// Seconds. A delay runs from the Change to the end of its copy, as the log of results has it. The items of the first
// second are not counted because the consumer groups are still forming.
func (j *job) change(ctx context.Context) (res sideResult, err error) {
	put := func(first, n int) error {
		start := time.Now()
		return j.forEach(ctx, n, func(ctx context.Context, i int) error {
			sleep(ctx, time.Until(start.Add(time.Duration(i)*time.Second/changeRate)))
			_, err := j.client.Put(ctx, space, item(first+i), strings.NewReader(content(first+i)),
				storage.PutOptions{Size: storage.UnknownSize})
			return err
		})
	}
	if err := put(0, changeRate); err != nil {
		return res, err
	}
	if _, err := j.waitRecorded(ctx, 3*changeRate, 0,
		func(n read.CopyCount) uint64 { return n.Live }); err != nil {
		return res, err
	}
	since := time.Now()
	if err := put(changeRate, j.Items); err != nil {
		return res, err
	}
	_, err = waitCount(ctx, 2*j.Items, 0, func() (int, error) {
		delays, err := read.PairDelays(ctx, j.app.DB(), mainAccount, since)
		res = sideResult{}
		for _, d := range delays {
			res.Seconds = max(res.Seconds, d.P99)
			res.Records += int64(d.Copies) //nolint:gosec // a few
		}
		return int(res.Records), err
	})
	return res, err
}
