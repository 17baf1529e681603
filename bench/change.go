package bench

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/bench/clickhousebench"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/storage"
)

const (
	// changeRate is the number of changes per second.
	changeRate = 50
	// destinations is the number of copies per change.
	destinations = 2
)

// passedCopiesQuery selects the copies that have passed a check of their bytes, as STORE/ITEM.
const passedCopiesQuery = "SELECT DISTINCT concat(store, '/', item) FROM {db}.bit_log" +
	" WHERE account = '" + mainAccount + "' AND store != '" + primary + "' AND verdict = 'pass'"

// change stores the items at changeRate and returns the p99 latency of their copies as the result's Seconds. The
// latency of a copy runs from the return of the client's Put, which waits until the Change is acknowledged, until a
// query of ClickHouse returns the row of the copy's passed check. The items of the first second are not counted because
// the consumer groups are still forming.
func (j *job) change(ctx context.Context) (res sideResult, err error) {
	db := j.cfg.ClickHouse
	b, err := clickhousebench.Open(db.Addresses[0], db.Database)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if _, err := j.putChanges(ctx, b, 0, changeRate); err != nil {
		return res, err
	}
	since := time.Now()
	took, err := j.putChanges(ctx, b, changeRate, j.Items)
	if err != nil {
		return res, err
	}
	delays, err := read.PairDelays(ctx, j.app.DB(), mainAccount, since)
	for _, d := range delays {
		res.Copied = max(res.Copied, d.P99)
	}
	res.Records, res.Seconds = int64(len(took)), percentile(took, 99)
	return res, err
}

// putChanges stores n items, the first with the number first, and returns the latencies of their copies in seconds.
func (j *job) putChanges(ctx context.Context, b *clickhousebench.Bench, first, n int) (took []float64, err error) {
	var mu sync.Mutex
	sent := map[string]time.Time{} // guarded by mu
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		start := time.Now()
		return j.forEach(gctx, n, func(ctx context.Context, i int) error {
			sleep(ctx, time.Until(start.Add(time.Duration(i)*time.Second/changeRate)))
			name := item(first + i)
			_, err := j.client.Put(ctx, space, name, strings.NewReader(content(first+i)),
				storage.PutOptions{Size: storage.UnknownSize})
			mu.Lock()
			defer mu.Unlock()
			sent[name] = time.Now()
			return err
		})
	})
	group.Go(func() (err error) {
		took, err = readLatencies(gctx, b, passedCopiesQuery, destinations*n, func(copied string) time.Time {
			_, name, _ := strings.Cut(copied, "/")
			mu.Lock()
			defer mu.Unlock()
			return sent[name]
		})
		return err
	})
	return took, group.Wait()
}
