// Package watch publishes Changes for the files that other programs write and delete in a directory tree. An inotify
// event is only a hint: the Change describes the state that the store shows after a path has been quiet for a while.
//
// The tree is walked at the start, and again after the kernel has dropped events or too many paths have waited, to
// watch its directories. Then the watch asks for a round of the sweep reconcile, which finds what no event reports:
// nobody knows when a file came that was there before, and a tree may be back from a snapshot. Only the files of a
// directory that was just created or moved in are published: that is their event.
//
// The delete of a file is missed if it happens while the tree is not watched, if its event was dropped, or if the whole
// directory was removed or moved away; reconcile finds it. If the root is missing or belongs to another store, nothing
// is published; the tree is walked when the root is back. If the root cannot be examined, watching continues. A file
// that is created and deleted within the quiet time is published as deleted, because it may have replaced a known file;
// for an item that is not on record this has no effect.
package watch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/ingest/hint"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/record"
)

// Config holds the settings of a Watch. Zero values mean the defaults in brackets.
type Config struct {
	Account, Store string
	Root           string // root of the tree; the directories in it are the spaces
	// ItemAt returns the item at a slash-separated path below the root, or false if there is none.
	ItemAt func(path string) (space, item string, ok bool)
	// Settle is how much older than its event content may be and still have its own date [1 min].
	Settle time.Duration
	// quiet is the time without events after which a path is examined [1 s], so that a file is examined after it has been
	// written.
	quiet time.Duration
	// Limit is the largest number of paths that wait to be examined [100,000].
	Limit int
	// recheck is the interval of examining the root [30 s], whether it is watched or not. After dropped events, the next
	// walk begins at the next examination.
	recheck time.Duration
	// At returns Kafka's time at a time of the process, if that is known [the same].
	At func(time.Time) time.Time
	// Ask asks for a round of the sweep reconcile over the store.
	Ask func(context.Context) error
}

// A Watch watches one directory tree.
type Watch struct {
	cfg      Config
	observer *hint.Observer
	store    hint.Stores
	out      schemas.Publisher
	count    func(hint.Row)
	log      *slog.Logger
	queue    *queue
	recent   recent
}

// New returns a Watch. It calls count, if not nil, with the row of each hint.
func New(
	cfg Config, stores hint.Stores, out schemas.Publisher, count func(hint.Row), log *slog.Logger,
) (*Watch, error) {
	if cfg.Root == "" || cfg.ItemAt == nil || cfg.Ask == nil || stores == nil || out == nil || log == nil {
		return nil, errors.New("watch: root, ItemAt, Ask, stores, publisher or log are missing")
	}
	cfg.Settle = cmp.Or(cfg.Settle, time.Minute)
	cfg.quiet = cmp.Or(cfg.quiet, time.Second)
	cfg.Limit = cmp.Or(cfg.Limit, 100_000)
	cfg.recheck = cmp.Or(cfg.recheck, 30*time.Second)
	if cfg.At == nil {
		cfg.At = func(t time.Time) time.Time { return t }
	}
	if count == nil {
		count = func(hint.Row) {}
	}
	return &Watch{cfg: cfg, observer: hint.NewObserver(stores, cfg.Settle), store: stores, out: out, count: count,
		log: log.With("part", "watch", "account", cfg.Account, "store", cfg.Store), queue: newQueue(cfg.quiet, cfg.Limit),
		recent: recent{keep: cfg.Settle + record.Slack}}, nil
}

// Run watches the tree until ctx is done, and then returns nil. If the root is missing, it waits for it.
func (w *Watch) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for gctx.Err() == nil {
			err := w.session(gctx)
			if errors.Is(err, errMissed) {
				continue
			}
			if err != nil && gctx.Err() == nil {
				w.log.Warn("stop watching: changes are found when the root is back",
					"root", w.cfg.Root, "err", err, "retry_after", w.cfg.recheck)
			}
			_ = retry.Sleep(gctx, w.cfg.recheck) // only ctx ends it early
		}
		return nil
	})
	g.Go(func() error { return w.publishDue(gctx) })
	return g.Wait()
}

// enqueue adds a hint about a path below the root to the queue.
func (w *Watch) enqueue(rel string, gone bool) {
	if _, _, ok := w.cfg.ItemAt(filepath.ToSlash(rel)); !ok {
		return
	}
	if fits, first := w.queue.add(filepath.ToSlash(rel), time.Now(), gone); !fits && first {
		w.log.Warn("drop path: too many paths wait; the sweep reconcile finds what changed",
			"limit", w.cfg.Limit)
	}
}

// parallel is the number of paths that are examined concurrently; batchSize is the largest number in one batch.
const (
	parallel  = 8
	batchSize = 1000
)

// publishDue examines due paths and publishes their Changes until ctx is done.
func (w *Watch) publishDue(ctx context.Context) error {
	tick := time.NewTicker(max(w.cfg.quiet/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		due := w.queue.due(time.Now(), batchSize)
		var g errgroup.Group
		g.SetLimit(parallel)
		for _, p := range due {
			g.Go(func() error {
				if err := w.publishPath(ctx, p); err != nil {
					w.handleFailure(ctx, p, err)
				}
				return nil
			})
		}
		_ = g.Wait() // handleFailure has handled the errors
	}
}

func (w *Watch) handleFailure(ctx context.Context, p pendingPath, err error) {
	switch {
	case ctx.Err() != nil:
	case retry.IsPermanent(err):
		w.log.Error("skip path: it cannot be published", "path", p.path, "err", err)
	default:
		if p.failures == 0 {
			w.log.Warn("retry path: it cannot be published now", "path", p.path, "err", err)
		}
		w.queue.retry(p, time.Now())
	}
}

// publishPath examines a path and publishes its Change.
func (w *Watch) publishPath(ctx context.Context, p pendingPath) error {
	space, item, _ := w.cfg.ItemAt(p.path) // it has one, or it would not be in the queue
	c := schemas.Copy{Account: w.cfg.Account, Store: w.cfg.Store, Space: space, Item: item}
	s, err := w.observer.Observe(ctx, c)
	if err != nil {
		return err
	}
	before := w.recent.of(p.path)
	s.Now = w.cfg.At(s.Now)
	if s.Received = w.cfg.At(p.last); !s.Received.After(before.time) { // the clock has stepped back
		s.Received = before.time.Add(time.Millisecond)
	}
	if before.version != s.Object.Version {
		s.Earlier = before.time
	}
	h := hint.Hint{Kind: hint.Created, Vendor: "watch", Event: "written"}
	switch {
	case p.gone && !s.Present:
		h.Kind, h.Event = hint.Removed, "removed"
	case p.found:
		h.Event = "found"
	}
	d := hint.Decide(c, h, s)
	if d.Change != nil {
		if err := w.out.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: d.Change}); err != nil {
			return err
		}
		w.recent.add(p.path, published{d.Change.GetTime().AsTime(), d.Change.GetVersion()}, time.Now())
	}
	w.count(d.Row)
	return nil
}

// backoff returns the wait after the given number of failures.
func backoff(failures int) time.Duration {
	return retry.Policy{Wait: time.Second, MaxWait: time.Minute}.Backoff(failures)
}

func sorted(all []pendingPath) []pendingPath {
	slices.SortFunc(all, func(a, b pendingPath) int {
		return cmp.Or(a.last.Compare(b.last),
			strings.Compare(a.path, b.path))
	})
	return all
}
