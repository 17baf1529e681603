package bench

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/sinks/clickhouse/clickhousebench"
	"github.com/millrace/millrace/streams/storage"
)

const (
	// changeRate is how many changes a second the client makes.
	changeRate = 50
	// destinations is how many copies each change leads to.
	destinations = 2
)

// checked asks for the copies that have passed a check of their bytes, as STORE/ITEM.
const passedCopiesQuery = "SELECT DISTINCT concat(store, '/', item) FROM {db}.bit_log" +
	" WHERE account = '" + mainAccount + "' AND store != '" + primary + "' AND verdict = 'pass'"

// change stores the items at changeRate. The time of a copy is that from the return of the client's Put, which has waited
// for the Change to be acknowledged, until the row of the copy's pass is read from ClickHouse. It returns the p99 in
// place of the seconds. The items of the first second are not counted: until their copies have passed, the groups have
// not formed.
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
	took, err := j.putChanges(ctx, b, changeRate, j.Items)
	return sideResult{Records: int64(len(took)), Seconds: percentile(took, 99)}, err
}

// changes stores n items from the first on, and returns how many seconds each of their copies took.
func (j *job) putChanges(ctx context.Context, b *clickhousebench.Bench, first, n int) (took []float64, err error) {
	var mu sync.Mutex
	sent := map[string]time.Time{} // guarded by mu
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		start := time.Now()
		return j.forEach(gctx, n, func(ctx context.Context, i int) error {
			sleep(ctx, time.Until(start.Add(time.Duration(i)*time.Second/changeRate)))
			name := item(first + i)
			_, err := j.client.Put(ctx, space, name, strings.NewReader(content(first+i)), storage.PutOptions{Size: storage.UnknownSize})
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
