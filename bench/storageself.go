package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/bench/s3bench"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/limit"
	"github.com/millrace/millrace/streams/storage/outbox"
)

// listMemory returns the peak memory of a process that lists many keys.
func (r *runner) listMemory(ctx context.Context) (measurement, error) {
	return r.list(ctx, func(res sideResult) float64 { return float64(res.Bytes) / (1 << 20) })
}

func (r *runner) listRate(ctx context.Context) (measurement, error) {
	return r.list(ctx, sideResult.rate)
}

// list returns a figure of the listing benchmark. The first of these figures runs it.
func (r *runner) list(ctx context.Context, of func(sideResult) float64) (m measurement, err error) {
	if r.listing != nil {
		return measurement{ours: []float64{of(*r.listing)}}, nil
	}
	s, err := r.serveMemory(ctx, s3bench.Load{Bucket: fromBucket, Keys: r.amounts.listed})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	_, out, err := runMeasured(ctx, s.env(), r.cfg.Self, "storageside", "--endpoint", s.url, "--do", "list",
		"--source", fromStore, "--space", space, "--workers", "1")
	var res sideResult
	if err == nil {
		err = json.Unmarshal(out, &res)
	}
	if err == nil && res.Records != int64(r.amounts.listed) {
		err = fmt.Errorf("listed %d of %d keys", res.Records, r.amounts.listed)
	}
	if err != nil {
		return m, err
	}
	r.listing = &res
	return measurement{ours: []float64{of(res)}}, nil
}

const emitCallers = 256

// emitRate returns a figure of concurrent puts through the outbox over a store that does nothing. Every intent is on
// disk before its put. Every Change is acknowledged the given time after its publish, before the put returns.
func (r *runner) emitRate(after time.Duration) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		for range r.amounts.fewRounds() {
			rate, err := emitAll(ctx, r.amounts.emitted, after)
			if err != nil {
				return m, err
			}
			m.ours = append(m.ours, rate)
		}
		return m, nil
	}
}

func emitAll(ctx context.Context, n int, after time.Duration) (rate float64, err error) {
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return 0, fmt.Errorf("make a directory for the outbox: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	box, err := outbox.Open(outbox.Config{Dir: dir})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	var topic ackPublisher
	topic.after = after
	// The store is wrapped in limits and a breaker, as in the roles.
	log := slog.New(slog.DiscardHandler)
	limited := limit.New(&discardStore{},
		limit.NewBreaker(limit.Config{Account: mainAccount, Store: "1", Log: log}),
		limit.NewThrottle(limit.Rates{}, log))
	store, err := emit.New(limited, emit.Config{Account: mainAccount, Store: "1", Outbox: box}, &topic)
	if err != nil {
		return 0, err
	}
	var took time.Duration
	err = runWhile(ctx, store, func(ctx context.Context) error {
		start := time.Now()
		defer func() { took = time.Since(start) }()
		var next atomic.Int64
		group, ctx := errgroup.WithContext(ctx)
		for range emitCallers {
			group.Go(func() error {
				for i := next.Add(1); i <= int64(n); i = next.Add(1) {
					_, err := store.Put(ctx, space, s3bench.Key(int(i)), strings.NewReader(""), storage.PutOptions{
						Properties: storage.Properties{MediaType: "image/tiff"},
					})
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		return group.Wait()
	})
	if err == nil && topic.published.Load() != int64(n) {
		err = fmt.Errorf("published %d changes for %d mutations", topic.published.Load(), n)
	}
	return float64(n) / took.Seconds(), err
}

// ackPublisher is a publisher that acknowledges every message after a delay.
type ackPublisher struct {
	after     time.Duration
	published atomic.Int64
}

// Publish implements schemas.Publisher.
func (a *ackPublisher) Publish(ctx context.Context, _ ...schemas.Message) error {
	if a.after > 0 {
		sleep(ctx, a.after)
	}
	a.published.Add(1)
	return ctx.Err()
}

// discardStore is a store that accepts items and keeps nothing. The emit figures call only the methods that it
// implements.
type discardStore struct {
	storage.Store
	version atomic.Int64
}

// Stat implements storage.Store.
func (*discardStore) Stat(context.Context, string, string) (storage.Object, error) {
	return storage.Object{}, storage.ErrNotFound
}

// Marker implements storage.Store.
func (*discardStore) Marker(context.Context) error { return nil }

// Put implements storage.Store.
func (t *discardStore) Put(
	_ context.Context, _, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	size, err := io.Copy(io.Discard, r)
	if err != nil {
		return storage.Object{}, err
	}
	sum, err := o.Accept(digest.Set{
		digest.MD5:    "d41d8cd98f00b204e9800998ecf8427e",
		digest.SHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
	}, size)
	if err != nil {
		return storage.Object{}, err
	}
	return storage.Object{
		Item: item, Size: size, Digests: sum, Modified: time.Now(),
		Version: strconv.FormatInt(t.version.Add(1), 10), Properties: o.Properties,
	}, nil
}
